//! The Python class `Partitions`, and the function `partition`.

use std::sync::Arc;

use green_ctx::{
    Device, SplitRequest, StreamOptions, context::Context, resource::ContextResources,
};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PySet, PyTuple, PyWeakrefMethods, PyWeakrefReference};

use crate::argument::DeviceId;
use crate::device::device;
use crate::fault::{Fault, Reason};
use crate::gil::{Held, blocking};
use crate::kept::once;
use crate::made;
use crate::named::{Named, not_copied};
use crate::partition::{Live, Partition};
use crate::request::{Keywords, Request};
use crate::torch;

/// Partitions by name, in the order of the request.
///
/// `with partition(...) as parts:` closes all partitions at the end of the block. `with parts["decode"]:` runs
/// torch's work in the partition with this name.
#[pyclass(frozen, mapping, weakref, module = "green_ctx_torch")]
pub(crate) struct Partitions {
    /// Maps names to [`Partition`] objects.
    parts: Named,
}

impl Partitions {
    pub(crate) fn new(py: Python<'_>, living: Vec<Arc<Live>>) -> PyResult<Partitions> {
        let parts = PyDict::new(py);
        for live in living {
            let part = Partition::new(live);
            parts.set_item(part.name().to_owned(), part.into_pyobject(py)?)?;
        }
        Ok(Partitions { parts: Named::new("partition", parts) })
    }

    /// Wraps new partitions that belong to no plan, so that a later call of [`partition`] can replace them.
    pub(crate) fn replaceable(py: Python<'_>, living: Vec<Arc<Live>>) -> PyResult<Partitions> {
        let parts = Partitions::new(py, living)?;
        let made = made(py)?;
        let discard = made.getattr(intern!(py, "discard"))?;
        for part in parts.each(py)? {
            made.add(PyWeakrefReference::new_with(part.bind(py), &discard)?)?;
        }
        Ok(parts)
    }

    /// Closes all partitions. The workspaces that torch holds for these partitions are not freed.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.each(py)?.iter().for_each(|part| part.get().end());
        Ok(())
    }

    fn check_unplanned(&self, py: Python<'_>) -> PyResult<()> {
        self.each(py)?.iter().try_for_each(|part| part.get().check_unplanned())
    }

    pub(crate) fn named(&self) -> &Named {
        &self.parts
    }

    pub(crate) fn each(&self, py: Python<'_>) -> PyResult<Vec<Py<Partition>>> {
        let parts = self.parts.objects(py).values();
        parts.iter().map(|part| Ok(part.cast_into::<Partition>()?.unbind())).collect()
    }
}

#[pymethods]
impl Partitions {
    fn __getitem__(&self, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.named().item(name)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.named().len(py)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.named().iter(py)
    }

    /// Closes all partitions. Raises RuntimeError if they belong to a plan.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_unplanned(py)?;
        self.end(py)?;
        torch::release_workspaces(py)
    }

    /// Closes the partitions at the end of the block.
    fn __enter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, parts) = (this.py(), this.get());
        let each = parts.each(py)?;
        let Some(open) = each.iter().find(|part| !part.get().is_closed()) else {
            let reason = format!(
                "the partitions {} are closed; make new ones with green_ctx_torch.partition",
                parts.parts.names(py)
            );
            return Err(Fault::closed(reason).into());
        };
        drop(open.get().live()?);
        parts.check_unplanned(py)?;
        Ok(this)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied(
            "a set of partitions",
            "copy or send the division, {name: part.share for name, part in parts.items()}, and call \
             partition with it",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.parts.as_py())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Partitions {}>", self.parts.objects(py).values().repr()?))
    }
}

/// Returns weak references to those partitions outside plans that Python code still holds. A `weakref.WeakSet` would
/// run Python code when a partition is dropped, possibly in a daemon thread that is about to end.
fn made(py: Python<'_>) -> PyResult<&Bound<'_, PySet>> {
    static MADE: PyOnceLock<Py<PySet>> = PyOnceLock::new();
    let made = once(py, &MADE, || Ok(PySet::empty(py)?.unbind()))?;
    Ok(made.bind(py))
}

/// Returns the open partitions of a device that belong to no plan.
fn open_on(py: Python<'_>, ordinal: i64) -> PyResult<Vec<Py<Partition>>> {
    // Copied to a list first, because dropping a partition changes the set.
    let known = made(py)?.iter().collect::<Vec<_>>();
    let mut open = Vec::new();
    for reference in known {
        let Some(part) = reference.cast_into::<PyWeakrefReference>()?.upgrade() else { continue };
        let part = part.cast_into::<Partition>()?;
        if !part.get().is_closed() && i64::from(part.get().ordinal()) == ordinal {
            open.push(part.unbind());
        }
    }
    Ok(open)
}

/// Divides a device's SMs into named partitions.
///
///     parts = partition({"decode": 16, "prefill": "rest"})
///     parts = partition({"decode": "32..", "prefill": "..100"})
///
/// `division` maps each name to a number of SMs, a share (a `Share` or its text), or "rest" for the SMs that the
/// other partitions leave. No other partition of this process uses the SMs of a partition's floor. The floor is 16
/// SMs for `16`, and 32 SMs for `"32.."`. Above its floor and up to its ceiling, a partition may use SMs that other
/// partitions may use too. A count that the device cannot give is rounded up: `Partition.requested` is the requested
/// count, and `Partition.sm_count` is the resulting one. `dry_run` computes the result without taking SMs.
///
/// With `fine=True`, the device is divided into the smallest units that the driver supports. Clusters of thread
/// blocks may not fit into these units.
///
/// The following keywords take one value for all partitions, or a mapping from names to values:
///
/// - `priority`: the priority of the partition's stream. Lower numbers run first; the range on an H200 is 0 to -5.
/// - `workqueue`: the scope of the partition's workqueues. "balanced" gives the partition separate queues if
///   possible, and "device_ctx" gives it the device's common queues. A tuple such as ("balanced", 4) adds a limit:
///   the expected number of streams that have work at the same time. This option needs CUDA 13.1 and has not run on
///   hardware yet.
/// - `coscheduled`: the number of SMs that are scheduled together, so that clusters fit; 0 is the device's default.
/// - `preferred_coscheduled`: the size, in SMs, up to which the driver may merge sets of co-scheduled SMs.
/// - `backfill`: True if the driver may fill up a partition with SMs that are not scheduled together.
/// - `locality_domain`: the number of the locality domain to take SMs from, or "any". Needs CUDA 13.4.
/// - `supplemental`: True if a partition may take more SMs of a larger locality domain than the driver counts per
///   domain. Needs CUDA 13.5.
///
/// The five options from `coscheduled` to `supplemental` need at least CUDA 13.1 and have not run on hardware yet. If
/// one of these five options is given, counts are not rounded, every share must be exclusive (such as 16 or "rest"),
/// and all SMs of the device must be free.
///
/// `replace=True` first closes all open partitions of the device that earlier calls of `partition`,
/// `TuningOutcome.partitions` or `TuningOutcome.apply` created, so that a notebook cell can run again. Plan sets and
/// the contexts of drop-ins, such as `GreenContext`, stay open. If the request would not fit even without the earlier
/// partitions, the earlier partitions stay open. A closed partition can still hold its SMs (see `Partition.close`). If
/// too few SMs are free, `partition` raises RuntimeError, and the earlier partitions stay closed. A "rest" and a share
/// without a ceiling take what is free, without an error: if a notebook keeps or displays `part.stream`, they become
/// smaller with each run of the cell.
///
/// Raises ValueError if an argument is invalid or the device does not have the requested SMs. Raises RuntimeError
/// if other partitions hold the SMs, if the driver is too old, or if there is no usable driver. If the call fails,
/// no partition is created.
#[pyfunction]
#[pyo3(signature = (division, device=DeviceId::Current, *, fine=false, coscheduled=None,
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None,
    priority=None, replace=false),
    text_signature = "(division, device=None, *, fine=False, coscheduled=None, \
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None, \
    priority=None, replace=False)")]
#[allow(clippy::too_many_arguments, reason = "Python's keywords")]
pub(crate) fn partition(
    py: Python<'_>,
    division: &Bound<'_, PyAny>,
    device: DeviceId,
    fine: bool,
    coscheduled: Option<&Bound<'_, PyAny>>,
    preferred_coscheduled: Option<&Bound<'_, PyAny>>,
    backfill: Option<&Bound<'_, PyAny>>,
    locality_domain: Option<&Bound<'_, PyAny>>,
    supplemental: Option<&Bound<'_, PyAny>>,
    workqueue: Option<&Bound<'_, PyAny>>,
    priority: Option<&Bound<'_, PyAny>>,
    replace: bool,
) -> PyResult<Partitions> {
    let keywords = Keywords {
        fine,
        coscheduled,
        preferred_coscheduled,
        backfill,
        locality_domain,
        supplemental,
        workqueue,
        priority,
    };
    let request = Request::read("partition", division, &keywords)?;
    let device = device.ordinal(py)?;
    let former = match replace {
        true => open_on(py, device)?,
        false => Vec::new(),
    };
    if !former.is_empty() {
        let (request, living) = (&request, living(py, &former));
        blocking(py, move || check(device, request, living))?;
        former.iter().for_each(|part| part.get().end());
        torch::release_workspaces(py)?;
    }
    let fault = match py.detach(|| make(device, &request)) {
        Ok(living) => return Partitions::replaceable(py, living),
        Err(fault @ Fault::Python(_)) => return Err(fault.into()),
        Err(fault) => fault,
    };
    if !former.is_empty() {
        return Err(fault
            .advised(format!(
                "the earlier partitions {} are closed, but a thread inside one of them, a stream, a moved \
                 graph or a memory pool still holds SMs; release it and call partition again",
                names_of(&former)
            ))
            .into());
    }
    // The advice helps only if partitions that can be replaced are the cause.
    let open = open_on(py, device)?;
    let living = living(py, &open);
    match !open.is_empty() && py.detach(|| check(device, &request, living)).is_ok() {
        true => Err(fault
            .advised(format!(
                "partitions of earlier calls are still open, the oldest first: {}; close() them, or call partition(..., replace=True)",
                names_of(&open)
            ))
            .into()),
        false => Err(fault.into()),
    }
}

/// Returns the states of those partitions that are open. [`Held`] drops the states without the GIL.
fn living(py: Python<'_>, parts: &[Py<Partition>]) -> Vec<Held<Arc<Live>>> {
    parts.iter().filter_map(|part| part.bind(py).get().live().ok()).map(Held::new).collect()
}

/// Lists partitions for a message, the oldest first. The list shows the number of SMs too, because two partitions can
/// have the same name.
fn names_of(parts: &[Py<Partition>]) -> String {
    let mut parts: Vec<_> = parts.iter().map(Py::get).collect();
    parts.sort_unstable_by_key(|part| part.serial());
    let names = parts.iter().map(|part| format!("{} ({} SMs)", part.name(), part.sm_count()));
    names.collect::<Vec<_>>().join(", ")
}

/// If a plan set could not get its SMs, adds to the error a list of the open partitions that may hold them.
pub(crate) fn advise(py: Python<'_>, fault: Fault, device: i64) -> PyResult<Fault> {
    if fault.reason() != Reason::Unavailable {
        return Ok(fault);
    }
    let open = open_on(py, device)?;
    Ok(match open.is_empty() {
        true => fault,
        false => fault.advised(format!(
            "partitions of earlier calls are still open: {}; close() them first",
            names_of(&open)
        )),
    })
}

/// Returns an error if a request would not fit even without the partitions in `former`.
fn check(ordinal: i64, request: &Request, former: Vec<Held<Arc<Live>>>) -> Result<(), Fault> {
    let device = device(ordinal)?;
    request.workqueues(&device)?;
    let groups: Vec<_> = former.iter().filter_map(|live| live.context().group()).collect();
    let sms = device.resources().sm()?;
    let given = sms.dry_run_without(request.split(), &groups)?;
    match request.division.rest() {
        Some(rest) if given.remainder == 0 => {
            let given = given.groups.iter().map(|group| group.sm_count).sum();
            Err(no_rest(rest, given, sms.sm_count()))
        }
        _ => Ok(()),
    }
}

/// Creates the partitions of a request, in the order of `priorities`. This list gives the name of each partition and
/// the priority of its stream.
pub(crate) fn make_split(
    device: &Device,
    request: SplitRequest,
    priorities: &[(String, i32)],
) -> Result<Vec<Arc<Live>>, Fault> {
    let split = device.resources().sm()?.split(request)?;
    let contexts = split.groups.into_iter().map(|group| Ok(device.create_context(group)?));
    let contexts = contexts.collect::<green_ctx::Result<Vec<Context>>>()?;
    let place = |name: &str| priorities.iter().position(|(known, _)| known == name);
    let living = contexts.into_iter().map(|context| {
        let priority = place(context.label()).map_or(0, |place| priorities[place].1);
        let options = StreamOptions::default().priority(priority);
        Live::with_stream(&context, options).map(Arc::new)
    });
    let mut living = living.collect::<Result<Vec<_>, _>>()?;
    living.sort_by_key(|live| place(live.name()));
    living.iter().for_each(made::note);
    Ok(living)
}

fn make(ordinal: i64, request: &Request) -> Result<Vec<Arc<Live>>, Fault> {
    let device = device(ordinal)?;
    let workqueues = request.workqueues(&device)?;
    let sms = device.resources().sm()?;
    let split = sms.split(request.split())?;
    if let (Some(rest), None) = (request.division.rest(), &split.remainder) {
        let given = split.groups.iter().map(|group| group.sm_count()).sum();
        return Err(no_rest(rest, given, sms.sm_count()));
    }
    let groups = split.groups.into_iter().chain(split.remainder);
    let provisions = groups.map(|group| -> ContextResources {
        match workqueues.iter().find(|(name, _)| *name == group.name()) {
            Some((_, workqueue)) => group.with_workqueue(workqueue.clone()),
            None => group.into(),
        }
    });
    let contexts = provisions.map(|provision| Ok(device.create_context(provision)?));
    let contexts = contexts.collect::<green_ctx::Result<Vec<Context>>>()?;
    let living = contexts.into_iter().map(|context| {
        let options = StreamOptions::default().priority(request.priority(context.label()));
        Live::with_stream(&context, options).map(Arc::new)
    });
    let mut living = living.collect::<Result<Vec<_>, _>>()?;
    living.sort_by_key(|live| request.division.place(live.name()));
    living.iter().for_each(made::note);
    Ok(living)
}

/// Returns the error for a request in which no SMs remain for the partition that takes the rest. The other groups get
/// `given` SMs.
pub(crate) fn no_rest(rest: &str, given: u32, total: u32) -> Fault {
    match given == total {
        true => Fault::value(format!(
            "no SMs remain for {rest}: the other partitions take all {total} SMs of the device"
        )),
        false => Fault::unavailable(format!(
            "no SMs remain for {rest}: the SMs that the others leave, of the device's {total}, are already \
             held or shared"
        )),
    }
}

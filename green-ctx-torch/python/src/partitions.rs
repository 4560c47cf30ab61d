//! Several partitions by name, and how they are made.

use std::sync::Arc;

use green_ctx::{
    Device, Error, SplitRequest, StreamOptions, context::Context, resource::Provision,
};
use pyo3::exceptions::PyKeyError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple, PyWeakrefMethods, PyWeakrefReference};

use crate::argument::{self, DeviceId};
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::partition::{Live, Partition};
use crate::report;
use crate::request::{Keywords, Request};
use crate::torch;

/// Partitions by name, in the order of the request.
///
/// `with partition(...) as parts:` closes all of them at the end of the block; `with parts["decode"]:` enters one.
#[pyclass(frozen, mapping, weakref, module = "green_ctx_torch")]
pub(crate) struct Partitions {
    /// From names to [`Partition`].
    parts: Py<PyDict>,
}

impl Partitions {
    pub(crate) fn new(py: Python<'_>, living: Vec<Arc<Live>>) -> PyResult<Partitions> {
        let parts = PyDict::new(py);
        for live in living {
            let part = Partition::new(live);
            parts.set_item(part.name().to_owned(), part.into_pyobject(py)?)?;
        }
        Ok(Partitions { parts: parts.unbind() })
    }

    pub(crate) fn each(&self, py: Python<'_>) -> PyResult<Vec<Py<Partition>>> {
        let parts = self.parts.bind(py).values();
        parts.iter().map(|part| Ok(part.cast_into::<Partition>()?.unbind())).collect()
    }

    /// Closes each of them, without asking torch to free what it keeps for them.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.each(py)?.iter().for_each(|part| part.get().end());
        Ok(())
    }

    fn names(&self, py: Python<'_>) -> String {
        let names = self.parts.bind(py).keys();
        names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
    }
}

#[pymethods]
impl Partitions {
    pub(crate) fn __getitem__(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        match self.parts.bind(py).get_item(name)? {
            Some(part) => Ok(part.unbind()),
            None => {
                let names = self.names(py);
                let reason = format!("there is no partition {}; there are {names}", name.str()?);
                Err(PyKeyError::new_err(reason))
            }
        }
    }

    pub(crate) fn __len__(&self, py: Python<'_>) -> usize {
        self.parts.bind(py).len()
    }

    pub(crate) fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.parts.bind(py).try_iter()
    }

    pub(crate) fn __contains__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.parts.bind(py).contains(name)
    }

    /// The names.
    pub(crate) fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parts.bind(py).call_method0("keys")
    }

    /// The partitions.
    pub(crate) fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parts.bind(py).call_method0("values")
    }

    /// Names and partitions.
    pub(crate) fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parts.bind(py).call_method0("items")
    }

    /// The partition of a name, or a default where there is none.
    #[pyo3(signature = (key, /, default=None))]
    pub(crate) fn get(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        default: Option<Py<PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.parts.bind(py).get_item(key)?.map(Bound::unbind).or(default))
    }

    /// Closes each of them.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)?;
        torch::release_workspaces(py)
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    /// Closes each of them.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(argument::not_copied(
            "partitions",
            "copy the division that partition() was called with",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.parts)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Partitions {}>", self.parts.bind(py).values().repr()?))
    }
}

/// Divides a device into named partitions, each with a count of SMs, a share, or "rest" for all that
/// remain:
///
///     partition({"decode": 16, "prefill": "rest"})
///     partition({"decode": "32..", "prefill": "..100"})
///
/// No other partition of the process uses the SMs of its floor: all 16, or 32 of "32..". Above it a
/// share may use SMs that others use too, up to its ceiling. A count that the device cannot give is
/// rounded up: `requested` is what was asked for, `sm_count` what it became. With `fine` the device
/// is cut as finely as the driver can, where clusters of blocks may not fit. `dry_run` says what there
/// would be.
///
/// The other keywords are one value for all partitions, or a mapping by name:
///
/// - `priority`: of the partition's stream; lower numbers run first, 0 to -5 on an H200.
/// - `workqueue`: queues of its own, "balanced" or "device_ctx", or with a limit, ("balanced", 4): how many
///   streams' work is expected to go on at the same time. CUDA 13.1, not yet run on hardware.
/// - `coscheduled`: how many SMs are scheduled together, so that clusters fit; 0 is the device's own
///   count. `preferred_coscheduled`: into how large pieces the driver may merge them. `backfill`: whether
///   SMs that are not scheduled together may fill a partition up. They need CUDA 13.1, have not been run
///   on hardware yet, round nothing, and take plain counts of a device of which no SMs are held.
/// - `locality_domain`: the number of the domain that the SMs are taken from, or "any". As `coscheduled`,
///   from CUDA 13.4 on. `supplemental`: whether a larger domain gives more SMs than the driver counts for
///   each, from CUDA 13.5 on.
///
/// With `replace`, the call first closes every partition that earlier calls of `partition` made on the device and
/// that is still open, for notebooks whose cells run again. It closes nothing if the request is invalid or this thread
/// is inside of one of them. Plan sets and GreenContexts stay open.
///
/// ValueError for what the device cannot give, RuntimeError where other partitions hold what is
/// needed, the driver is too old or there is no usable driver. Nothing is created then.
#[pyfunction]
#[pyo3(signature = (division, device=DeviceId::Current, *, replace=false, fine=false, coscheduled=None,
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None,
    priority=None),
    text_signature = "(division, device=None, *, replace=False, fine=False, coscheduled=None, \
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None, \
    priority=None)")]
#[allow(clippy::too_many_arguments, reason = "Python's keywords")]
pub(crate) fn partition(
    py: Python<'_>,
    division: &Bound<'_, PyAny>,
    device: DeviceId,
    replace: bool,
    fine: bool,
    coscheduled: Option<&Bound<'_, PyAny>>,
    preferred_coscheduled: Option<&Bound<'_, PyAny>>,
    backfill: Option<&Bound<'_, PyAny>>,
    locality_domain: Option<&Bound<'_, PyAny>>,
    supplemental: Option<&Bound<'_, PyAny>>,
    workqueue: Option<&Bound<'_, PyAny>>,
    priority: Option<&Bound<'_, PyAny>>,
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
    let open = open_on(py, device)?;
    if replace && !open.is_empty() {
        check_replacement(py, device, &request, &open)?;
        open.iter().for_each(|part| part.get().end());
        torch::release_workspaces(py)?;
    }
    let names: Vec<_> = open.iter().map(|part| part.get().name().to_owned()).collect();
    let living =
        blocking(py, move || make(device, &request).map_err(|fault| say_how(fault, &names)))?;
    let parts = Partitions::new(py, living)?;
    let made = made(py)?;
    for part in parts.each(py)? {
        made.append(PyWeakrefReference::new(part.bind(py))?)?;
    }
    Ok(parts)
}

/// Weak references to the partitions that [`partition`] made.
fn made(py: Python<'_>) -> PyResult<&Bound<'_, PyList>> {
    static MADE: PyOnceLock<Py<PyList>> = PyOnceLock::new();
    let made = MADE.get_or_try_init(py, || Ok::<_, PyErr>(PyList::empty(py).unbind()))?;
    Ok(made.bind(py))
}

/// The partitions that [`partition`] made on a device and that are open.
fn open_on(py: Python<'_>, device: i64) -> PyResult<Vec<Py<Partition>>> {
    let made = made(py)?;
    let (mut open, mut here) = (Vec::new(), Vec::new());
    for weak in made.iter() {
        let Some(part) = weak.cast::<PyWeakrefReference>()?.upgrade_as::<Partition>()? else {
            continue;
        };
        if part.get().is_closed() {
            continue;
        }
        if i64::from(part.get().device()) == device {
            here.push(part.unbind());
        }
        open.push(weak);
    }
    // Those that are gone or closed are forgotten.
    made.set_slice(0, made.len(), PyList::new(py, open)?.as_any())?;
    Ok(here)
}

/// Refuses to close partitions for a request that no device can meet, or that this thread is inside of.
fn check_replacement(
    py: Python<'_>,
    device: i64,
    request: &Request,
    open: &[Py<Partition>],
) -> PyResult<()> {
    if let Some(entered) = open.iter().find(|part| part.get().is_entered()) {
        return Err(Fault::state(format!(
            "this thread is inside of partition {}, which replace=True would close; leave its block first",
            entered.get().name()
        ))
        .into());
    }
    blocking(py, move || {
        let device = self::device(device)?;
        request.workqueues(&device)?;
        match device.resources().sm()?.dry_run(request.split()).map_err(Fault::from) {
            Err(fault) if fault.is_value() => Err(fault),
            // What others hold now may be free once the former partitions are closed.
            _ => Ok(()),
        }
    })
}

/// Adds how to go on where partitions of an earlier call hold what is needed.
fn say_how(fault: Fault, open: &[String]) -> Fault {
    let is_shortage =
        matches!(fault.library(), Some(Error::NotEnoughSms(_) | Error::CutInUse { .. }));
    if !is_shortage || fault.is_value() || open.is_empty() {
        return fault;
    }
    Fault::state(format!(
        "{}; an earlier call of partition made {}, which are open: close them with close(), or pass replace=True",
        fault.message(),
        open.join(", ")
    ))
}

/// Makes the partitions of a request in which each one's stream has a priority, in the order of the names.
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
        Live::with_stream(context, options).map(Arc::new)
    });
    let mut living = living.collect::<Result<Vec<_>, _>>()?;
    living.sort_by_key(|live| place(live.name()));
    living.iter().for_each(report::note_partition);
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
    let provisions = groups.map(|group| -> Provision {
        match workqueues.iter().find(|(name, _)| *name == group.name()) {
            Some((_, workqueue)) => group.with_workqueue(workqueue.clone()),
            None => group.into(),
        }
    });
    let contexts = provisions.map(|provision| Ok(device.create_context(provision)?));
    let contexts = contexts.collect::<green_ctx::Result<Vec<Context>>>()?;
    let living = contexts.into_iter().map(|context| {
        let options = StreamOptions::default().priority(request.priority(context.label()));
        Live::with_stream(context, options).map(Arc::new)
    });
    let mut living = living.collect::<Result<Vec<_>, _>>()?;
    living.sort_by_key(|live| request.division.place(live.name()));
    living.iter().for_each(report::note_partition);
    Ok(living)
}

/// That none of a device's SMs remain for a partition, beside others that are given so many.
pub(crate) fn no_rest(rest: &str, given: u32, total: u32) -> Fault {
    match given == total {
        true => Fault::value(format!(
            "no SMs remain for {rest}: the others take all {total} of the device"
        )),
        false => Fault::state(format!(
            "no SMs remain for {rest}: what the others leave of the device's {total} is held \
             or shared already"
        )),
    }
}

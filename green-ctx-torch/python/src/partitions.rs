//! Several partitions by name, and how they are made.

use std::sync::Arc;

use green_ctx::{Device, SplitRequest, StreamOptions, context::Context, resource::Provision};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};

use crate::argument::DeviceId;
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::partition::{Live, Partition};
use crate::report;
use crate::request::{Keywords, Request};
use crate::torch;

/// Partitions by name, in the order in which they were asked for.
#[pyclass(frozen, mapping, module = "green_ctx_torch")]
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

    fn names(&self, py: Python<'_>) -> String {
        let names = self.parts.bind(py).keys();
        names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
    }
}

#[pymethods]
impl Partitions {
    fn __getitem__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match self.parts.bind(py).get_item(name)? {
            Some(part) => Ok(part.unbind()),
            None => {
                let names = self.names(py);
                let reason = format!("there is no partition {}; there are {names}", name.str()?);
                Err(PyKeyError::new_err(reason))
            }
        }
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.parts.bind(py).len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.parts.bind(py).try_iter()
    }

    fn __contains__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.parts.bind(py).contains(name)
    }

    /// The names.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parts.bind(py).call_method0("keys")
    }

    /// The partitions.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parts.bind(py).call_method0("values")
    }

    /// Names and partitions.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parts.bind(py).call_method0("items")
    }

    /// The partition of a name, or a default where there is none.
    #[pyo3(signature = (key, /, default=None))]
    fn get(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        default: Option<Py<PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.parts.bind(py).get_item(key)?.map(Bound::unbind).or(default))
    }

    /// Closes each of them.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.each(py)?.iter().for_each(|part| part.get().end());
        torch::release_workspaces(py)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        let names = self.parts.bind(py).keys();
        let first =
            names.iter().next().map_or_else(|| "\"a\"".to_owned(), |name| format!("{name:?}"));
        Err(PyTypeError::new_err(format!(
            "partitions are entered one at a time, as in `with parts[{first}]:`; to close them all at the \
             end of a block, write `with contextlib.closing(parts):`"
        )))
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {}

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
/// ValueError for what the device cannot give, RuntimeError where other partitions hold what is
/// needed, the driver is too old or there is no usable driver. Nothing is created then.
#[pyfunction]
#[pyo3(signature = (division, device=DeviceId::Current, *, fine=false, coscheduled=None,
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None,
    priority=None),
    text_signature = "(division, device=None, *, fine=False, coscheduled=None, \
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None, \
    priority=None)")]
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
    let living = blocking(py, move || make(device, &request))?;
    Partitions::new(py, living)
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

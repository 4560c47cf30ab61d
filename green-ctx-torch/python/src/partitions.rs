//! Several partitions by name, and how they are made.

use std::sync::Arc;

use green_ctx::context::Context;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};

use crate::argument::DeviceId;
use crate::device::device;
use crate::division::Division;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::partition::{Live, Partition};
use crate::report;

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
        Ok(())
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
/// is cut as finely as the driver can, where clusters of blocks may not fit.
///
/// ValueError for what the device cannot give, RuntimeError where other partitions hold what is
/// needed or there is no usable driver. Nothing is created then.
#[pyfunction]
#[pyo3(signature = (division, device=DeviceId::Current, *, fine=false),
    text_signature = "(division, device=None, *, fine=False)")]
pub(crate) fn partition(
    py: Python<'_>,
    division: &Bound<'_, PyAny>,
    device: DeviceId,
    fine: bool,
) -> PyResult<Partitions> {
    let (division, device) = (Division::read(division)?, device.ordinal(py)?);
    let living = blocking(py, move || make(device, &division, fine))?;
    Partitions::new(py, living)
}

fn make(ordinal: i64, division: &Division, fine: bool) -> Result<Vec<Arc<Live>>, Fault> {
    let device = device(ordinal)?;
    let sms = device.resources().sm()?;
    let split = sms.split(division.request(fine))?;
    if let (Some(rest), None) = (division.rest(), &split.remainder) {
        let given: u32 = split.groups.iter().map(|group| group.sm_count()).sum();
        let total = sms.sm_count();
        return Err(match given == total {
            true => Fault::value(format!(
                "no SMs remain for {rest}: the others take all {total} of the device"
            )),
            false => Fault::state(format!(
                "no SMs remain for {rest}: what the others leave of the device's {total} is held \
                 or shared already"
            )),
        });
    }
    let groups = split.groups.into_iter().chain(split.remainder);
    let contexts = groups.map(|group| Ok(device.create_context(group)?));
    let contexts = contexts.collect::<green_ctx::Result<Vec<Context>>>()?;
    let living = contexts.into_iter().map(|context| Live::own(context).map(Arc::new));
    let mut living = living.collect::<Result<Vec<_>, _>>()?;
    living.sort_by_key(|live| division.place(live.name()));
    living.iter().for_each(report::note_partition);
    Ok(living)
}

//! Shares: the SMs that a partition has for itself, and the most that it may use.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::argument::Whole;
use crate::fault::Fault;

/// The SMs that no other partition may use, its floor, and the most that the partition may use, its ceiling; None is no
/// bound. The SMs between the two may be shared.
///
/// `Share("32..")`, `Share(32)` and `Share(floor=32)` are the same. Text is `"32.."`, `"16..48"`, `"..100"`, `".."` or
/// an exclusive count, `"16"`. A share equals text that spells it: `Share(32) == "32.."`. Its hash is that of
/// `str(share)`.
#[pyclass(frozen, module = "green_ctx_torch")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) green_ctx::Share);

impl Share {
    /// Reads text.
    pub(crate) fn parse(text: &str) -> Result<Share, Fault> {
        let share = text
            .parse()
            .map_err(|error: green_ctx::resource::ShareError| Fault::value(error.to_string()))?;
        Ok(Share(share))
    }
}

/// A share's floor, or the whole share as text.
enum Floor {
    Count(Whole),
    Text(String),
}

impl FromPyObject<'_, '_> for Floor {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Floor> {
        match object.cast::<PyString>() {
            Ok(text) => Ok(Floor::Text(text.to_string_lossy().into_owned())),
            Err(_) => Ok(Floor::Count(object.extract()?)),
        }
    }
}

#[pymethods]
impl Share {
    #[new]
    #[pyo3(signature = (floor=Floor::Count(Whole(0)), ceiling=None), text_signature = "(floor=0, ceiling=None)")]
    fn new(floor: Floor, ceiling: Option<Whole>) -> PyResult<Share> {
        let text = match (floor, ceiling) {
            (Floor::Text(text), None) => text,
            (Floor::Text(_), Some(_)) => {
                let reason = "a share as text has its ceiling in the text, as in Share(\"32..48\")";
                return Err(PyTypeError::new_err(reason));
            }
            (Floor::Count(Whole(floor)), None) => format!("{floor}.."),
            (Floor::Count(Whole(floor)), Some(Whole(ceiling))) => format!("{floor}..{ceiling}"),
        };
        Ok(Share::parse(&text)?)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> Option<bool> {
        if let Ok(other) = other.cast::<Share>() {
            return Some(self == other.get());
        }
        let text = other.cast::<PyString>().ok()?;
        Some(Share::parse(&text.to_string_lossy()).is_ok_and(|other| *self == other))
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, &self.0.to_string()).hash()
    }

    /// Copies and pickles as its text.
    fn __reduce__<'py>(this: &Bound<'py, Self>) -> (Bound<'py, PyType>, (String,)) {
        (this.get_type(), (this.get().0.to_string(),))
    }

    /// The SMs that nobody else may use; None where they depend on what is free.
    #[getter]
    fn floor(&self) -> Option<u32> {
        self.0.floor()
    }

    /// The most SMs that it may use; None for no bound.
    #[getter]
    fn ceiling(&self) -> Option<u32> {
        self.0.ceiling()
    }

    /// The share as text.
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        match (self.0.is_exclusive(), self.0.floor(), self.0.ceiling()) {
            (false, Some(floor), None) => format!("Share(floor={floor})"),
            (false, Some(floor), Some(ceiling)) => {
                format!("Share(floor={floor}, ceiling={ceiling})")
            }
            _ => format!("Share('{}')", self.0),
        }
    }
}

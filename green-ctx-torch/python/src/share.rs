//! Shares: the floor and the ceiling of a partition.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString, PyType};

use crate::argument::{self, Whole};
use crate::fault::{Fault, kind};

/// The share of the SMs that a partition gets: a floor and a ceiling.
///
/// The floor is the number of SMs that no other partition may use. The ceiling is the maximum number of SMs that the
/// partition may use; None sets no ceiling. Other partitions may also use the SMs between the floor and the ceiling.
///
///     Share(32)           # "32..": at least 32 SMs, and every SM that is in no other floor
///     Share(16, 48)       # "16..48": at least 16 SMs, and at most 48
///     Share("25%..")      # a floor of 25 % of the SMs that are divided
///
/// The first argument is a count, or text such as `"32.."`, `"16..48"`, `"..100"`, `".."`, `"16"`, `"25%.."` or
/// `"rest"`. The text `"16"` is exclusive: floor and ceiling are both 16. Percentages are whole numbers, and
/// refer to the SMs that are divided.
///
/// A share equals every text that describes it: `Share(32) == "32.."`. The hash of a share is the hash of
/// `str(share)`, so a dictionary finds a share only by exactly that text. For example, `str(Share("16..48"))` is
/// `"16..=48"`, so a look-up with `"16..48"` fails.
///
/// Raises ValueError if the text is not a share, if the ceiling is 0, or if the floor is above the ceiling.
#[pyclass(frozen, module = "green_ctx_torch")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) green_ctx::Share);

/// The first argument of `Share`.
enum Floor {
    Count(Whole),
    Text(String),
}

impl<'py> FromPyObject<'_, 'py> for Floor {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Floor> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Floor::Text(text.to_string_lossy().into_owned()));
        }
        if object.is_exact_instance_of::<PyInt>() {
            return Ok(Floor::Count(object.extract()?));
        }
        let wrong = || {
            PyTypeError::new_err(format!(
                "expected a whole number or text, such as 16 or \"32..\", got {}",
                kind(&object)
            ))
        };
        Ok(Floor::Count(argument::index(&object, wrong)?.extract()?))
    }
}

impl Share {
    /// Parses text.
    pub(crate) fn parse(text: &str) -> Result<Share, Fault> {
        let share = text
            .parse()
            .map_err(|error: green_ctx::resource::ShareError| Fault::value(error.to_string()))?;
        Ok(Share(share))
    }
}

#[pymethods]
impl Share {
    #[new]
    #[pyo3(signature = (floor=Floor::Count(Whole(0)), ceiling=None),
        text_signature = "(floor=0, ceiling=None)")]
    fn new(floor: Floor, ceiling: Option<Whole>) -> PyResult<Share> {
        let text = match (floor, ceiling) {
            (Floor::Text(text), None) => text,
            (Floor::Text(text), Some(_)) => {
                return Err(PyTypeError::new_err(format!(
                    "the share {text:?} already includes its ceiling; write Share({text:?}), or give two \
                     whole numbers, as in Share(16, 48)"
                )));
            }
            (Floor::Count(Whole(floor)), None) => format!("{floor}.."),
            (Floor::Count(Whole(floor)), Some(Whole(ceiling))) => format!("{floor}..{ceiling}"),
        };
        Ok(Share::parse(&text)?)
    }

    /// The number of SMs that no other partition may use; None if the floor is a percentage or depends on the number
    /// of free SMs.
    #[getter]
    fn floor(&self) -> Option<u32> {
        self.0.floor()
    }

    /// The maximum number of SMs that the partition may use; None if there is no ceiling, or if the ceiling is a
    /// percentage.
    #[getter]
    fn ceiling(&self) -> Option<u32> {
        self.0.ceiling()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let is_equal = if let Ok(share) = other.cast::<Share>() {
            self == share.get()
        } else if let Ok(text) = other.cast::<PyString>() {
            Share::parse(&text.to_string_lossy()).is_ok_and(|share| *self == share)
        } else {
            return Ok(py.NotImplemented());
        };
        Ok(is_equal.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, &self.__str__()).hash()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (String,)) {
        (py.get_type::<Share>(), (self.__str__(),))
    }

    /// Returns the share as text.
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let text = self.__str__();
        match (self.0.is_exclusive() || text.contains('%'), self.0.floor(), self.0.ceiling()) {
            (false, Some(floor), None) => format!("Share(floor={floor})"),
            (false, Some(floor), Some(ceiling)) => {
                format!("Share(floor={floor}, ceiling={ceiling})")
            }
            _ => format!("Share({text:?})"),
        }
    }
}

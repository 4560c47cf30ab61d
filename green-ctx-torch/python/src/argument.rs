//! Arguments of the drop-ins, of which the originals say what raises what.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

/// A whole number: what no number of 64 bits is, is the greatest or the least of them, and out of
/// every range.
#[derive(Clone, Copy)]
pub(crate) struct Whole(pub(crate) i64);

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Whole> {
        let wrong = || {
            let kind = object.get_type();
            let kind = kind.name().map_or_else(|_| kind.to_string(), |name| name.to_string());
            PyTypeError::new_err(format!("it must be a whole number such as 16, and is a {kind}"))
        };
        if object.is_instance_of::<PyBool>() {
            return Err(wrong());
        }
        // Whatever stands for a whole number does, NumPy's too.
        let whole = object.call_method0("__index__").map_err(|_| wrong())?;
        match whole.extract() {
            Ok(whole) => Ok(Whole(whole)),
            Err(_) if whole.lt(0)? => Ok(Whole(i64::MIN)),
            Err(_) => Ok(Whole(i64::MAX)),
        }
    }
}

/// Which device an argument names.
#[derive(Clone, Copy)]
pub(crate) enum DeviceId {
    /// The one that is current in torch: the first, where torch is not imported.
    Current,
    Ordinal(i64),
}

impl DeviceId {
    pub(crate) const FIRST: DeviceId = DeviceId::Ordinal(0);

    pub(crate) fn ordinal(self, py: Python<'_>) -> PyResult<i64> {
        match self {
            DeviceId::Ordinal(ordinal) => Ok(ordinal),
            DeviceId::Current => {
                let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
                match modules.get_item("torch")?.filter(|torch| !torch.is_none()) {
                    None => Ok(0),
                    Some(torch) => torch.getattr("cuda")?.call_method0("current_device")?.extract(),
                }
            }
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for DeviceId {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<DeviceId> {
        match object.is_none() {
            true => Ok(DeviceId::Current),
            false => Ok(DeviceId::Ordinal(object.extract::<Whole>()?.0)),
        }
    }
}

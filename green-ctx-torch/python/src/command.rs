//! The command `green-ctx`, as a Python function.

use std::ffi::OsString;

use green_ctx::Driver;
use green_ctx_report::{Info, to_json};
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::code::{Code, import};
use crate::gil::blocking;

/// Returns a dict that describes the driver, the devices, and the ways to split each device. The dict has the fields
/// of `green-ctx --json info`. `device` restricts the description to one device. Under a reserve, each device has a
/// field `reserve` with the number of reserved SMs (`sm_count`) and of the other SMs (`rest`).
///
///     info()["driver"]["version"]     # such as "13.0"
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn info(py: Python<'_>, device: Option<DeviceId>) -> PyResult<Bound<'_, PyAny>> {
    let device = device.map(|device| device.ordinal(py)).transpose()?;
    let json = blocking(py, move || match device {
        None => Ok(to_json(&Info::of(&Driver::load()?, None)?)),
        Some(ordinal) => {
            let device = crate::device::device(ordinal)?;
            Ok(to_json(&Info::of(device.driver(), Some(device.ordinal()))?))
        }
    })?;
    import(py, "json")?.run_method("loads", (json,))
}

/// Runs the command and returns its exit status. `arguments` does not contain the program's name.
#[pyfunction]
pub(crate) fn _main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| green_ctx_cli::run(std::iter::once(OsString::from("green-ctx")).chain(arguments)))
}

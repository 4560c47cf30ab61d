//! The look-up of devices by ordinal, and the check for forked processes.

use std::sync::OnceLock;

use green_ctx::{Device, Driver};
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::fault::Fault;

/// Returns the installed driver's device with this ordinal. Loads the driver on the first call.
pub(crate) fn device(ordinal: i64) -> Result<Device, Fault> {
    let known = u32::try_from(ordinal).map_err(|_| {
        let ordinal = match ordinal {
            // `Whole` clamps to these, so the caller's number may be further from 0.
            i64::MIN | i64::MAX => "with such a number".to_owned(),
            ordinal => ordinal.to_string(),
        };
        Fault::value(format!("there is no device {ordinal}; devices are numbered from 0"))
    })?;
    let driver = Driver::load()?;
    SINGLE.get_or_init(|| driver.devices().nth(1).is_none());
    Ok(driver.device(known)?)
}

/// Returns the ordinal of a device argument.
#[pyfunction]
pub(crate) fn _ordinal(py: Python<'_>, dev: DeviceId) -> PyResult<i64> {
    dev.ordinal(py)
}

/// Returns an error in a forked child if the parent created the object that the caller wants to use. CUDA does not
/// survive a fork.
///
/// Every open Python object calls this function before it gives access to its `green_ctx` object. A closed Python
/// object does not call this function.
pub(crate) fn check_process(device: &Device) -> Result<(), Fault> {
    device.driver().device(device.ordinal())?;
    Ok(())
}

/// Whether the driver has exactly one device. Set when the driver is loaded.
static SINGLE: OnceLock<bool> = OnceLock::new();

/// Returns whether the driver is known to have exactly one device. A single device is always torch's current device.
pub(crate) fn is_single() -> bool {
    SINGLE.get().is_some_and(|single| *single)
}

//! Locality domains: parts of a device whose SMs are close to the same part of its memory.

use green_ctx::{Device, Driver, Error, Version};
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::device::device;
use crate::fault::{Fault, Reason};
use crate::gil::blocking;
use crate::limits::runtime;

/// The first driver version with locality domains.
const OLDEST: Version = Version::new(13, 4);

/// Returns whether the installed driver supports locality domains.
fn is_known() -> Result<bool, Fault> {
    match Driver::load() {
        Ok(driver) => Ok(driver.version() >= OLDEST),
        Err(error @ Error::Forked) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// Returns the number of locality domains of a device. The driver must support locality domains.
fn count(device: &Device) -> Result<u32, Fault> {
    Ok(device.locality_domains().map_err(runtime)?.count)
}

/// Returns an error for a domain that the device does not have. If the driver is too old, this function returns no
/// error, because the later split returns one.
pub(crate) fn check(device: &Device, domain: u32) -> Result<(), Fault> {
    if !is_known()? {
        return Ok(());
    }
    let (count, ordinal) = (count(device)?, device.ordinal());
    if domain < count {
        return Ok(());
    }
    Err(Fault::value(format!(
        "locality_domain_ids names domain {domain}, but the domains of device {ordinal} are 0 to {}",
        count - 1
    )))
}

/// Returns an error if the driver is too old to report the locality domains of SMs.
pub(crate) fn ensure_known() -> Result<(), Fault> {
    match is_known()? {
        true => Ok(()),
        false => Err(Fault::new(
            Reason::Unsupported,
            "locality domains need a driver of CUDA 13.4 or newer; green_ctx_torch.info() shows the \
             installed version",
        )),
    }
}

/// Returns the number of locality domains of a device. If the driver is older than CUDA 13.4, it does not support
/// locality domains, and the result is 1.
#[pyfunction]
#[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
pub(crate) fn get_num_locality_domains(py: Python<'_>, device_id: DeviceId) -> PyResult<u32> {
    let ordinal = device_id.ordinal(py)?;
    blocking(py, move || match is_known()? {
        true => count(&device(ordinal).map_err(runtime)?),
        false => Ok(1),
    })
}

/// Returns whether a device has more than one locality domain.
#[pyfunction]
#[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
pub(crate) fn is_localization_supported(py: Python<'_>, device_id: DeviceId) -> PyResult<bool> {
    Ok(get_num_locality_domains(py, device_id)? > 1)
}

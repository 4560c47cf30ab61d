//! Locality domains: parts of a device whose SMs are near to one memory.

use green_ctx::{Device, Driver, Error, Version};
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::device::device;
use crate::fault::{Fault, Reason};
use crate::gil::blocking;
use crate::limits::runtime;

/// The first driver that knows locality domains.
const OLDEST: Version = Version::new(13, 4);

/// Returns whether there is a driver that knows locality domains.
fn is_known() -> Result<bool, Fault> {
    match Driver::load() {
        Ok(driver) => Ok(driver.version() >= OLDEST),
        Err(error @ Error::Forked) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// How many domains a device has, of a driver that knows them.
fn count(device: &Device) -> Result<u32, Fault> {
    Ok(device.locality_domains().map_err(runtime)?.count)
}

/// Refuses a domain that a device does not have. What the driver is too old for, the split refuses.
pub(crate) fn check(device: &Device, domain: u32) -> Result<(), Fault> {
    if !is_known()? {
        return Ok(());
    }
    let (count, ordinal) = (count(device)?, device.ordinal());
    if domain < count {
        return Ok(());
    }
    Err(Fault::value(format!(
        "locality_domain_ids names domain {domain}, and those of device {ordinal} are 0 to {}",
        count - 1
    )))
}

/// That the driver is too old to say which domain SMs are of.
pub(crate) fn ensure_known() -> Result<(), Fault> {
    match is_known()? {
        true => Ok(()),
        false => Err(Fault::new(
            Reason::Unsupported,
            "locality domains need a driver of CUDA 13.4 or newer; green_ctx_torch.info() says which is \
             installed",
        )),
    }
}

/// How many locality domains a device has: 1 where the driver knows none, which is before CUDA 13.4.
#[pyfunction]
#[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
pub(crate) fn get_num_locality_domains(py: Python<'_>, device_id: DeviceId) -> PyResult<u32> {
    let ordinal = device_id.ordinal(py)?;
    blocking(py, move || match is_known()? {
        true => count(&device(ordinal).map_err(runtime)?),
        false => Ok(1),
    })
}

/// Whether a device has more than one locality domain.
#[pyfunction]
#[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
pub(crate) fn is_localization_supported(py: Python<'_>, device_id: DeviceId) -> PyResult<bool> {
    Ok(get_num_locality_domains(py, device_id)? > 1)
}

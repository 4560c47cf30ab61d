//! The driver and the device, as every answer names them.

use green_ctx::driver::DriverInfo;
use green_ctx::resource::ShareKind;
use green_ctx::{Device, Driver, Result, Share};
use serde::Serialize;

/// The driver in JSON.
#[derive(Serialize)]
pub struct DriverObject {
    kind: &'static str,
    version: String,
    profile: Option<String>,
}

impl DriverObject {
    /// The object of a driver.
    #[must_use]
    pub fn of(driver: &Driver) -> DriverObject {
        DriverObject::from(driver.info())
    }
}

impl From<DriverInfo> for DriverObject {
    fn from(info: DriverInfo) -> DriverObject {
        DriverObject {
            kind: if info.is_simulated() { "simulated" } else { "cuda" },
            version: info.version.to_string(),
            profile: info.profile,
        }
    }
}

/// A device in JSON.
#[derive(Serialize)]
pub struct DeviceObject {
    /// The number that CUDA gives it; `None` of a device that a file names.
    pub ordinal: Option<u32>,
    /// The name.
    pub name: String,
    /// How many SMs it has.
    pub sm_count: u32,
    /// The compute capability, such as `9.0`.
    pub compute_capability: String,
}

impl DeviceObject {
    /// The object of a device.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn of(device: &Device) -> Result<DeviceObject> {
        Ok(DeviceObject {
            ordinal: Some(device.ordinal()),
            name: device.name()?,
            sm_count: device.sm_count()?,
            compute_capability: device.compute_capability()?.to_string(),
        })
    }
}

/// The lines that every text output begins with.
#[must_use]
pub fn heading(driver: &DriverInfo, device: &DeviceObject) -> String {
    let DeviceObject { ordinal, name, sm_count, compute_capability } = device;
    let ordinal = ordinal.map_or_else(String::new, |ordinal| format!("{ordinal}: "));
    format!(
        "driver  {driver}\ndevice  {ordinal}{name}, {sm_count} SMs, compute capability {compute_capability}\n"
    )
}

/// The SMs that a share asks for, as `requested` in JSON: `null` for a share that asks for no count.
pub(crate) fn count(share: Share) -> Option<u32> {
    match share.kind() {
        ShareKind::Count(count) => Some(count),
        ShareKind::Percent(_)
        | ShareKind::Between { .. }
        | ShareKind::Regular
        | ShareKind::Rest => None,
    }
}

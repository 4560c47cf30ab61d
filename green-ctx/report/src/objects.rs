//! The driver and the device, as they appear in every output.

use std::fmt;

use green_ctx::driver::DriverInfo;
use green_ctx::resource::ShareKind;
use green_ctx::{Device, Driver, Result, Share};
use serde::Serialize;

/// The JSON object that describes a driver.
#[derive(Serialize)]
pub struct DriverObject {
    kind: &'static str,
    version: String,
    profile: Option<String>,
}

impl DriverObject {
    /// Returns the object for a driver.
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

/// The JSON object that describes a device.
#[derive(Serialize)]
pub struct DeviceObject {
    /// The CUDA device ordinal; `None` if the device was read from a file.
    pub ordinal: Option<u32>,
    /// The name.
    pub name: String,
    /// The number of SMs.
    pub sm_count: u32,
    /// The compute capability, such as `9.0`.
    pub compute_capability: String,
    /// The reserve; `None` if no SMs are reserved. JSON has this field only under a reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<ReserveObject>,
}

/// The JSON object that describes the reserve of a device.
#[derive(Serialize)]
pub struct ReserveObject {
    /// The number of SMs that partitions alone may use.
    pub sm_count: u32,
    /// The number of the other SMs, which work outside of partitions may use too.
    pub rest: u32,
}

impl ReserveObject {
    /// Returns the object for a device with `total` SMs, or `None` if work outside of partitions may use all of them.
    pub(crate) fn of(total: u32, rest: u32) -> Option<ReserveObject> {
        (rest < total).then(|| ReserveObject { sm_count: total - rest, rest })
    }
}

impl fmt::Display for ReserveObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReserveObject { sm_count, rest } = self;
        write!(f, "{sm_count} for partitions alone, {rest} also for work outside of partitions")
    }
}

impl DeviceObject {
    /// Returns the object for a device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn of(device: &Device) -> Result<DeviceObject> {
        let sm_count = device.sm_count()?;
        Ok(DeviceObject {
            ordinal: Some(device.ordinal()),
            name: device.name()?,
            sm_count,
            compute_capability: device.compute_capability()?.to_string(),
            reserve: ReserveObject::of(sm_count, sm_count - device.reserved_sm_count()?),
        })
    }
}

/// Returns the first lines of every text output.
#[must_use]
pub fn heading(driver: &DriverInfo, device: &DeviceObject) -> String {
    let DeviceObject { ordinal, name, sm_count, compute_capability, reserve } = device;
    let reserve = reserve.as_ref().map_or_else(String::new, |reserve| format!(" ({reserve})"));
    let ordinal = ordinal.map_or_else(String::new, |ordinal| format!("{ordinal}: "));
    format!(
        "driver  {driver}\ndevice  {ordinal}{name}, {sm_count} SMs{reserve}, compute capability {compute_capability}\n"
    )
}

/// Returns the number of SMs that a share requests. In JSON this number is the field `requested`, which is `null` if
/// the share has no number.
pub(crate) fn count(share: Share) -> Option<u32> {
    match share.kind() {
        ShareKind::Count(count) => Some(count),
        ShareKind::Percent(_)
        | ShareKind::Between { .. }
        | ShareKind::Regular
        | ShareKind::Rest => None,
    }
}

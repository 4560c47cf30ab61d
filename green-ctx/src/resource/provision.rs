//! Contexts made of groups.

use super::obtain::obtain;
use super::workqueue::Workqueue;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::group::SmGroup;
use crate::primary::PrimaryShares;
use crate::trace;

/// What a context is made of: SMs, and a workqueue if it has one of its own.
#[derive(Debug)]
#[must_use = "a context is made of it with `Device::create_context`"]
pub struct Provision {
    pub(crate) group: SmGroup,
    pub(crate) workqueue: Option<Workqueue>,
}

impl From<SmGroup> for Provision {
    fn from(group: SmGroup) -> Provision {
        Provision { group, workqueue: None }
    }
}

impl SmGroup {
    /// Adds a workqueue, for a context that has both ([`Device::create_context`]).
    ///
    /// CUDA 13.1 or newer; not yet run on hardware.
    pub fn with_workqueue(self, workqueue: Workqueue) -> Provision {
        Provision { group: self, workqueue: Some(workqueue) }
    }
}

impl Device {
    /// Creates a green context on a group's SMs, with a workqueue of its own if one is added
    /// ([`SmGroup::with_workqueue`](crate::SmGroup::with_workqueue)). The group comes back from
    /// [`Context::close`], or returns its SMs when the last handle of the context goes.
    ///
    /// The first context of certain SMs takes about 800 µs on an H200 and 4 to 5 MiB of device
    /// memory, which the driver does not give back, and it waits for all work that runs on the device
    /// (measured and recorded with driver 580.159.04). It is used again for every later one of the
    /// same SMs, which a split prefers.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) for another device's group or workqueue, and
    /// [`Error::Driver`](crate::Error::Driver); the group's SMs are free again then.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let device = driver.device(0)?;
    /// let split = device.resources().sm()?.split([16, 24])?;
    /// for group in split.groups {
    ///     let context = device.create_context(group)?;
    ///     println!("a partition of {} SMs", context.sm_count()?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuGreenCtxCreate")]
    pub fn create_context(&self, provision: impl Into<Provision>) -> Result<Context> {
        create(self, provision.into())
    }
}

fn create(device: &Device, provision: Provision) -> Result<Context> {
    let Provision { group, workqueue } = provision;
    if group.device() != device {
        return Err(Error::DeviceMismatch { what: "the group and the context" });
    }
    if workqueue.as_ref().is_some_and(|workqueue| workqueue.device() != device) {
        return Err(Error::DeviceMismatch { what: "the workqueue and the context" });
    }
    trace::span!(
        "create_context",
        device = device.ordinal(),
        group = group.name(),
        sms = group.sm_count()
    );
    device.driver().check_process()?;
    let primary = PrimaryShares::of(device)?;
    let workqueue = workqueue.map(|workqueue| workqueue.config());
    let raw = obtain(device, group.units(), group.placement(), workqueue, group.sm_count())?;
    Ok(Context::of_green(raw, group, workqueue, primary))
}

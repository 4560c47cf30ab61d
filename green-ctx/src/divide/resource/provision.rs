//! Contexts made of groups.

use std::sync::Arc;

use super::obtain::obtain;
use super::workqueue::Workqueue;
use crate::handle::context::{Context, PrimaryShares};
use crate::handle::device::Device;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::green::RawGreen;
use crate::handle::group::SmGroup;
use crate::handle::trace;

/// What a context is made of: SMs, and a workqueue if it has one of its own.
#[derive(Debug)]
#[must_use = "a context is made of it with `Device::create_context`"]
pub struct ContextResources {
    /// The SMs.
    pub group: SmGroup,
    /// The workqueue.
    pub workqueue: Option<Workqueue>,
}

impl From<SmGroup> for ContextResources {
    fn from(group: SmGroup) -> ContextResources {
        ContextResources { group, workqueue: None }
    }
}

impl SmGroup {
    /// Adds a workqueue, for a context that has both ([`Device::create_context`]).
    ///
    /// CUDA 13.1 or newer; not yet run on hardware.
    pub fn with_workqueue(self, workqueue: Workqueue) -> ContextResources {
        ContextResources { group: self, workqueue: Some(workqueue) }
    }
}

impl Device {
    /// Creates a green context on a group's SMs, with a workqueue of its own if one is added
    /// ([`SmGroup::with_workqueue`](crate::resource::SmGroup::with_workqueue)). The group comes back from
    /// [`Context::close`], or returns its SMs when the last handle of the context goes.
    ///
    /// The first context of certain SMs takes about 1 ms on an H200 and 4 to 5 MiB of device
    /// memory, which the driver does not give back, and it waits for all work that runs on the device
    /// (measured and recorded with driver 580.159.04). It is used again for every later one of the
    /// same SMs, which a split prefers.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the group back: [`Error::DeviceMismatch`] for another device's
    /// group or workqueue, [`Error::Forked`], [`Error::Driver`], and [`Error::WrongSmCount`] where the
    /// driver gave other SMs than were asked for.
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
    pub fn create_context(
        &self,
        provision: impl Into<ContextResources>,
    ) -> Result<Context, Refused<Box<ContextResources>>> {
        let provision = provision.into();
        match create(self, &provision) {
            Ok((raw, primary)) => {
                let ContextResources { group, workqueue } = provision;
                let config = workqueue.as_ref().map(Workqueue::config);
                let queues = workqueue.and_then(Workqueue::into_owner);
                Ok(Context::of_green(raw, group, config, queues, primary))
            }
            Err(reason) => Err(Refused { given: Box::new(provision), reason }),
        }
    }
}

/// Makes what a context consists of.
fn create(device: &Device, provision: &ContextResources) -> Result<(RawGreen, Arc<PrimaryShares>)> {
    let ContextResources { group, workqueue } = provision;
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
    let primary = device.primary_shares()?;
    let (units, placement) = (group.units(), group.placement());
    let raw = obtain(device, units, placement, workqueue.as_ref(), group.sm_count())?;
    Ok((raw, primary))
}

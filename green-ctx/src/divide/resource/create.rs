//! Creates contexts from groups. An idle driver context on the same SMs is reused if there is one; otherwise,
//! the driver creates a new context.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{
    CUctx_st, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUgreenCtx_st,
    CUgreenCtxCreate_flags,
};

use super::workqueue::Workqueue;
use crate::handle::context::Context;
use crate::handle::dev_resource::{self, Units};
use crate::handle::device::Device;
use crate::handle::error::call;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::fence::Fence;
use crate::handle::green::{self, Green};
use crate::handle::group::SmGroup;
use crate::handle::raw::Raw;
use crate::handle::trace;
use crate::ledger::Placement;

/// The resources for a context: SMs, and optionally a workqueue.
#[derive(Debug)]
#[must_use = "resources do nothing until passed to `Device::create_context`"]
pub struct ContextResources {
    /// The SMs.
    pub group: SmGroup,
    /// The workqueue; `None` for the driver's default.
    pub workqueue: Option<Workqueue>,
}

impl From<SmGroup> for ContextResources {
    fn from(group: SmGroup) -> ContextResources {
        ContextResources { group, workqueue: None }
    }
}

impl SmGroup {
    /// Adds a workqueue. [`Device::create_context`] creates a context with the SMs and the workqueue.
    ///
    /// Needs CUDA 13.1 or newer; not yet run on hardware.
    pub fn with_workqueue(self, workqueue: Workqueue) -> ContextResources {
        ContextResources { group: self, workqueue: Some(workqueue) }
    }
}

/// Creates a context on a group's SMs. A context that takes turns on its SMs with other contexts gets a fence for its
/// work.
pub(crate) fn context(
    device: &Device,
    resources: ContextResources,
    work: Option<Fence>,
) -> Result<Context, Refused<ContextResources>> {
    let made = check(device, &resources).and_then(|()| {
        trace::span!(
            "create_context",
            device = device.ordinal(),
            group = resources.group.name(),
            sms = resources.group.sm_count()
        );
        device.driver().check_process()?;
        let primary = device.primary_shares()?;
        let (group, workqueue) = (&resources.group, resources.workqueue.as_ref());
        let (units, placement) = (group.units(), group.placement());
        let green = obtain(device, units, placement, workqueue, group.sm_count())?;
        match green.begin_lease(device.driver(), group.fences()) {
            Ok(()) => Ok((green, primary)),
            Err(error) => {
                green::leave(device, green);
                Err(error)
            }
        }
    });
    match made {
        Ok((green, primary)) => {
            let ContextResources { group, workqueue } = resources;
            let queues = workqueue.and_then(Workqueue::into_owner);
            Ok(Context::lease_for(&green, group, queues, primary, work))
        }
        Err(reason) => Err(Refused { given: resources, reason }),
    }
}

/// Fails if the group or the workqueue belongs to another device.
fn check(device: &Device, resources: &ContextResources) -> Result<()> {
    let ContextResources { group, workqueue } = resources;
    if group.device() != device {
        return Err(Error::DeviceMismatch { what: "the group and the context" });
    }
    if workqueue.as_ref().is_some_and(|workqueue| workqueue.device() != device) {
        return Err(Error::DeviceMismatch { what: "the workqueue and the context" });
    }
    Ok(())
}

/// Returns a driver context on these units: an idle one if possible, otherwise a new one.
pub(crate) fn obtain(
    device: &Device,
    units: &Units,
    placement: &Placement,
    workqueue: Option<&Workqueue>,
    sm_count: u32,
) -> Result<Arc<Green>> {
    let idle = if device.has_failed() {
        // After a device failure, no idle context can be used.
        device.release_idle();
        None
    } else {
        let config = workqueue.map(Workqueue::config);
        device.ledger()?.recycler.take(placement, config)
    };
    match idle {
        Some(idle) => {
            trace::event!(DEBUG, sms = sm_count, "a context is reused");
            Ok(idle.raw)
        }
        None => create(device, units, placement, workqueue, sm_count),
    }
}

/// Creates a green context on these units, and checks the SMs that the driver gave it.
fn create(
    device: &Device,
    units: &Units,
    placement: &Placement,
    workqueue: Option<&Workqueue>,
    sm_count: u32,
) -> Result<Arc<Green>> {
    let descriptor = describe(device, units, placement, workqueue)?;
    let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
    let mut raw = ptr::null_mut();
    // SAFETY: `descriptor` was generated for this device just above, and `raw` is a live local. The flag is
    // the one that every driver before 13.3 requires.
    unsafe {
        call!(
            device.functions()?,
            cuGreenCtxCreate(&raw mut raw, descriptor, device.as_raw(), flags)
        )
    }?;
    let green = Raw::new(raw).ok_or_else(|| Error::null("cuGreenCtxCreate"))?;
    device.ledger()?.recycler.count_created();
    match finish(device, sm_count, green) {
        Ok(context) => {
            let config = workqueue.map(Workqueue::config);
            Ok(Green::own(device, (green, context), placement.clone(), config))
        }
        Err(error) => {
            let api = device.functions();
            // SAFETY: the context was created above, and no other code has its handle.
            let destroyed =
                unsafe { api.and_then(|api| call!(api, cuGreenCtxDestroy(green.as_ptr()))) };
            device.driver().report(destroyed);
            Err(error)
        }
    }
}

/// Completes the creation of a green context, and returns its `CUcontext`. If this function fails, the caller must
/// destroy the context.
fn finish(device: &Device, expected: u32, green: Raw<CUgreenCtx_st>) -> Result<Raw<CUctx_st>> {
    let mut raw = ptr::null_mut();
    // SAFETY: the caller created `green` and does not destroy it before this function returns, and `raw` is a
    // live local.
    unsafe { call!(device.functions()?, cuCtxFromGreenCtx(&raw mut raw, green.as_ptr())) }?;
    let context = Raw::new(raw).ok_or_else(|| Error::null("cuCtxFromGreenCtx"))?;
    let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    let resource = dev_resource::of_green(device.functions()?, green, kind)?;
    let found = dev_resource::sm_part(&resource).smCount;
    if found == expected { Ok(context) } else { Err(Error::WrongSmCount { expected, found }) }
}

/// Generates the driver's descriptor of these units and the workqueue.
fn describe(
    device: &Device,
    units: &Units,
    placement: &Placement,
    workqueue: Option<&Workqueue>,
) -> Result<CUdevResourceDesc> {
    let members = placement.members.iter();
    let mut resources: Vec<CUdevResource> = members.map(|index| units.resource(*index)).collect();
    if let Some(workqueue) = workqueue {
        resources.push(workqueue.provide()?);
    }
    dev_resource::describe(device.functions()?, resources)
}

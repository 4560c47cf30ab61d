//! The driver's green contexts: used again, or made.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx_sys::{
    CUdevResource, CUdevResourceDesc, CUdevResourceType, CUgreenCtx_st, CUgreenCtxCreate_flags,
};

use super::workqueue::Workqueue;
use crate::handle::dev_resource;
use crate::handle::dev_resource::Units;
use crate::handle::device::Device;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::green::{self, RawGreen};
use crate::handle::raw::Raw;
use crate::handle::trace;
use crate::ledger::Placement;

/// A context of a group's SMs: one that waits to be used again, or a new one.
pub(super) fn obtain(
    device: &Device,
    units: &Units,
    placement: &Placement,
    workqueue: Option<&Workqueue>,
    sm_count: u32,
) -> Result<RawGreen> {
    let idle = if device.has_failed() {
        // None of them can be used again.
        device.release_idle();
        None
    } else {
        let config = workqueue.map(Workqueue::config);
        device.ledger()?.recycler.take(placement, config)
    };
    match idle {
        Some(idle) => {
            trace::event!(DEBUG, sms = sm_count, "a context is used again");
            Ok(idle.raw)
        }
        None => create(device, units, placement, workqueue, sm_count),
    }
}

/// Creates a green context on a group's SMs, and looks at what the driver gave it.
fn create(
    device: &Device,
    units: &Units,
    placement: &Placement,
    workqueue: Option<&Workqueue>,
    sm_count: u32,
) -> Result<RawGreen> {
    let descriptor = describe(device, units, placement, workqueue)?;
    let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
    let mut raw = ptr::null_mut();
    // SAFETY: the descriptor was generated for this device just now. The flag is the one that every
    // driver before 13.3 requires.
    unsafe {
        call!(
            device.functions()?,
            cuGreenCtxCreate(&raw mut raw, descriptor, device.as_raw(), flags)
        )
    }?;
    let green = Raw::new(raw).ok_or_else(|| Error::null("cuGreenCtxCreate"))?;
    device.ledger()?.recycler.count_created();
    finish(device, sm_count, green).inspect_err(|_| {
        let destroyed = device.functions().and_then(|api| green::destroy_raw(api, green));
        device.driver().report(destroyed);
    })
}

/// The rest of the creation, which the caller undoes where it fails.
fn finish(device: &Device, expected: u32, green: Raw<CUgreenCtx_st>) -> Result<RawGreen> {
    let mut raw = ptr::null_mut();
    // SAFETY: the green context is alive, the pointer is to a live handle.
    unsafe { call!(device.functions()?, cuCtxFromGreenCtx(&raw mut raw, green.as_ptr())) }?;
    let context = Raw::new(raw).ok_or_else(|| Error::null("cuCtxFromGreenCtx"))?;
    let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    let resource = dev_resource::of_green(device.functions()?, green, kind)?;
    let found = dev_resource::sm_part(&resource).smCount;
    if found == expected {
        Ok(RawGreen { green, context })
    } else {
        Err(Error::WrongSmCount { expected, found })
    }
}

/// Generates the driver's descriptor of some units, with a workqueue if there is to be one.
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

//! The driver's green contexts: made or used again, left for the next, destroyed.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx_sys::{CUgreenCtx_st, CUgreenCtxCreate_flags};

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result, call};
use crate::raw::Raw;
use crate::recycle::{Idle, Place, RawGreen};
use crate::resource::{SmGroup, WorkqueueConfig, describe, provisioned};
use crate::trace;

/// A context of a group's SMs: one that waits to be used again, or a new one.
pub(crate) fn obtain(
    device: &Device,
    group: &SmGroup,
    workqueue: Option<WorkqueueConfig>,
) -> Result<RawGreen> {
    if device.has_failed() {
        // None of them can be used again.
        device.release_idle();
    }
    let idle = device.state().ledger.lock().recycler.take(group.place(), workqueue);
    match idle {
        Some(raw) => {
            trace::event!(DEBUG, sms = group.sm_count(), "a context is used again");
            Ok(raw)
        }
        None => create(device, group, workqueue),
    }
}

/// Creates a green context on a group's SMs, and looks at what the driver gave it.
fn create(
    device: &Device,
    group: &SmGroup,
    workqueue: Option<WorkqueueConfig>,
) -> Result<RawGreen> {
    let descriptor = describe(group, workqueue)?;
    let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
    let mut raw = ptr::null_mut();
    // SAFETY: the descriptor was generated for this device just now. The flag is the one that every
    // driver before 13.3 requires.
    unsafe {
        call!(device.api(), cuGreenCtxCreate(&raw mut raw, descriptor, device.as_raw(), flags))
    }?;
    let green = Raw::new(raw).ok_or(Error::null("cuGreenCtxCreate"))?;
    device.state().ledger.lock().recycler.count_created();
    finish(device, group, green).inspect_err(|_| destroy_one(device.driver(), green))
}

/// The rest of the creation, which the caller undoes where it fails.
fn finish(device: &Device, group: &SmGroup, green: Raw<CUgreenCtx_st>) -> Result<RawGreen> {
    let mut raw = ptr::null_mut();
    // SAFETY: the green context is alive, the pointer is to a live handle.
    unsafe { call!(device.api(), cuCtxFromGreenCtx(&raw mut raw, green.as_ptr())) }?;
    let context = Raw::new(raw).ok_or(Error::null("cuCtxFromGreenCtx"))?;
    let (expected, found) = (group.sm_count(), provisioned(device, green)?);
    if found == expected {
        Ok(RawGreen { green, context })
    } else {
        Err(Error::WrongProvision { expected, found })
    }
}

/// Leaves a context that nobody uses any more to whoever asks for its SMs next.
pub(crate) fn leave(
    device: &Device,
    raw: RawGreen,
    place: &Place,
    workqueue: Option<WorkqueueConfig>,
    sm_count: u32,
) {
    if device.has_failed() {
        return destroy(device.driver(), vec![raw]);
    }
    let idle = Idle { place: place.clone(), workqueue, sm_count, raw };
    let surplus = device.state().ledger.lock().recycler.put(idle);
    destroy(device.driver(), surplus);
}

/// Destroys contexts that nobody else has.
pub(crate) fn destroy(driver: &Driver, contexts: Vec<RawGreen>) {
    contexts.into_iter().for_each(|raw| destroy_one(driver, raw.green));
}

fn destroy_one(driver: &Driver, green: Raw<CUgreenCtx_st>) {
    driver.clean_up(|| destroy_raw(driver.api(), green));
}

/// Destroys a context of a driver that is ending itself.
pub(crate) fn destroy_raw(api: &green_ctx_sys::Api, green: Raw<CUgreenCtx_st>) -> Result<()> {
    // SAFETY: the callers own the handle, and nobody has it afterwards.
    unsafe { call!(api, cuGreenCtxDestroy(green.as_ptr())) }
}

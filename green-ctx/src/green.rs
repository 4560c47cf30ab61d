//! Making and destroying the driver's green contexts.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx_sys::{CUdevResourceType, CUgreenCtx_st, CUgreenCtxCreate_flags};

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result, call};
use crate::raw::Raw;
use crate::recycle::RawGreen;
use crate::resource::{SmGroup, describe, empty_resource, sm_part};

/// Creates a green context on a group's SMs, and looks at what the driver gave it.
pub(crate) fn create(device: &Device, group: &SmGroup) -> Result<RawGreen> {
    let descriptor = describe(group)?;
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

/// How many SMs a green context has, by the driver's account. No other thread may use the handle
/// meanwhile.
pub(crate) fn provisioned(device: &Device, green: Raw<CUgreenCtx_st>) -> Result<u32> {
    let mut resource = empty_resource();
    let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    // SAFETY: the green context is alive, the pointer is to a live structure.
    unsafe {
        call!(device.api(), cuGreenCtxGetDevResource(green.as_ptr(), &raw mut resource, kind))
    }?;
    Ok(sm_part(&resource).smCount)
}

/// Destroys contexts that nobody else has.
pub(crate) fn destroy(driver: &Driver, contexts: Vec<RawGreen>) {
    contexts.into_iter().for_each(|raw| destroy_one(driver, raw.green));
}

fn destroy_one(driver: &Driver, green: Raw<CUgreenCtx_st>) {
    driver.report(destroy_raw(driver.api(), green));
}

/// Destroys a context of a driver that is ending itself.
pub(crate) fn destroy_raw(api: &green_ctx_sys::Api, green: Raw<CUgreenCtx_st>) -> Result<()> {
    // SAFETY: the callers own the handle, and nobody has it afterwards.
    unsafe { call!(api, cuGreenCtxDestroy(green.as_ptr())) }
}

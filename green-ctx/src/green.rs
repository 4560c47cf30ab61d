//! The driver's green contexts that nobody uses any more: left for the next owner, or destroyed.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::{Api, CUctx_st, CUgreenCtx_st};

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Result, call};
use crate::ledger::{Idle, Location, WorkqueueConfig};
use crate::raw::Raw;

/// A driver's green context with the handle that other calls take.
#[derive(Clone, Copy)]
pub(crate) struct RawGreen {
    pub(crate) green: Raw<CUgreenCtx_st>,
    pub(crate) context: Raw<CUctx_st>,
}

/// Leaves a context that nobody uses any more to whoever asks for its SMs next.
pub(crate) fn leave(
    device: &Device,
    raw: RawGreen,
    location: &Location,
    workqueue: Option<WorkqueueConfig>,
    sm_count: u32,
) {
    if device.has_failed() {
        return device.driver().report(destroy_raw(device.api(), raw.green));
    }
    let idle = Idle { location: location.clone(), workqueue, sm_count, raw };
    let surplus = device.state().ledger.lock().recycler.put(idle);
    destroy(device.driver(), surplus);
}

/// Destroys contexts that nobody uses.
pub(crate) fn destroy(driver: &Driver, contexts: Vec<Idle<RawGreen>>) {
    for idle in contexts {
        driver.report(destroy_raw(driver.api(), idle.raw.green));
    }
}

/// Destroys a context that nobody else has.
pub(crate) fn destroy_raw(api: &Api, green: Raw<CUgreenCtx_st>) -> Result<()> {
    // SAFETY: the callers own the handle, and nobody has it afterwards.
    unsafe { call!(api, cuGreenCtxDestroy(green.as_ptr())) }
}

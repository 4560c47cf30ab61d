//! Green contexts whose last handle was dropped: recording their work, reusing them, and destroying them.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use green_ctx_sys::{Api, CUctx_st, CUevent, CUgreenCtx_st};

use crate::handle::capture::RelaxedCapture;
use crate::handle::device::Device;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::fence::Fence;
use crate::handle::raw::Raw;
use crate::ledger::{Idle, Placement, WorkqueueConfig};

/// A green context, and its `CUcontext` for the driver calls that take no `CUgreenCtx`.
#[derive(Clone, Copy)]
pub(crate) struct RawGreen {
    pub(crate) green: Raw<CUgreenCtx_st>,
    pub(crate) context: Raw<CUctx_st>,
}

/// Returns a fence for the work that still runs in a context without handles, or `None` if all work is done.
pub(crate) fn record(device: &Device, green: Raw<CUgreenCtx_st>) -> Result<Option<Arc<Fence>>> {
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let fence = Fence::recorded(device, |event| record_in(device, green, event))?;
    Ok(fence.map(Arc::new))
}

/// Records the work of a context without handles in an event. The event also covers the work of streams that have been
/// destroyed (recorded on an H200, driver 580.159.04).
pub(crate) fn record_in(device: &Device, green: Raw<CUgreenCtx_st>, event: CUevent) -> Result<()> {
    // SAFETY: the caller owns the green context and keeps the event alive. No other thread uses the context.
    unsafe { call!(device.functions()?, cuGreenCtxRecordEvent(green.as_ptr(), event)) }
}

/// Makes a context without handles wait for a fence.
pub(crate) fn wait_for(device: &Device, green: Raw<CUgreenCtx_st>, fence: &Fence) -> Result<()> {
    // SAFETY: the caller owns the green context, and `fence` keeps its event alive. No other thread uses the context.
    unsafe { call!(device.functions()?, cuGreenCtxWaitEvent(green.as_ptr(), fence.raw())) }
}

/// Makes a context without handles available for reuse on the same SMs. If the device has failed, destroys the context
/// instead.
pub(crate) fn leave(
    device: &Device,
    raw: RawGreen,
    placement: &Placement,
    workqueue: Option<WorkqueueConfig>,
    sm_count: u32,
) {
    if device.has_failed() {
        return end(device, raw.green);
    }
    let kept = device.state().kept.keeps(raw.green);
    let idle = Idle { placement: placement.clone(), workqueue, sm_count, kept, raw };
    let Ok(mut ledger) = device.ledger() else { return };
    let surplus = ledger.recycler.put(idle);
    drop(ledger);
    destroy(device.driver(), surplus);
}

/// Destroys idle contexts.
pub(crate) fn destroy(driver: &Driver, contexts: Vec<Idle<RawGreen>>) {
    for idle in contexts {
        driver.clean_up(|| destroy_raw(driver.functions()?, idle.raw.green));
    }
}

/// Destroys a context that must not be reused, unless the context is kept for foreign code.
pub(crate) fn end(device: &Device, green: Raw<CUgreenCtx_st>) {
    if !device.state().kept.keeps(green) {
        device.driver().clean_up(|| destroy_raw(device.functions()?, green));
    }
}

/// Destroys a context that the caller owns.
pub(crate) fn destroy_raw(api: &Api, green: Raw<CUgreenCtx_st>) -> Result<()> {
    // SAFETY: the callers own the handle and do not use it afterwards.
    unsafe { call!(api, cuGreenCtxDestroy(green.as_ptr())) }
}

//! Green contexts of the driver.
//!
//! A driver context outlives the partition that uses it, since it is kept for reuse, and since foreign code may use its
//! kept streams at any time. Each driver context therefore has one [`Green`] object from its creation to its
//! destruction, which owns all that this crate knows about it: the lock for its calls, its streams, and whether foreign
//! code has a handle. A partition's `Context` leases the object. An idle object is in the recycler, and an object whose
//! work is not recorded is in quarantine. The registry finds it in either place, so a raw handle always leads to the
//! same object.
#![allow(unsafe_code, reason = "calls the driver")]

mod calls;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_sys::{Api, CUctx_st, CUevent, CUgreenCtx_st};

use crate::handle::capture::RelaxedCapture;
use crate::handle::device::Device;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::fence::{Fence, Fences};
use crate::handle::raw::Raw;
use crate::handle::registry::Registry;
use crate::ledger::{Idle, Placement, WorkqueueConfig};

use calls::Calls;
pub(crate) use calls::Turn;
pub(crate) use streams::Streams;

/// A green context of the driver.
pub(crate) struct Green {
    /// The driver's handle, which only one thread at a time may use: see [`call`](Green::call).
    pub(crate) raw: Raw<CUgreenCtx_st>,
    /// The `CUcontext`, for the driver calls that take no `CUgreenCtx`.
    pub(crate) context: Raw<CUctx_st>,
    pub(crate) calls: Calls,
    pub(crate) streams: Streams,
    /// Set while foreign code may have a handle of the context. Foreign code may then submit work to the default
    /// stream, and to streams that have no `Stream` object.
    exposed: AtomicBool,
    /// The number of the device, if this crate created the context.
    pub(crate) ordinal: u32,
    /// The SMs and the workqueue that the context was created with. Empty for a foreign context.
    pub(crate) placement: Placement,
    workqueue: Option<WorkqueueConfig>,
}

impl InSlot for Registry<Green> {
    const SLOT: Slot = Slot::Greens;

    fn make(_driver: &Driver) -> Self {
        Registry::default()
    }
}

impl Driver {
    /// Returns the green contexts that this crate created, by the address of the `CUcontext`.
    pub(crate) fn greens(&self) -> &Registry<Green> {
        self.slot()
    }
}

impl Green {
    pub(crate) fn new(raw: Raw<CUgreenCtx_st>, context: Raw<CUctx_st>) -> Green {
        let (calls, streams, exposed, ordinal, placement) = Default::default();
        Green { raw, context, calls, streams, exposed, ordinal, placement, workqueue: None }
    }

    /// Creates the object of a context that this crate has just created.
    pub(crate) fn own(
        device: &Device,
        (raw, context): (Raw<CUgreenCtx_st>, Raw<CUctx_st>),
        placement: Placement,
        workqueue: Option<WorkqueueConfig>,
    ) -> Arc<Green> {
        let (ordinal, fresh) = (device.ordinal(), Green::new(raw, context));
        let green = Arc::new(Green { ordinal, placement, workqueue, ..fresh });
        device.driver().greens().enter(context.address(), &green);
        green
    }

    /// Calls `call` with the driver's handle, while no other thread uses it.
    #[inline]
    pub(crate) fn call<R>(&self, call: impl FnOnce(Raw<CUgreenCtx_st>) -> R) -> R {
        let _one_at_a_time = self.calls.turn();
        call(self.raw)
    }

    /// Begins the use of the context by a partition whose work must wait for `fences`. Foreign code may use the streams
    /// of a kept context at any time, so all of its streams start to wait now.
    pub(crate) fn begin_lease(&self, driver: &Driver, fences: &Fences) -> Result<()> {
        if self.streams.are_kept() {
            return fences.iter().try_for_each(|fence| self.wait_for(driver, fence));
        }
        // The context has no streams, and no code has a handle of it.
        self.exposed.store(false, Ordering::SeqCst);
        self.streams.restart();
        Ok(())
    }

    /// Notes that foreign code may have a handle of the context from now on.
    pub(crate) fn expose(&self) {
        self.exposed.store(true, Ordering::SeqCst);
    }

    /// Returns whether foreign code may have a handle of the context.
    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed.load(Ordering::SeqCst)
    }

    /// Records an event for all work of the context. The event also covers the work of streams that have been destroyed
    /// (recorded on an H200, driver 580.159.04).
    pub(crate) fn record(&self, api: &Api, event: CUevent) -> Result<()> {
        // SAFETY: the context is alive until its object is given up, and the caller keeps the event alive.
        self.call(|green| unsafe { call!(api, cuGreenCtxRecordEvent(green.as_ptr(), event)) })
    }

    /// Makes the existing streams of the context wait for an event.
    pub(crate) fn wait(&self, api: &Api, event: CUevent) -> Result<()> {
        // SAFETY: the context is alive until its object is given up, and the caller keeps the event alive.
        self.call(|green| unsafe { call!(api, cuGreenCtxWaitEvent(green.as_ptr(), event)) })
    }

    /// Makes the existing streams of the context wait for a fence. If foreign code captures a kept stream, that wait
    /// would invalidate the capture, and the host waits instead.
    pub(crate) fn wait_for(&self, driver: &Driver, fence: &Fence) -> Result<()> {
        let api = driver.functions()?;
        if self.streams.are_kept() && self.streams.are_capturing(api)? {
            return driver.while_relaxed(|| fence.synchronize(api));
        }
        self.wait(api, fence.raw())
    }

    /// Returns a fence for the work that still runs in the context, or `None` if all work is done.
    pub(crate) fn fence(&self, device: &Device) -> Result<Option<Arc<Fence>>> {
        let _relaxed = RelaxedCapture::enter(device.driver())?;
        let fence = Fence::recorded(device, |event| self.record(device.functions()?, event))?;
        Ok(fence.map(Arc::new))
    }

    /// Blocks the calling thread until all work of the context is done.
    pub(crate) fn synchronize(&self, device: &Device) -> Result<()> {
        let (driver, api) = (device.driver(), device.functions()?);
        let running = self.fence(device).inspect_err(|error| device.note(error))?;
        let Some(fence) = running else { return Ok(()) };
        driver.while_relaxed(|| fence.synchronize(api)).inspect_err(|error| device.note(error))
    }

    /// Destroys the driver's context. The caller has the only handle, or the driver is being dropped.
    pub(crate) fn destroy(&self, api: &Api) -> Result<()> {
        // SAFETY: the callers do not use the context afterwards.
        unsafe { call!(api, cuGreenCtxDestroy(self.raw.as_ptr())) }
    }
}

/// Makes a context available for reuse on the same SMs. If the device has failed, destroys the context instead.
pub(crate) fn leave(device: &Device, green: Arc<Green>) {
    if device.has_failed() {
        return end(device, &green);
    }
    let (placement, workqueue) = (green.placement.clone(), green.workqueue);
    let idle = Idle { placement, workqueue, kept: green.streams.are_kept(), raw: green };
    let Ok(mut ledger) = device.ledger() else { return };
    let surplus = ledger.recycler.put(idle);
    drop(ledger);
    destroy(device, surplus);
}

/// Destroys idle contexts.
pub(crate) fn destroy(device: &Device, contexts: Vec<Idle<Arc<Green>>>) {
    contexts.iter().for_each(|idle| end(device, &idle.raw));
}

/// Destroys a context that must not be reused, unless it has kept streams.
pub(crate) fn end(device: &Device, green: &Green) {
    if !green.streams.are_kept() {
        let driver = device.driver();
        // The context leaves before it is destroyed, since the driver may reuse the address immediately.
        driver.greens().forget(green.context.address(), green);
        driver.clean_up(|| green.destroy(driver.functions()?));
    }
}

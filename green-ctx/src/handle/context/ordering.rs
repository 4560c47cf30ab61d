//! The order between the work of successive owners of the same SMs.
//!
//! **Giving up SMs.** One fence covers all work of the context that gives up SMs. If the context has only ever had one
//! stream, and foreign code has received neither the stream nor the context, a switch records the fence on that stream.
//! In all other cases, and when the last handle is dropped, the fence is recorded for the whole context. A record of
//! the whole context also covers destroyed streams, default streams, and streams without a `Stream` object. Recording
//! invalidates captures, so a switch first queries whether a stream is being captured.
//!
//! **Getting SMs.** If a context has only one stream, that stream waits for each fence. If the context has several
//! streams, the whole context waits. The wait of the whole context does not affect streams that are created later, so
//! each new stream waits when it is created. The default stream starts to wait when the context's handle is first given
//! out.
//!
//! A record of the whole context covers the waits of the whole context. The record covers the wait of a single stream
//! only if work was submitted after that wait (recorded on an H200, driver 580.159.04). Before the whole context is
//! recorded, the waits of single streams are therefore repeated for the whole context. When the fence is complete,
//! these waits have then ended as well.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Context;
use super::guests::Guests;
use super::lease::{Lease, Shared};
use crate::handle::capture::RelaxedCapture;
use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::fence::Fence;
use crate::handle::green::Green;
use crate::handle::raw_stream::RawStream;
use crate::work::stream::DefaultStream;

impl Lease {
    /// Records all work of the context after its last handle was dropped. Returns `None` if all work is done.
    pub(super) fn record(&self, green: &Green, device: &Device) -> Result<Option<Arc<Fence>>> {
        let Some(Shared { work, .. }) = &self.shared else { return green.fence(device) };
        let api = device.functions()?;
        // Record the existing fence again. A context that waits for the earlier record relies on the work it covered,
        // and the new record covers that too.
        self.pending.wait_as_a_whole(|fence| green.wait(api, fence.raw()))?;
        green.record(api, work.raw())?;
        work.note_record();
        Ok(Some(Arc::clone(work)))
    }
}

impl Context {
    /// Makes a new stream wait for the fences that the context's other streams wait for.
    #[inline]
    pub(crate) fn hold_new(&self, stream: RawStream<'_>) -> Result<()> {
        match self.lease() {
            Some(lease) if !lease.pending.is_empty() => self.hold_stream(lease, stream),
            _ => Ok(()),
        }
    }

    #[cold]
    fn hold_stream(&self, lease: &Lease, stream: RawStream<'_>) -> Result<()> {
        let driver = self.device().driver();
        let fences = lease.pending.settle(driver)?;
        if fences.is_empty() || !stream.is_capturing()? {
            return fences.iter().try_for_each(|fence| stream.wait(fence.raw()));
        }
        // A wait on the stream would become part of the capture, or invalidate it. The host waits instead.
        let _relaxed = RelaxedCapture::enter(driver)?;
        fences.iter().try_for_each(|fence| fence.synchronize(driver.functions()?))
    }

    /// Marks the context as exposed, because its handle is given out. Makes its default stream wait like its other
    /// streams.
    #[inline]
    pub(crate) fn expose(&self) -> Result<()> {
        match self.lease() {
            Some(lease) if !lease.default_waits.load(Ordering::Acquire) => {
                // Sequentially consistent with `Pending::add` and with the load of `exposed` in `hold`. Either `hold`
                // sees that the context is exposed, or this thread sees the added fence.
                self.green().into_iter().for_each(|green| green.expose());
                self.hold_default_stream(lease)?;
                // Set only after success, so that a failed attempt is repeated by the next call.
                lease.default_waits.store(true, Ordering::Release);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn hold_default_stream(&self, lease: &Lease) -> Result<()> {
        let driver = self.device().driver();
        if lease.pending.is_empty() || driver.is_forked() {
            return Ok(());
        }
        let fences = lease.pending.settle(driver)?;
        let _scope = self.scope()?;
        let stream = DefaultStream::Legacy.as_raw();
        fences.iter().try_for_each(|fence| {
            // SAFETY: the driver resolves the token in the current context, which `_scope` keeps current. `fence` keeps
            // its event alive. Outside captures, 0 is the only valid flag.
            unsafe { call!(driver.functions()?, cuStreamWaitEvent(stream, fence.raw(), 0)) }
        })
    }

    /// Returns the only stream that can have work, if there is only one. That is the context's first stream, which the
    /// caller keeps alive.
    fn lone_stream(&self) -> Option<RawStream<'_>> {
        let green = self.green().filter(|green| !green.is_exposed())?;
        Some(RawStream::new(self.device().driver(), green.streams.lone()?.as_ptr()))
    }

    /// Returns whether a stream of a green context is being captured. Recording the context, or making the context
    /// wait, would invalidate the capture.
    pub(crate) fn has_captures(&self) -> Result<bool> {
        let api = self.device().functions()?;
        self.green().map_or(Ok(false), |green| green.streams.are_capturing(api))
    }

    /// Returns whether other contexts take turns with this context on the same SMs, as the contexts of plans do.
    pub(crate) fn shares_sms(&self) -> bool {
        self.lease().is_some_and(|lease| lease.shared.is_some())
    }

    /// Returns the number of a partition's streams that have a `Stream` object, or `None` for another context.
    pub(crate) fn stream_count(&self) -> Option<usize> {
        self.lease().and_then(|_| self.green()).map(|green| green.streams.count())
    }

    fn shared(&self) -> Option<&Shared> {
        self.lease()?.shared.as_ref()
    }

    /// Returns the name of the partition that the context belongs to. If several plans use the context, returns the
    /// name in the active plan. Returns `None` for a context that owns no SMs.
    #[must_use]
    pub fn partition_name(&self) -> Option<Arc<str>> {
        let renamed = self.shared().and_then(|shared| shared.name.lock().clone());
        renamed.or_else(|| Some(Arc::clone(&self.group()?.record().sms.name)))
    }

    /// Sets the context's name in the active plan.
    pub(crate) fn set_partition_name(&self, name: &Arc<str>) {
        if let Some(shared) = self.shared() {
            *shared.name.lock() = Some(Arc::clone(name));
        }
    }

    /// Records a fence for the work submitted so far to a context that takes turns on its SMs. The fence also covers
    /// everything that the context waits for. The caller keeps the context's first stream alive.
    pub(crate) fn record_work(&self) -> Result<()> {
        let (Some(lease), Some(green)) = (self.lease(), self.green()) else { return Ok(()) };
        let Some(Shared { work, .. }) = &lease.shared else { return Ok(()) };
        if let Some(stream) = self.lone_stream() {
            stream.record(work.raw())?;
        } else {
            let api = self.device().functions()?;
            lease.pending.wait_as_a_whole(|fence| green.wait(api, fence.raw()))?;
            green.record(api, work.raw())?;
        }
        work.note_record();
        lease.guests.get().map_or(Ok(()), Guests::record)
    }

    /// Returns the fences that cover the context's work up to the last record.
    pub(crate) fn work(&self) -> impl Iterator<Item = &Arc<Fence>> {
        let lease = self.lease();
        let guests = lease.and_then(|lease| lease.guests.get()).map(Guests::fence);
        self.shared().map(|shared| &shared.work).into_iter().chain(guests)
    }

    /// Returns whether all streams of the context already wait for the last record of `fence`.
    pub(crate) fn waits_for(&self, fence: &Arc<Fence>) -> bool {
        self.lease().is_some_and(|lease| lease.pending.covers(fence))
    }

    /// Makes later work of the context wait for `fence`. This applies to all existing streams, including those without
    /// a `Stream` object, and to streams that are created later. The caller keeps the context's first stream alive.
    /// Only one thread at a time may call this method.
    pub(crate) fn hold(&self, fence: &Arc<Fence>) -> Result<()> {
        let (Some(lease), Some(green)) = (self.lease(), self.green()) else { return Ok(()) };
        let record = fence.records();
        // Add the fence first, so that a stream created too late for the wait below finds it here.
        lease.pending.add(fence);
        let lone = self.lone_stream();
        match &lone {
            Some(stream) => stream.wait(fence.raw())?,
            None => green.wait_for(self.device().driver(), fence)?,
        }
        lease.pending.note_wait(fence, record, lone.is_none());
        Ok(())
    }

    /// Drops the pending fences whose work is done.
    pub(crate) fn settle(&self) -> Result<()> {
        let Some(lease) = self.lease() else { return Ok(()) };
        lease.pending.settle(self.device().driver()).map(drop)
    }

    /// Prepares the launch of a graph that runs in this context, on a stream of another context. Makes that stream,
    /// `launching`, wait for the fences that are pending in this context.
    pub(crate) fn expect_guest(&self, launching: RawStream<'_>) -> Result<()> {
        let Some(lease) = self.lease() else { return Ok(()) };
        if lease.guests.get().is_none() {
            let fresh = Guests::new(self.device(), || self.create_raw_stream(0))?;
            // If another thread stored its gate first, this one is dropped.
            lease.guests.get_or_init(|| fresh);
        }
        let fences = lease.pending.settle(self.device().driver())?;
        fences.iter().try_for_each(|fence| launching.wait(fence.raw()))
    }

    /// Counts the work submitted so far to `launching`, a stream of another context, as work of this context. If the
    /// driver fails, the host waits for that work.
    pub(crate) fn note_guest(&self, launching: RawStream<'_>, device: &Device) {
        let Some(guests) = self.lease().and_then(|lease| lease.guests.get()) else { return };
        let driver = launching.driver();
        if let Err(error) = guests.note(launching, device) {
            let waited = driver.while_relaxed(|| launching.synchronize());
            let waited = waited.inspect_err(|error| device.note(error));
            driver.report(Err(error));
            driver.report(waited);
        }
    }
}

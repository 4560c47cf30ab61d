//! The order between a partition's work and other work on its SMs.
//!
//! **Giving up SMs.** One fence covers all work of the context. A switch records it on the first stream if
//! the context never had another one and neither was exposed to foreign code. Otherwise, and when the last
//! handle is dropped, the whole context is recorded. That covers destroyed streams, default streams, and
//! streams without an object. Recording invalidates captures, so a switch first asks whether a stream is
//! being captured.
//!
//! **Getting SMs.** A lone stream waits for each fence itself; several streams wait as a whole context. That
//! wait does not hold streams that are created later, so these wait by themselves. The default stream waits
//! once the context's handle is given out.
//!
//! A record of the whole context covers what the whole context waits for. It covers what a single stream
//! waits for only if there is work behind that wait (recorded on an H200, driver 580.159.04). So waits of
//! single streams are first repeated for the whole context, and a fence that is done means that these waits
//! are over.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use green_ctx_sys::{CUevent, CUstream_st};
use parking_lot::Mutex;

use super::fencing::{Fencing, Shared};
use super::guests::Guests;
use super::streams::Streams;
use super::{Context, Green, Kind};
use crate::handle::capture::RelaxedCapture;
use crate::handle::current::Scope;
use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::fence::Fence;
use crate::handle::green;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;
use crate::work::stream::DefaultStream;

impl Green {
    /// Whether a stream that is kept, since foreign code has its handle, is being captured.
    pub(super) fn has_kept_captures(&self, device: &Device) -> Result<bool> {
        device.state().kept.are_capturing(device.functions()?, self.raw)
    }

    /// Records all work of the context when no handle is left; `None` where all of it is done.
    pub(super) fn record(&self, device: &Device) -> Result<Option<Arc<Fence>>> {
        let Some(Shared { work, .. }) = self.fencing.shared.get() else {
            return green::record(device, self.raw);
        };
        // Recorded in place, so that who waits for the former record relies on what that covered.
        self.fencing.pending.wait_as_a_whole(|fence| green::wait_for(device, self.raw, fence))?;
        green::record_in(device, self.raw, work.raw())?;
        work.note_record();
        Ok(Some(Arc::clone(work)))
    }
}

impl Context {
    fn fencing(&self) -> Option<&Fencing> {
        match &self.inner.kind {
            Kind::Green(green) => Some(&green.fencing),
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }

    /// Makes a new stream wait for what the context's streams wait for.
    #[inline]
    pub(crate) fn hold_new(&self, stream: RawStream<'_>) -> Result<()> {
        match self.fencing() {
            Some(fencing) if !fencing.pending.is_empty() => self.hold_stream(fencing, stream),
            _ => Ok(()),
        }
    }

    #[cold]
    fn hold_stream(&self, fencing: &Fencing, stream: RawStream<'_>) -> Result<()> {
        let driver = self.device().driver();
        let fences = fencing.pending.settle(driver)?;
        if fences.is_empty() || !stream.is_capturing()? {
            return fences.iter().try_for_each(|fence| stream.wait(fence.raw()));
        }
        // A wait would become part of the capture, or invalidate it: the host waits instead.
        let _relaxed = RelaxedCapture::enter(driver)?;
        fences.iter().try_for_each(|fence| fence.synchronize(driver.functions()?))
    }

    /// Notes that the context's handle is given out, and makes its default stream wait as the others
    /// do.
    #[inline]
    pub(crate) fn expose(&self) -> Result<()> {
        match self.fencing() {
            Some(fencing) if !fencing.default_waits.load(Ordering::Acquire) => {
                // In one order with `Pending::add` and the look at this by `hold`: either that sees
                // the context exposed, or the fence is seen here.
                fencing.exposed.store(true, Ordering::SeqCst);
                self.hold_default_stream(fencing)?;
                // Only now: where it failed, the next call tries again.
                fencing.default_waits.store(true, Ordering::Release);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn hold_default_stream(&self, fencing: &Fencing) -> Result<()> {
        let driver = self.device().driver();
        if fencing.pending.is_empty() || driver.is_forked() {
            return Ok(());
        }
        let fences = fencing.pending.settle(driver)?;
        let _scope = Scope::enter(driver, self.raw())?;
        let stream = DefaultStream::Legacy.as_raw();
        fences.iter().try_for_each(|fence| {
            // SAFETY: the token is looked up in the current context, the event is alive; 0 is the
            // only flag outside of a capture.
            unsafe { call!(driver.functions()?, cuStreamWaitEvent(stream, fence.raw(), 0)) }
        })
    }

    /// Whether the context's only work can be that of its first stream.
    fn is_lone(&self, fencing: &Fencing) -> bool {
        let is_lone = || fencing.shared.get().is_some_and(|shared| shared.streams.is_lone());
        !fencing.exposed.load(Ordering::SeqCst) && is_lone()
    }

    /// Whether a stream of the context that an object stands for, or that is kept, is being captured.
    /// Recording the context, or making it wait, would invalidate the capture.
    pub(crate) fn has_captures(&self) -> Result<bool> {
        let Kind::Green(green) = &self.inner.kind else { return Ok(false) };
        let Some(shared) = green.fencing.shared.get() else { return Ok(false) };
        Ok(shared.streams.are_capturing(self.device().functions()?)?
            || green.has_kept_captures(self.device())?)
    }

    /// Whether other contexts have the same SMs at other times, as those of plans do.
    pub(crate) fn shares_sms(&self) -> bool {
        self.fencing().is_some_and(Fencing::shares_sms)
    }

    /// Prepares a new context for sharing its SMs in time, before it has a stream.
    pub(crate) fn share_sms(&self) -> Result<()> {
        let Some(fencing) = self.fencing() else { return Ok(()) };
        let work = Arc::new(Fence::new(self.device())?);
        let (streams, name) = (Streams::default(), Mutex::default());
        fencing.shared.get_or_init(|| Shared { work, streams, name });
        Ok(())
    }

    /// How many of its streams objects stand for; `None` where that is not counted.
    pub(crate) fn stream_count(&self) -> Option<usize> {
        Some(self.fencing()?.streams.load(Ordering::Relaxed))
    }

    fn shared(&self) -> Option<&Shared> {
        self.fencing()?.shared.get()
    }

    /// The name of the partition that has the context: of several plans, in the active one. `None` for a
    /// context without SMs of its own.
    #[must_use]
    pub fn partition_name(&self) -> Option<Arc<str>> {
        let renamed = self.shared().and_then(|shared| shared.name.lock().clone());
        renamed.or_else(|| Some(Arc::clone(&self.group()?.record().sms.name)))
    }

    /// Sets what the active plan calls the context.
    pub(crate) fn set_partition_name(&self, name: &Arc<str>) {
        if let Some(shared) = self.shared() {
            *shared.name.lock() = Some(Arc::clone(name));
        }
    }

    /// A handle for an object that is to stand for a stream, counted until
    /// [`count_out`](Context::count_out).
    #[inline]
    pub(crate) fn for_stream(&self) -> Context {
        if let Some(fencing) = self.fencing() {
            fencing.streams.fetch_add(1, Ordering::Relaxed);
        }
        self.clone()
    }

    /// Counts a stream that no object stands for any more.
    #[inline]
    pub(crate) fn count_out(&self) {
        if let Some(fencing) = self.fencing() {
            fencing.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Enters a stream where the context shares its SMs in time. Returns the number by which it leaves.
    #[inline]
    pub(crate) fn enter_stream(&self, stream: Raw<CUstream_st>) -> Option<usize> {
        self.shared().map(|shared| shared.streams.enter(stream))
    }

    /// Removes a stream, before it is destroyed.
    #[inline]
    pub(crate) fn leave_stream(&self, slot: usize) {
        if let Some(shared) = self.shared() {
            shared.streams.leave(slot);
        }
    }

    /// Records the work up to now of a context that shares its SMs in time, with all that the context
    /// waits for: when the fence is done, so is that. `first` is the stream that was made first.
    pub(crate) fn record_work(&self, first: RawStream<'_>) -> Result<()> {
        let Some(fencing) = self.fencing() else { return Ok(()) };
        let Some(Shared { work, .. }) = fencing.shared.get() else { return Ok(()) };
        if self.is_lone(fencing) {
            first.record(work.raw())?;
        } else {
            fencing.pending.wait_as_a_whole(|fence| self.wait_whole(fence.raw()))?;
            self.record_whole(work.raw())?;
        }
        work.note_record();
        fencing.guests.get().map_or(Ok(()), Guests::record)
    }

    /// The fences of the work that was recorded last.
    pub(crate) fn work(&self) -> impl Iterator<Item = &Arc<Fence>> {
        let fencing = self.fencing();
        let guests = fencing.and_then(|fencing| fencing.guests.get()).map(Guests::fence);
        self.shared().map(|shared| &shared.work).into_iter().chain(guests)
    }

    /// Whether all streams wait for the last record of a fence already.
    pub(crate) fn waits_for(&self, fence: &Arc<Fence>) -> bool {
        self.fencing().is_some_and(|fencing| fencing.pending.covers(fence))
    }

    /// Makes what is submitted from now on wait for a fence: in streams that there are, those that no
    /// object stands for included, and in those that are made later. `first` is the stream that was
    /// made first. Only one thread at a time may call it.
    pub(crate) fn hold(&self, fence: &Arc<Fence>, first: RawStream<'_>) -> Result<()> {
        let Some(fencing) = self.fencing() else { return Ok(()) };
        let record = fence.records();
        // First, so that a stream that comes too late to be held finds the fence here.
        fencing.pending.add(fence);
        let whole = !self.is_lone(fencing);
        if whole {
            self.wait_whole(fence.raw())?;
        } else {
            first.wait(fence.raw())?;
        }
        fencing.pending.note_wait(fence, record, whole);
        Ok(())
    }

    /// Forgets what its streams wait for as far as it is done.
    pub(crate) fn settle(&self) -> Result<()> {
        let Some(fencing) = self.fencing() else { return Ok(()) };
        fencing.pending.settle(self.device().driver()).map(drop)
    }

    /// Prepares for a graph that runs here and that a stream of another context is about to launch:
    /// the stream waits for what this context's streams wait for.
    pub(crate) fn expect_guest(&self, launching: RawStream<'_>) -> Result<()> {
        let Some(fencing) = self.fencing() else { return Ok(()) };
        if fencing.guests.get().is_none() {
            let fresh = Guests::new(self.device(), || self.create_raw_stream(0))?;
            // Where another thread was first, ours ends here.
            fencing.guests.get_or_init(|| fresh);
        }
        let fences = fencing.pending.settle(self.device().driver())?;
        fences.iter().try_for_each(|fence| launching.wait(fence.raw()))
    }

    /// Counts what a stream of another context was given up to now as this context's work too. Where the
    /// driver fails, the host waits for that work.
    pub(crate) fn note_guest(&self, launching: RawStream<'_>, device: &Device) {
        let Some(guests) = self.fencing().and_then(|fencing| fencing.guests.get()) else { return };
        let driver = launching.driver();
        if let Err(error) = guests.note(launching, device) {
            let waited = driver.while_relaxed(|| launching.synchronize());
            let waited = waited.inspect_err(|error| device.note(error));
            driver.report(Err(error));
            driver.report(waited);
        }
    }

    fn record_whole(&self, event: CUevent) -> Result<()> {
        let api = self.device().functions()?;
        self.with_green(|green| {
            // SAFETY: both handles are alive.
            unsafe { call!(api, cuGreenCtxRecordEvent(green.as_ptr(), event)) }
        })
        .unwrap_or(Ok(()))
    }

    fn wait_whole(&self, event: CUevent) -> Result<()> {
        let api = self.device().functions()?;
        self.with_green(|green| {
            // SAFETY: both handles are alive.
            unsafe { call!(api, cuGreenCtxWaitEvent(green.as_ptr(), event)) }
        })
        .unwrap_or(Ok(()))
    }
}

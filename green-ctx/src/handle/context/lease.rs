//! A partition's lease of its driver context. The module `ordering` describes how the fences are used.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::guests::Guests;
use super::{Context, PrimaryShares, synchronize};
use crate::handle::current;
use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::handle::fence::{Fence, Pending};
use crate::handle::green::{self, Green};
use crate::handle::group::SmGroup;
use crate::handle::report;

/// A partition's lease of its driver context: the SMs, and the order of the work on them.
pub(super) struct Lease {
    pub(super) group: SmGroup,
    /// The context whose workqueues this context uses, or `None` if this context has its own workqueues.
    pub(super) queues: Option<Context>,
    /// Keeps the primary context alive, and the device initialised.
    primary: Arc<PrimaryShares>,
    /// The fences that the context's streams wait for.
    pub(super) pending: Pending,
    /// Set for a context of a plan, which takes turns on its SMs with the contexts of other plans.
    pub(super) shared: Option<Shared>,
    /// Graphs that run in this context but were launched on streams of other contexts.
    pub(super) guests: OnceLock<Guests>,
    /// Set once the default stream waits for the fences that were pending when the handle was given out.
    pub(super) default_waits: AtomicBool,
}

/// The additional state of a context that takes turns on its SMs with other contexts. The work of such a context is
/// recorded at switches of plans, not only when the context ends.
pub(super) struct Shared {
    /// The fence that covers the context's work up to the last record.
    pub(super) work: Arc<Fence>,
    /// The context's name in the active plan, if plans of its set give a context different names.
    pub(super) name: Mutex<Option<Arc<str>>>,
}

impl Lease {
    /// `work` is the fence of a context that takes turns on its SMs. `waits` is set if the whole context already waits
    /// for the group's fences.
    pub(super) fn new(
        group: SmGroup,
        queues: Option<Context>,
        primary: Arc<PrimaryShares>,
        work: Option<Fence>,
        waits: bool,
    ) -> Lease {
        let shared = work.map(|work| Shared { work: Arc::new(work), name: Mutex::default() });
        let (pending, guests) = (Pending::new(group.fences(), waits), OnceLock::new());
        let default_waits = AtomicBool::new(waits);
        Lease { group, queues, primary, pending, shared, guests, default_waits }
    }

    /// Blocks the calling thread until all graphs that streams of other contexts launched in this context are done.
    pub(super) fn synchronize_guests(&self) -> Result<()> {
        self.guests.get().map_or(Ok(()), Guests::synchronize)
    }

    /// Records a fence for graphs that streams of other contexts launched in this context, after the last handle of the
    /// context is dropped.
    fn record_guests(&self, device: &Device) -> Option<Arc<Fence>> {
        let guests = self.guests.get()?;
        if let Err(error) = guests.record() {
            // The next owner of the SMs has no event to wait for, so this thread waits instead.
            device.driver().report(Err(error));
            device.driver().report(guests.synchronize());
        }
        Some(Arc::clone(guests.fence()))
    }

    /// Makes the driver's context available for reuse by the next partition on the same SMs.
    pub(super) fn leave(&mut self, green: &Arc<Green>, device: &Device) {
        // The gate stream belongs to the context, so it must be destroyed before the context is given away.
        self.guests = OnceLock::new();
        green::leave(device, Arc::clone(green));
    }

    /// Ends a lease whose last handle is dropped. Only `drop` calls this function, once. Afterwards the driver's
    /// context belongs to the recycler or is in quarantine.
    pub(super) fn give_up(&mut self, green: &Arc<Green>, device: &Device) {
        let driver = device.driver();
        // The next owner must not find its context current on this thread, where work could be submitted with it. The
        // driver does not report contexts deeper on this thread's stack, or on the stacks of other threads.
        let primary = self.primary.context().raw();
        driver.report(current::replace(driver, green.context.as_ptr(), primary));
        // Recording would invalidate a capture of foreign code, so in that case it is postponed.
        let is_captured = || green.streams.are_capturing(device.functions()?);
        let recorded = (!matches!(is_captured(), Ok(true))).then(|| self.record(green, device));
        // A record of the context's own work may cover neither the fences that it still waits for nor graphs
        // that other contexts launched in it.
        self.group.add_fences(self.pending.take());
        let guests = self.record_guests(device);
        self.group.add_fences(guests);
        self.guests = OnceLock::new();
        match recorded {
            Some(Ok(running)) => {
                self.group.add_fences(running);
                self.leave(green, device);
            }
            Some(Err(error)) => {
                driver.report(Err(error));
                self.give_up_unrecorded(green, device);
            }
            None => self.group.quarantine(vec![Arc::clone(green)]),
        }
    }

    /// Ends a lease of a context whose work could not be recorded. If that work is still running, the SMs are put into
    /// quarantine, since it is unknown when the work will end.
    fn give_up_unrecorded(&mut self, green: &Arc<Green>, device: &Device) {
        let done = {
            let _turn = report::hold(green.calls.turn());
            synchronize(device, green.context.as_ptr())
        };
        if done.is_ok() || device.has_failed() {
            device.driver().report(done);
            // No work is running. The reason for the failed record is unknown, so the context is not reused.
            return green::end(device, green);
        }
        self.group.quarantine(vec![Arc::clone(green)]);
    }
}

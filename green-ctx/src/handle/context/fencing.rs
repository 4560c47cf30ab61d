//! The fence state of a green context. The module `ordering` describes how this state is used.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::guests::Guests;
use super::streams::Streams;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::fence::{Fence, Fences, Pending};

/// The fence state of a green context.
pub(super) struct Fencing {
    /// The fences that the context's streams wait for.
    pub(super) pending: Pending,
    /// The number of the context's streams that have a `Stream` object.
    pub(super) streams: AtomicUsize,
    /// Set for a context of a plan, which takes turns on its SMs with the contexts of other plans.
    pub(super) shared: Option<Shared>,
    /// Graphs that run in this context but were launched on streams of other contexts.
    pub(super) guests: OnceLock<Guests>,
    /// Set when the context's handle is first given out. From then on, foreign code may submit work to the default
    /// stream, and to streams that have no `Stream` object.
    pub(super) exposed: AtomicBool,
    /// Set once the default stream waits for the fences that were pending when the handle was given out.
    pub(super) default_waits: AtomicBool,
}

/// The additional state of a context that takes turns on its SMs with other contexts. The work of such a context is
/// recorded at switches of plans, not only when the context ends.
pub(super) struct Shared {
    /// The fence that covers the context's work up to the last record.
    pub(super) work: Arc<Fence>,
    /// The context's streams that have a `Stream` object.
    pub(super) streams: Streams,
    /// The context's name in the active plan, if plans of its set give a context different names.
    pub(super) name: Mutex<Option<Arc<str>>>,
}

impl Fencing {
    /// `work` is the fence of a context that takes turns on its SMs.
    pub(super) fn new(fences: &Fences, work: Option<Fence>) -> Fencing {
        let shared = |work| {
            let (work, streams, name) = (Arc::new(work), Streams::default(), Mutex::default());
            Shared { work, streams, name }
        };
        Fencing {
            pending: Pending::new(fences),
            streams: AtomicUsize::new(0),
            shared: work.map(shared),
            guests: OnceLock::new(),
            exposed: AtomicBool::new(false),
            default_waits: AtomicBool::new(false),
        }
    }

    /// Returns whether other contexts take turns with this context on the same SMs.
    pub(super) fn shares_sms(&self) -> bool {
        self.shared.is_some()
    }

    /// Removes and returns all pending fences, including those whose work is done.
    pub(super) fn take_pending(&self) -> impl Iterator<Item = Arc<Fence>> + use<> {
        self.pending.take()
    }

    /// Blocks the calling thread until all graphs that streams of other contexts launched in this context are done.
    pub(super) fn synchronize_guests(&self) -> Result<()> {
        self.guests.get().map_or(Ok(()), Guests::synchronize)
    }

    /// Records a fence for graphs that streams of other contexts launched in this context, after the last handle of the
    /// context is dropped.
    pub(super) fn record_guests(&self, driver: &Driver) -> Option<Arc<Fence>> {
        let guests = self.guests.get()?;
        if let Err(error) = guests.record() {
            // The next owner of the SMs has no event to wait for, so this thread waits instead.
            driver.report(Err(error));
            driver.report(guests.synchronize());
        }
        Some(Arc::clone(guests.fence()))
    }

    /// Destroys the gate stream and its events.
    pub(super) fn end_guests(&mut self) {
        drop(self.guests.take());
    }
}

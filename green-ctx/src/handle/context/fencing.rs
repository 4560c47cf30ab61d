//! The fence state of a green context. `ordering` describes its use.

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
    /// The number of streams that have an object.
    pub(super) streams: AtomicUsize,
    /// Set for a context that takes turns on its SMs with other contexts (those of plans).
    pub(super) shared: OnceLock<Shared>,
    /// Graphs that run here and were launched on streams of other contexts.
    pub(super) guests: OnceLock<Guests>,
    /// Set when the context's handle is first given out. From then on, foreign code may submit work to the default
    /// stream, and to streams without an object.
    pub(super) exposed: AtomicBool,
    /// Set once the default stream waits for the fences that were pending when the handle was given out.
    pub(super) default_waits: AtomicBool,
}

/// The additional state of a context that takes turns on its SMs. Its work is recorded while it lives.
pub(super) struct Shared {
    /// Covers the context's work up to the last record.
    pub(super) work: Arc<Fence>,
    /// The streams that have an object.
    pub(super) streams: Streams,
    /// The context's name in the active plan, if plans give it different names.
    pub(super) name: Mutex<Option<Arc<str>>>,
}

impl Fencing {
    pub(super) fn new(fences: &Fences) -> Fencing {
        Fencing {
            pending: Pending::new(fences),
            streams: AtomicUsize::new(0),
            shared: OnceLock::new(),
            guests: OnceLock::new(),
            exposed: AtomicBool::new(false),
            default_waits: AtomicBool::new(false),
        }
    }

    /// Returns whether other contexts take turns with this one on the same SMs.
    pub(super) fn shares_sms(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Takes out all pending fences, whether or not their work is done.
    pub(super) fn take_pending(&self) -> impl Iterator<Item = Arc<Fence>> + use<> {
        self.pending.take()
    }

    /// Blocks the calling thread until graphs that other contexts launched here are done.
    pub(super) fn synchronize_guests(&self) -> Result<()> {
        self.guests.get().map_or(Ok(()), Guests::synchronize)
    }

    /// Records those graphs when no handle of the context is left.
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

//! What a green context keeps for its fencing, as `ordering` describes it.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::guests::Guests;
use super::streams::Streams;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::fence::{Fence, Fences, Pending};

/// A green context's side of fencing.
pub(super) struct Fencing {
    /// What the context's streams wait for.
    pub(super) pending: Pending,
    /// How many streams objects stand for.
    pub(super) streams: AtomicUsize,
    /// Of a context that shares its SMs in time.
    pub(super) shared: OnceLock<Shared>,
    /// Graphs that streams of other contexts launched, and that run here.
    pub(super) guests: OnceLock<Guests>,
    /// Whether the context's handle has been given out: from then on there may be work in its default
    /// stream, and in streams that no object stands for.
    pub(super) exposed: AtomicBool,
    /// Whether the default stream waits for what was pending when the handle was given out.
    pub(super) default_waits: AtomicBool,
}

/// What a context has that is recorded while it lives, since it shares its SMs in time.
pub(super) struct Shared {
    /// Stands for the context's work up to its last record.
    pub(super) work: Arc<Fence>,
    /// The streams that objects stand for.
    pub(super) streams: Streams,
    /// What the active plan calls it, where plans have several names for it.
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

    /// Whether other contexts have the same SMs at other times.
    pub(super) fn shares_sms(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Takes out what is pending, done or not.
    pub(super) fn take_pending(&self) -> impl Iterator<Item = Arc<Fence>> + use<> {
        self.pending.take()
    }

    /// Waits on the host until the graphs that others launched here are done.
    pub(super) fn synchronize_guests(&self) -> Result<()> {
        self.guests.get().map_or(Ok(()), Guests::synchronize)
    }

    /// Records those graphs when no handle of the context is left.
    pub(super) fn record_guests(&self, driver: &Driver) -> Option<Arc<Fence>> {
        let guests = self.guests.get()?;
        if let Err(error) = guests.record() {
            // Nobody else can wait for them then: the host does.
            driver.report(Err(error));
            driver.report(guests.synchronize());
        }
        Some(Arc::clone(guests.fence()))
    }

    /// Ends what stands for those graphs.
    pub(super) fn end_guests(&mut self) {
        drop(self.guests.take());
    }
}

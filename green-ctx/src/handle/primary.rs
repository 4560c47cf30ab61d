//! References to a device's primary context for short-lived objects, without contention on a single reference count.
//!
//! An event holds a reference to the primary context, and through it to the driver. If each event cloned the same
//! `Context`, every creation and every drop would write the same reference count. Threads that create events at the
//! same time would wait for each other's cache lines. On an H200's host, this waiting cost more than the driver's own
//! two calls. There are therefore several counts, each on its own cache lines, and each thread uses one of these
//! counts.
//!
//! The device must not own these counts, since the primary context would then never be released. The partitions own the
//! counts: each partition needs the primary context anyway, and all partitions of a device share one [`Shares`]. If
//! there is no partition, an event holds the context directly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::handle::error::Result;

/// The number of counts, chosen higher than the number of threads that usually create events at the same time. Each
/// count takes 256 bytes.
const SHARES: usize = 16;

/// A value whose `Arc` serves as a reference count for some of a device's threads. The alignment of 128 bytes gives
/// each count its own cache lines, because processors fetch cache lines of 64 bytes in pairs.
#[repr(align(128))]
pub(crate) struct Share<C> {
    context: C,
}

/// The reference to the primary context that a device's partitions hold, with the counts for events.
pub(crate) struct Shares<C> {
    context: C,
    /// The counts. Each count is created when a thread first creates an event, so the list stays empty if no events are
    /// created.
    shares: Mutex<Vec<Arc<Share<C>>>>,
}

/// Weak references to the shares of a device. Threads can find the shares while a partition holds them.
pub(crate) struct ShareSlots<C> {
    all: Mutex<Weak<Shares<C>>>,
    slots: [Slot<C>; SHARES],
}

#[repr(align(128))]
struct Slot<C>(Mutex<Weak<Share<C>>>);

/// The reference to the primary context that an event holds.
pub(crate) enum PrimaryRef<C> {
    /// A shared count, used while a partition exists.
    Share(Arc<Share<C>>),
    Context(C),
}

impl<C> Default for ShareSlots<C> {
    fn default() -> ShareSlots<C> {
        let slots = std::array::from_fn(|_| Slot(Mutex::default()));
        ShareSlots { all: Mutex::default(), slots }
    }
}

impl<C: Clone> ShareSlots<C> {
    /// Returns the shares, which keep the primary context alive until their last holder is dropped. If there are no
    /// shares yet, calls `retain` to get the context.
    pub(crate) fn shares(&self, retain: impl FnOnce() -> Result<C>) -> Result<Arc<Shares<C>>> {
        if let Some(shares) = self.all.lock().upgrade() {
            return Ok(shares);
        }
        let fresh = Arc::new(Shares { context: retain()?, shares: Mutex::default() });
        let mut all = self.all.lock();
        if let Some(shares) = all.upgrade() {
            // Another thread stored its shares first. `fresh` is dropped without the lock.
            drop(all);
            return Ok(shares);
        }
        *all = Arc::downgrade(&fresh);
        drop(all);
        Ok(fresh)
    }

    /// Returns a reference to the primary context for an event. If no partition exists, calls `retain` to get the
    /// context.
    pub(crate) fn reference(&self, retain: impl FnOnce() -> Result<C>) -> Result<PrimaryRef<C>> {
        let Slot(slot) = &self.slots[number_of_this_thread() % SHARES];
        // Only this thread uses the slot, unless there are more threads than shares.
        let share = slot.lock().upgrade();
        if let Some(share) = share {
            return Ok(PrimaryRef::Share(share));
        }
        let shares = self.all.lock().upgrade();
        let Some(shares) = shares else {
            return retain().map(PrimaryRef::Context);
        };
        let share = shares.share();
        *slot.lock() = Arc::downgrade(&share);
        Ok(PrimaryRef::Share(share))
    }
}

impl<C: Clone> Shares<C> {
    /// Returns the primary context.
    pub(crate) fn context(&self) -> &C {
        &self.context
    }

    /// Creates a count for a thread whose slot is empty.
    fn share(&self) -> Arc<Share<C>> {
        let share = Arc::new(Share { context: self.context.clone() });
        self.shares.lock().push(Arc::clone(&share));
        share
    }
}

impl<C> PrimaryRef<C> {
    #[inline]
    pub(crate) fn context(&self) -> &C {
        match self {
            PrimaryRef::Share(share) => &share.context,
            PrimaryRef::Context(context) => context,
        }
    }
}

/// Returns this thread's number. Threads are numbered in the order in which they first call this function.
fn number_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending may still create and drop events. It can use any share.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

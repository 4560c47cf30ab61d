//! References to a device's primary context for short-lived objects, without contention on one counter.
//!
//! An event holds a reference to the primary context, and through it to the driver. If each event cloned the same
//! `Context`, every creation and every drop would write the same reference count. Threads that create events at the
//! same time would wait for each other's cache lines. On an H200's host, that cost more than the driver's own two
//! calls. There are therefore several counts, each on its own cache lines, and a thread uses one of them.
//!
//! The device must not own these counts, since the primary context would never be released. The partitions own them:
//! each needs the primary context anyway, and all partitions of a device share one [`Shares`]. If there is no
//! partition, an event holds the context directly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::handle::error::Result;

/// The number of counts, chosen higher than the number of threads that usually create events at the same time. A count
/// takes 256 bytes.
const SHARES: usize = 16;

/// A reference count that some of a device's threads use. The alignment gives it its own cache lines. Processors fetch
/// cache lines of 64 bytes in pairs.
#[repr(align(128))]
pub(crate) struct Share<C> {
    context: C,
}

/// The primary context, as a partition holds it, with the counts for events.
pub(crate) struct Shares<C> {
    context: C,
    /// Created when a thread first creates an event. A partition that is created and dropped without events has none.
    shares: Mutex<Vec<Arc<Share<C>>>>,
}

/// The shares of a device, which its threads can find while a partition holds them.
pub(crate) struct ShareSlots<C> {
    all: Mutex<Weak<Shares<C>>>,
    slots: [Slot<C>; SHARES],
}

#[repr(align(128))]
struct Slot<C>(Mutex<Weak<Share<C>>>);

/// A reference to the primary context, as an event holds it.
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
    /// Returns the shares. They keep the primary context alive until their last holder is dropped. `retain` returns the
    /// context if there are no shares yet.
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

    /// Returns a reference to the primary context for an event. `retain` returns the context if no partition exists.
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

    /// Creates the counter of a thread whose slot is empty.
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

/// Returns this thread's number. Threads are numbered in the order of their first call.
fn number_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending may still create and drop events. It can use any share.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

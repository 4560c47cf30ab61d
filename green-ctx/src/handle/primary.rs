//! How short-lived handles keep a device's primary context without sharing a counter.
//!
//! An event keeps the primary context, and with it the driver. If each one cloned the same `Context`,
//! every creation and every drop would write to the same reference count, and threads that create
//! events at once would wait for each other's cache lines: on an H200's host that cost more than the
//! driver's own two calls. So there are several counts, each on cache lines of its own, and a thread
//! uses one of them.
//!
//! The device must not hold these counts, or the primary context would never be released. The
//! partitions do: each one needs the primary context anyway, and all of a device share one
//! [`Shares`]. Without a partition an event keeps the context itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::handle::error::Result;

/// More counts than threads usually create events at once. A count costs 256 bytes.
const SHARES: usize = 16;

/// A count of its own for some of a device's threads. The alignment keeps others off the cache lines
/// that it is on; processors fetch lines in pairs of 64 bytes.
#[repr(align(128))]
pub(crate) struct Share<C> {
    context: C,
}

/// What a partition holds: the primary context, for itself and for events.
pub(crate) struct Shares<C> {
    context: C,
    /// Made when a thread first creates an event: a partition that comes and goes alone pays for none.
    shares: Mutex<Vec<Arc<Share<C>>>>,
}

/// Where a device's threads find the shares, while a partition holds them.
pub(crate) struct ShareSlots<C> {
    all: Mutex<Weak<Shares<C>>>,
    slots: [Slot<C>; SHARES],
}

#[repr(align(128))]
struct Slot<C>(Mutex<Weak<Share<C>>>);

/// What an event holds.
pub(crate) enum PrimaryRef<C> {
    /// While there is a partition.
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
    /// The shares, which keep the primary context until the last holder is gone. `retain` returns that context.
    pub(crate) fn shares(&self, retain: impl FnOnce() -> Result<C>) -> Result<Arc<Shares<C>>> {
        if let Some(shares) = self.all.lock().upgrade() {
            return Ok(shares);
        }
        let fresh = Arc::new(Shares { context: retain()?, shares: Mutex::default() });
        let mut all = self.all.lock();
        if let Some(shares) = all.upgrade() {
            // Another thread was first. Ours go without the lock.
            drop(all);
            return Ok(shares);
        }
        *all = Arc::downgrade(&fresh);
        drop(all);
        Ok(fresh)
    }

    /// What keeps the primary context for an event. `retain` returns that context.
    pub(crate) fn reference(&self, retain: impl FnOnce() -> Result<C>) -> Result<PrimaryRef<C>> {
        let Slot(slot) = &self.slots[number_of_this_thread() % SHARES];
        // Held by this thread alone, unless there are more threads than shares.
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
    /// The primary context.
    pub(crate) fn context(&self) -> &C {
        &self.context
    }

    /// A count for a thread that finds none.
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

/// Threads are numbered in the order in which they first ask.
fn number_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that ends may still drop and create: any share does for it.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

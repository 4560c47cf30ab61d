//! How short-lived handles keep a device's primary context without sharing a counter.
//!
//! An event keeps the primary context, and with it the driver. If each one cloned the same [`Context`],
//! every creation and every drop would write to the same reference count, and threads that create
//! events at once would wait for each other's cache lines: on an H200's host that cost more than the
//! driver's own two calls. So there are several counts, each on cache lines of its own, and a thread
//! uses one of them.
//!
//! The device must not hold these counts, or the primary context would never be released. The
//! partitions do: each one needs the primary context anyway, and all of a device share one
//! [`PrimaryShares`]. Without a partition an event keeps the context itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use green_ctx_sys::CUcontext;
use parking_lot::Mutex;

use crate::context::Context;
use crate::device::Device;
use crate::error::Result;

/// More counts than threads usually create events at once. A count costs 256 bytes.
const SHARES: usize = 16;

/// A count of its own for some of a device's threads. The alignment keeps others off the cache lines
/// that it is on; processors fetch lines in pairs of 64 bytes.
#[repr(align(128))]
pub(crate) struct Share {
    context: Context,
}

/// What a partition holds: the primary context, for itself and for events.
pub(crate) struct PrimaryShares {
    context: Context,
    /// Made when a thread first creates an event: a partition that comes and goes alone pays for none.
    shares: Mutex<Vec<Arc<Share>>>,
}

/// Where a device's threads find the shares, while a partition holds them.
#[derive(Default)]
pub(crate) struct ShareSlots {
    all: Mutex<Weak<PrimaryShares>>,
    slots: [Slot; SHARES],
}

#[derive(Default)]
#[repr(align(128))]
struct Slot(Mutex<Weak<Share>>);

/// What an event holds.
pub(crate) enum PrimaryRef {
    /// While there is a partition.
    Share(Arc<Share>),
    Context(Context),
}

impl PrimaryShares {
    /// The context's handle, for calls of this crate.
    pub(crate) fn raw(&self) -> CUcontext {
        self.context.raw()
    }

    /// The shares of a device, which retain its primary context until the last holder is gone.
    pub(crate) fn of(device: &Device) -> Result<Arc<PrimaryShares>> {
        device.driver().check_process()?;
        let all = &device.primary_shares().all;
        if let Some(shares) = all.lock().upgrade() {
            return Ok(shares);
        }
        let context = device.primary_context()?;
        let fresh = Arc::new(PrimaryShares { context, shares: Mutex::default() });
        let mut all = all.lock();
        if let Some(shares) = all.upgrade() {
            // Another thread was first. Ours go without the lock.
            drop(all);
            return Ok(shares);
        }
        *all = Arc::downgrade(&fresh);
        drop(all);
        Ok(fresh)
    }

    /// A count for a thread that finds none.
    fn share(&self) -> Arc<Share> {
        let share = Arc::new(Share { context: self.context.clone() });
        self.shares.lock().push(Arc::clone(&share));
        share
    }
}

impl PrimaryRef {
    pub(crate) fn of(device: &Device) -> Result<PrimaryRef> {
        device.driver().check_process()?;
        let ShareSlots { all, slots } = device.primary_shares();
        let index = number_of_this_thread() % SHARES;
        // Held by this thread alone, unless there are more threads than shares.
        let share = slots[index].0.lock().upgrade();
        if let Some(share) = share {
            return Ok(PrimaryRef::Share(share));
        }
        let shares = all.lock().upgrade();
        let Some(shares) = shares else {
            return device.primary_context().map(PrimaryRef::Context);
        };
        let share = shares.share();
        *slots[index].0.lock() = Arc::downgrade(&share);
        Ok(PrimaryRef::Share(share))
    }

    #[inline]
    pub(crate) fn context(&self) -> &Context {
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

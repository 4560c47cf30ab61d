//! Who holds which SMs, as counted handles that mirror those of green-ctx.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// SMs that are held in the device's ledger, given back when the last share of this is dropped.
pub struct Held {
    count: u32,
    total: Arc<AtomicU32>,
    /// What the SMs were divided from, if that is held until the last of its parts is gone.
    _parent: Option<Arc<Held>>,
}

impl Held {
    /// Takes SMs.
    pub fn take(total: &Arc<AtomicU32>, count: u32) -> Arc<Held> {
        total.fetch_add(count, Ordering::Relaxed);
        Arc::new(Held { count, total: Arc::clone(total), _parent: None })
    }

    /// Uses SMs of a parent, which holds them.
    pub fn within(parent: &Arc<Held>) -> Arc<Held> {
        let (total, _parent) = (Arc::clone(&parent.total), Some(Arc::clone(parent)));
        Arc::new(Held { count: 0, total, _parent })
    }

    /// Part of the SMs of a group that is divided for good: what no part takes is free again.
    pub fn part(self: &Arc<Held>, count: u32) -> Arc<Held> {
        let count = if self.count == 0 { 0 } else { count };
        self.total.fetch_add(count, Ordering::Relaxed);
        let (total, _parent) = (Arc::clone(&self.total), self._parent.clone());
        Arc::new(Held { count, total, _parent })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A partition from the making of its context to the last handle.
pub struct Partition {
    /// Its number, never used again.
    pub number: u32,
    /// The driver's number of its context, which the next partition of the same SMs may get.
    pub context_id: u64,
    /// Whether its SMs may be anybody's.
    pub overlapping: bool,
    /// Whether only the driver can split its SMs.
    pub structured: bool,
    /// The set that it is a plan's partition of.
    pub set: Option<u32>,
    /// Its SMs.
    pub held: Arc<Held>,
}

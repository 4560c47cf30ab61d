//! Slots. A C function finds its simulated driver by a slot number.
//!
//! The C functions have no parameter that identifies a simulated driver. Each simulated driver therefore
//! leases one of 32 slots, and each C function is compiled once per slot, with the slot number as a generic
//! parameter. The lease lasts as long as the driver's `Sim`.
//!
//! A call through a slot without a driver returns `CUDA_ERROR_DEINITIALIZED`. A new lease takes the slot
//! that has been free for the longest time, so that old function pointers fail for as long as possible. If
//! all slots are taken, a new lease waits for a limited time.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use green_ctx_sys::CUresult;
use parking_lot::{Condvar, Mutex};

use crate::driver::Driver;
use crate::pointer::Answer;

/// The maximum number of simulated drivers per process.
pub(crate) const SLOTS: usize = 32;

static DRIVERS: [ArcSwapOption<Driver>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];

/// The free slots; the one freed last is at the end.
static FREE: Mutex<Option<Vec<usize>>> = Mutex::new(None);
/// The condition variable that wakes one of the threads waiting for a slot.
static GIVEN_BACK: Condvar = Condvar::new();

/// A leased slot; dropping it frees the slot.
pub(crate) struct Lease {
    slot: usize,
}

impl Lease {
    /// Takes the slot that has been free for the longest time. If all slots are taken, waits for at most
    /// `patience`, and then returns `None`.
    pub(crate) fn take(patience: Duration) -> Option<Lease> {
        let mut free = FREE.lock();
        free.get_or_insert_with(|| (0..SLOTS).collect());
        let none = |free: &mut Option<Vec<usize>>| free.as_ref().is_none_or(Vec::is_empty);
        GIVEN_BACK.wait_while_for(&mut free, none, patience);
        let free = free.as_mut().filter(|free| !free.is_empty())?;
        Some(Lease { slot: free.remove(0) })
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Makes `driver` the driver of this slot.
    pub(crate) fn fill(&self, driver: Arc<Driver>) {
        DRIVERS[self.slot].store(Some(driver));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        DRIVERS[self.slot].store(None);
        if let Some(free) = FREE.lock().as_mut() {
            free.push(self.slot);
            GIVEN_BACK.notify_one();
        }
    }
}

/// Runs a call of the function `id` on the driver of `slot`.
#[inline]
pub(crate) fn enter(slot: usize, id: usize, work: impl FnOnce(&Driver) -> Answer) -> CUresult {
    match DRIVERS[slot].load().as_deref() {
        Some(driver) => driver.enter(id, work),
        None => CUresult::CUDA_ERROR_DEINITIALIZED,
    }
}

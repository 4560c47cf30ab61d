//! Where the C functions find their driver.
//!
//! A C function has no user data, so each simulated driver has a slot, and each function exists
//! once a slot. A slot holds its driver for as long as a [`Sim`](crate::Sim) does.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use green_ctx_sys::CUresult;
use parking_lot::Mutex;

use crate::driver::Driver;
use crate::pointer::Answer;

/// How many simulated drivers live in a process at once.
pub(crate) const SLOTS: usize = 32;

static DRIVERS: [ArcSwapOption<Driver>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];

/// The free slots, the one that was given back last at the end.
static FREE: Mutex<Option<Vec<usize>>> = Mutex::new(None);

/// A slot, held until this is dropped.
pub(crate) struct Lease {
    slot: usize,
}

impl Lease {
    /// Takes the slot that has been free for longest, so that functions of a driver that is gone
    /// stay dead for as long as possible; `None` where all are taken.
    pub(crate) fn take() -> Option<Lease> {
        let mut free = FREE.lock();
        let free = free.get_or_insert_with(|| (0..SLOTS).collect());
        (!free.is_empty()).then(|| Lease { slot: free.remove(0) })
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Lets the slot's functions find `driver`.
    pub(crate) fn fill(&self, driver: Arc<Driver>) {
        DRIVERS[self.slot].store(Some(driver));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        DRIVERS[self.slot].store(None);
        if let Some(free) = FREE.lock().as_mut() {
            free.push(self.slot);
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

//! Functions that let go of partitions which nobody uses any more: other crates' part in giving SMs back.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::driver::Driver;

type Hook = dyn Fn(&Driver) + Send + Sync;

/// A function that lets go of partitions ([`Driver::on_reclaim`]). Dropping this removes it; a call that
/// is under way on another thread goes on.
///
/// The driver does not keep the function, so that it may own handles of the driver.
#[must_use = "dropping this removes the function"]
pub struct ReclaimHook {
    _hook: Arc<Hook>,
}

impl ReclaimHook {
    /// Keeps the function, and everything that it owns, for as long as the process lives.
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl fmt::Debug for ReclaimHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReclaimHook").finish_non_exhaustive()
    }
}

/// A driver's functions that let go of partitions, in the order in which they were registered.
#[derive(Default)]
pub(crate) struct ReclaimHooks {
    /// Whether the list may hold a living function. Changed under its lock.
    any: AtomicBool,
    list: Mutex<Vec<Weak<Hook>>>,
}

impl ReclaimHooks {
    pub(crate) fn add(&self, driver: &Driver, hook: Arc<Hook>) -> ReclaimHook {
        // In a forked child the list's lock may be held for ever.
        if !driver.is_forked() {
            let mut list = self.list.lock();
            list.push(Arc::downgrade(&hook));
            self.any.store(true, Ordering::Relaxed);
        }
        ReclaimHook { _hook: hook }
    }

    /// Calls every function, unless this thread is in one already.
    #[inline]
    pub(crate) fn call(&self, driver: &Driver) {
        // A function that was registered before this call, as the program sees it, is seen here.
        if self.any.load(Ordering::Relaxed) {
            self.call_each(driver);
        }
    }

    #[cold]
    fn call_each(&self, driver: &Driver) {
        if driver.is_forked() {
            return;
        }
        let Some(_calling) = Calling::enter() else { return };
        for hook in self.living() {
            hook(driver);
        }
    }

    /// The functions that were not removed. They are called, and may end, without the lock.
    fn living(&self) -> Vec<Arc<Hook>> {
        let mut list = self.list.lock();
        list.retain(|hook| hook.strong_count() > 0);
        self.any.store(!list.is_empty(), Ordering::Relaxed);
        list.iter().filter_map(Weak::upgrade).collect()
    }
}

thread_local! {
    /// Whether this thread is in such a function.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Set while this thread calls functions, however they end.
struct Calling;

impl Calling {
    fn enter() -> Option<Calling> {
        // Made only where it was not set: the end of one unsets it.
        (!CALLING.replace(true)).then(|| Calling)
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        CALLING.set(false);
    }
}

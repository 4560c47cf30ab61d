//! Hooks that release partitions which another library no longer uses.
//!
//! The hooks run before a device's SMs are split and before a context, a partition or a set of plans is
//! closed. The call has changed nothing at that point and holds no lock, so a panic of a hook propagates to
//! the caller. Dry runs and splits of a group run no hooks.
//!
//! A split or a close that a hook itself makes runs no hooks: a flag of the thread marks that one is running.
//! While no hook is registered, a call reads one flag of the driver.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::handle::driver::{Driver, InSlot, Slot};

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
struct ReclaimHooks {
    /// Whether the list may hold a living function. Changed under its lock.
    any: AtomicBool,
    list: Mutex<Vec<Weak<Hook>>>,
}

impl ReclaimHooks {
    fn add(&self, driver: &Driver, hook: Arc<Hook>) -> ReclaimHook {
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
    fn call(&self, driver: &Driver) {
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

impl InSlot for ReclaimHooks {
    const SLOT: Slot = Slot::ReclaimHooks;

    fn make(_driver: &Driver) -> ReclaimHooks {
        ReclaimHooks::default()
    }
}

impl Driver {
    /// Registers a function that lets go of partitions which nobody uses any more. It is for code that
    /// keeps streams or contexts for another library which does not report when it needs them no
    /// longer.
    ///
    /// The function is called before the SMs of one of the driver's devices are split, and before a context,
    /// a partition or a set of plans is closed: on the thread that does so, with no lock of this crate held. A
    /// dry run only reads and calls no function. What the function does must be allowed there, and it may drop
    /// handles of any kind. Several functions are called in the order in which they were registered. What they
    /// split or close calls none of them again. A panic goes on to the caller of the split, which has done
    /// nothing yet, or of the close, which drops what it was to close. In a forked process
    /// ([`is_forked`](Driver::is_forked)) no function is called.
    ///
    /// Dropping the result removes the function. The driver keeps neither, and lends itself to each call,
    /// so a function that owns no handle of the driver does not keep it either.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::{Arc, Mutex};
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let group = device.resources().sm()?.split([120])?.groups.remove(0);
    /// # let stream = device.create_context(group)?.create_stream(StreamOptions::default())?;
    /// // A stream is kept for as long as another library has something of it.
    /// let theirs = Arc::new("something");
    /// let kept = Mutex::new(vec![(Arc::clone(&theirs), stream)]);
    /// let _hook = driver.on_reclaim(move |_| {
    ///     let unused = |(theirs, _): &mut (Arc<_>, _)| Arc::strong_count(theirs) == 1;
    ///     let ended: Vec<_> = kept.lock().expect("no panic").extract_if(.., unused).collect();
    ///     // The streams end here, without the lock: that calls the driver.
    ///     drop(ended);
    /// });
    ///
    /// assert!(device.resources().sm()?.split([120]).is_err());
    /// drop(theirs);
    /// assert!(device.resources().sm()?.split([120]).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_reclaim(&self, hook: impl Fn(&Driver) + Send + Sync + 'static) -> ReclaimHook {
        self.slot::<ReclaimHooks>().add(self, Arc::new(hook))
    }

    /// Has other crates let go of partitions which nobody uses any more. The caller holds no lock.
    #[inline]
    pub(crate) fn reclaim(&self) {
        self.slot::<ReclaimHooks>().call(self);
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

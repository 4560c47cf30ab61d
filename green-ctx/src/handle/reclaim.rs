//! Hooks that release partitions that another library no longer uses.
//!
//! The hooks run before a device's SMs are split, and before a context, a partition or a plan set is closed. At that
//! point the call has changed nothing and holds no lock, so a panic in a hook can propagate to the caller. Dry runs and
//! splits of a group run no hooks.
//!
//! A split or a close that a hook makes runs no hooks, because a thread-local flag is set while a hook runs. While no
//! hook is registered, a split or a close only reads one flag of the driver.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::handle::driver::{Driver, InSlot, Slot};

type Hook = dyn Fn(&Driver) + Send + Sync;

/// The registration of a reclaim hook ([`Driver::on_reclaim`]). Dropping this value removes the hook. If another thread
/// is running the hook at that moment, that run still completes.
///
/// The driver does not own the hook, so the hook may own objects of the driver.
#[must_use = "dropping this removes the function"]
pub struct ReclaimHook {
    _hook: Arc<Hook>,
}

impl ReclaimHook {
    /// Keeps the hook registered until the process ends. Everything that the hook owns also stays alive.
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl fmt::Debug for ReclaimHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReclaimHook").finish_non_exhaustive()
    }
}

/// A driver's reclaim hooks, in the order of their registration.
#[derive(Default)]
struct ReclaimHooks {
    /// Set if the list may contain a live hook. The flag is changed only under the list's lock.
    any: AtomicBool,
    list: Mutex<Vec<Weak<Hook>>>,
}

impl ReclaimHooks {
    fn add(&self, driver: &Driver, hook: Arc<Hook>) -> ReclaimHook {
        // In a forked child, a thread that no longer exists may hold the list's lock forever.
        if !driver.is_forked() {
            let mut list = self.list.lock();
            list.push(Arc::downgrade(&hook));
            self.any.store(true, Ordering::Relaxed);
        }
        ReclaimHook { _hook: hook }
    }

    /// Calls every hook, unless this thread is already running a hook.
    #[inline]
    fn call(&self, driver: &Driver) {
        // `Relaxed` is enough: a hook whose registration the program orders before this call is visible here.
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

    /// Returns the hooks that have not been removed. The caller calls and drops these hooks after the lock is released.
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
    /// Registers a hook that drops partitions that are no longer used. Such a hook is for code that keeps streams or
    /// contexts alive for another library, if that library does not report when it stops using them.
    ///
    /// The hook runs before the SMs of one of the driver's devices are split, and before a context, a partition or a
    /// plan set is closed. The hook runs on the thread that splits or closes, while this crate holds no lock. Dry runs
    /// call no hooks.
    ///
    /// - A hook may make only calls that are allowed on the calling thread. A hook may drop objects of any kind.
    /// - Hooks run in the order in which they were registered.
    /// - Splits and closes made by a hook call no hooks.
    /// - If a hook panics, the panic propagates to the caller. A split then ends without having changed anything, and a
    ///   close drops the object that it was called on.
    /// - In a forked process ([`is_forked`](Driver::is_forked)), no hook is called.
    ///
    /// Dropping the returned [`ReclaimHook`] removes the hook. The driver does not own the hook, and passes itself as
    /// an argument of each call. A hook that owns no objects of the driver therefore does not keep the driver alive.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::{Arc, Mutex};
    /// # use green_ctx::{Driver, StreamOptions, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let group = device.resources().sm()?.split([120])?.groups.remove(0);
    /// # let stream = device.create_context(group)?.create_stream(StreamOptions::default())?;
    /// // The stream is kept while another library uses `theirs`.
    /// let theirs = Arc::new("something");
    /// let kept = Mutex::new(vec![(Arc::clone(&theirs), stream)]);
    /// let _hook = driver.on_reclaim(move |_| {
    ///     let unused = |(theirs, _): &mut (Arc<_>, _)| Arc::strong_count(theirs) == 1;
    ///     let ended: Vec<_> = kept.lock().expect("no panic").extract_if(.., unused).collect();
    ///     // Drop the streams without the lock, since that calls the driver.
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

    /// Runs the reclaim hooks. The caller must hold no lock.
    #[inline]
    pub(crate) fn reclaim(&self) {
        self.slot::<ReclaimHooks>().call(self);
    }
}

thread_local! {
    /// Set while this thread runs a hook.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Sets `CALLING` while this thread runs hooks. Dropping this value resets the flag, even if a hook panics.
struct Calling;

impl Calling {
    fn enter() -> Option<Calling> {
        // `then`, not `then_some`: a value that is created although the flag was set would reset the flag when dropped.
        (!CALLING.replace(true)).then(|| Calling)
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        CALLING.set(false);
    }
}

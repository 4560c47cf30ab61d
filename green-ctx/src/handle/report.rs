//! The hook for failed clean-ups, one per driver.
//!
//! The hook runs in the middle of a clean-up. If the hook panics, the panic is caught and written to standard error,
//! since unwinding would skip the rest of the clean-up. For example, the fence that the next owner of the SMs waits for
//! would be lost. Without a hook, failures are written to standard error.
//!
//! After a sticky error, every clean-up on the device fails for the same reason, so only the first such failure per
//! driver is reported. `CUDA_ERROR_DEINITIALIZED` is not reported: a driver that shuts down has already released
//! everything.
//!
//! The hook is the program's code and may use any object, so it must not run while this crate holds a lock that the
//! hook could wait for. A lock that is held during driver calls is therefore passed to [`hold`], which collects the
//! failures of this thread until the lock is released.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use green_ctx_sys::CUresult;
use parking_lot::RwLock;

use crate::handle::error::{Error, Result};

type Hook = dyn Fn(&Error) + Send + Sync;

/// The registration of a hook for failed clean-ups ([`Driver::on_cleanup_failure`]). Dropping this value removes the
/// hook. Without a hook, failures are written to standard error.
///
/// The driver does not own the hook, so the hook may own objects of the driver.
///
/// [`Driver::on_cleanup_failure`]: crate::Driver::on_cleanup_failure
#[must_use = "dropping this removes the hook"]
pub struct CleanupHook {
    _hook: Arc<Hook>,
}

impl CleanupHook {
    /// Keeps the hook registered until the process ends. Everything that the hook owns also stays alive.
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl fmt::Debug for CleanupHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CleanupHook").finish_non_exhaustive()
    }
}

/// Runs code of the program. Returns `None` if that code panics.
fn contain<R>(run: impl FnOnce() -> R) -> Option<R> {
    // Forget the panic's payload, since dropping it may panic again.
    catch_unwind(AssertUnwindSafe(run)).map_err(mem::forget).ok()
}

/// A driver's hook for failed clean-ups.
pub(crate) struct Reporter {
    /// The hook. If no hook is set, failures are written to standard error.
    hook: RwLock<Option<Weak<Hook>>>,
    /// Set once a failed device was reported. Every later clean-up of the device fails for the same reason.
    reported_fault: AtomicBool,
}

impl Reporter {
    pub(crate) fn new() -> Reporter {
        Reporter { hook: RwLock::new(None), reported_fault: AtomicBool::new(false) }
    }

    /// Replaces the hook.
    pub(crate) fn set(&self, hook: Arc<Hook>) -> CleanupHook {
        *self.hook.write() = Some(Arc::downgrade(&hook));
        CleanupHook { _hook: hook }
    }

    #[inline]
    pub(crate) fn report(&self, result: Result<()>) {
        if let Err(error) = result {
            self.report_error(error);
        }
    }

    #[cold]
    fn report_error(&self, error: Error) {
        let mut failure = self.failure(error);
        later(|(locks, failures)| failures.extend(failure.take_if(|_| *locks > 0)));
        failure.into_iter().for_each(Failure::report);
    }

    /// Reports an error on a thread that must not call CUDA. If this function holds the last reference to the hook, the
    /// hook and its captured objects are dropped on a new thread.
    #[cold]
    pub(crate) fn report_error_in_stream(&self, error: Error) {
        let Some(failure) = self.failure(error) else { return };
        failure.call_hook();
        if failure.hook.is_some() {
            thread::spawn(move || drop(failure));
        }
    }

    /// Returns a failure that must be reported, with the hook that is set now.
    fn failure(&self, error: Error) -> Option<Failure> {
        // A driver that is shutting down has already released everything.
        let is_over = error.status() == Some(CUresult::CUDA_ERROR_DEINITIALIZED);
        if is_over || error.is_sticky() && self.reported_fault.swap(true, Ordering::Relaxed) {
            return None;
        }
        let hook = self.hook.read().as_ref().and_then(Weak::upgrade);
        Some(Failure { hook, error })
    }
}

/// A failed clean-up, and the hook that is called with it.
struct Failure {
    hook: Option<Arc<Hook>>,
    error: Error,
}

impl Failure {
    fn report(self) {
        self.call_hook();
        // This may drop the last reference to the hook and to everything that it captured, which may panic.
        contain(move || drop(self));
    }

    /// Calls the hook. Never panics, since the clean-up continues afterwards.
    fn call_hook(&self) {
        let Failure { hook, error } = self;
        let reported = contain(|| {
            crate::handle::trace::event!(WARN, error = %error, "a clean-up failed");
            hook.as_ref().map(|hook| hook(error)).is_some()
        });
        let problem = match reported {
            Some(true) => return,
            Some(false) => "a clean-up failed",
            None => "the clean-up hook panicked when it was called with",
        };
        // Not `eprintln!`, which panics if standard error cannot be written.
        let _ = writeln!(std::io::stderr(), "green-ctx: {problem}: {error}");
    }
}

thread_local! {
    /// The number of locks that this thread holds, and the failures that it reports once it holds none.
    static LATER: RefCell<(usize, Vec<Failure>)> = const { RefCell::new((0, Vec::new())) };
}

/// Calls `act` with the thread's failures. Returns `None` on a thread that is ending, which reports immediately.
fn later<R>(act: impl FnOnce(&mut (usize, Vec<Failure>)) -> R) -> Option<R> {
    LATER.try_with(|later| act(&mut later.borrow_mut())).ok()
}

/// A lock that is held during driver calls.
pub(crate) struct Held<G>(Option<G>);

/// Collects the failures of this thread while it holds `lock`, and reports them after the lock is released.
pub(crate) fn hold<G>(lock: G) -> Held<G> {
    later(|(locks, _)| *locks += 1);
    Held(Some(lock))
}

impl<G> Drop for Held<G> {
    fn drop(&mut self) {
        self.0 = None;
        let failures = later(|(locks, failures)| {
            *locks -= 1;
            if *locks == 0 { mem::take(failures) } else { Vec::new() }
        });
        failures.into_iter().flatten().for_each(Failure::report);
    }
}

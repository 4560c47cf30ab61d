//! The hook for failed clean-ups, one per driver.
//!
//! The hook runs in the middle of a clean-up. If the hook panics, the panic is caught and written to standard error,
//! since unwinding would skip the rest of the clean-up. For example, the fence that the next owner of the SMs waits for
//! would be lost. Without a hook, failures are written to standard error.
//!
//! After a sticky error, every clean-up on the device fails for the same reason, so only the first such failure per
//! driver is reported. `CUDA_ERROR_DEINITIALIZED` is not reported: a driver that shuts down has already released
//! everything.

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
            self.report_error(&error);
        }
    }

    #[cold]
    pub(crate) fn report_error(&self, error: &Error) {
        let hook = self.hook();
        self.call(hook.as_deref(), error);
        // This may drop the last reference to the hook and to everything that it captured, which may panic.
        contain(move || drop(hook));
    }

    /// Reports an error on a thread that must not call CUDA. If this function holds the last reference to the hook, the
    /// hook and its captured objects are dropped on a new thread.
    #[cold]
    pub(crate) fn report_error_in_stream(&self, error: &Error) {
        let hook = self.hook();
        self.call(hook.as_deref(), error);
        if hook.is_some() {
            thread::spawn(move || drop(hook));
        }
    }

    fn hook(&self) -> Option<Arc<Hook>> {
        self.hook.read().as_ref().and_then(Weak::upgrade)
    }

    /// Reports an error. Never panics, since the clean-up continues afterwards.
    fn call(&self, hook: Option<&Hook>, error: &Error) {
        // A driver that is shutting down has already released everything.
        if error.status() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
            return;
        }
        if error.is_sticky() && self.reported_fault.swap(true, Ordering::Relaxed) {
            return;
        }
        let reported = contain(|| {
            crate::handle::trace::event!(WARN, error = %error, "a clean-up failed");
            hook.map(|hook| hook(error)).is_some()
        });
        // Not `eprintln!`, which panics if standard error cannot be written.
        let _ = match reported {
            Some(true) => Ok(()),
            Some(false) => writeln!(std::io::stderr(), "green-ctx: a clean-up failed: {error}"),
            None => writeln!(
                std::io::stderr(),
                "green-ctx: the clean-up hook panicked when it was called with: {error}"
            ),
        };
    }
}

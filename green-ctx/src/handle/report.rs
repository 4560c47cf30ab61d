//! The hook for failed clean-ups, one per driver.
//!
//! The hook runs in the middle of a clean-up. Its panic is caught and written to standard error, since
//! unwinding would skip the rest of the clean-up, such as the fence that the next owner of the SMs waits for.
//! Without a hook, failures are written to standard error.
//!
//! After a sticky error, every clean-up on the device fails for the same reason, so only the first one per
//! driver is reported. `CUDA_ERROR_DEINITIALIZED` is not reported: a driver that shuts down has cleaned up
//! itself.

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

/// A hook for failed clean-ups ([`Driver::on_cleanup_failure`]). Dropping this removes it.
///
/// The driver does not keep the hook, so that it may own handles of the driver. Without a hook, failures
/// go to standard error.
///
/// [`Driver::on_cleanup_failure`]: crate::Driver::on_cleanup_failure
#[must_use = "dropping this removes the hook"]
pub struct CleanupHook {
    _hook: Arc<Hook>,
}

impl CleanupHook {
    /// Keeps the hook, and everything that it owns, for as long as the process lives.
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl fmt::Debug for CleanupHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CleanupHook").finish_non_exhaustive()
    }
}

/// Runs the program's code; `None` where it panics.
fn contain<R>(run: impl FnOnce() -> R) -> Option<R> {
    // Dropping what it panicked with may panic again.
    catch_unwind(AssertUnwindSafe(run)).map_err(mem::forget).ok()
}

/// A driver's hook for failed clean-ups.
pub(crate) struct Reporter {
    /// Without one, failures go to standard error.
    hook: RwLock<Option<Weak<Hook>>>,
    /// Whether the hook has heard that a device failed. After that every handle of the device fails
    /// to be destroyed, for the same reason.
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
        // It may be the last owner of whatever the hook captured.
        contain(move || drop(hook));
    }

    /// Calls the hook where CUDA cannot be called. The hook may be the last owner of handles by then: they end
    /// on a thread of their own.
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

    /// Reports an error. Clean-ups go on after this, so that nothing unwinds out of it.
    fn call(&self, hook: Option<&Hook>, error: &Error) {
        // A driver that is shutting down has cleaned up itself.
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
        // Not `eprintln!`: it panics where there is no standard error to write to.
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

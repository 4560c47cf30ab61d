//! Where failed clean-ups go: one hook a driver.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_sys::CUresult;
use parking_lot::RwLock;

use crate::error::{Error, Result};

type Hook = dyn Fn(&Error) + Send + Sync;

/// A driver's hook for failed clean-ups.
pub(crate) struct Reporter {
    hook: RwLock<Arc<Hook>>,
    /// Whether the hook has heard that a device failed. After that every handle of the device fails
    /// to be destroyed, for the same reason.
    told_of_fault: AtomicBool,
}

impl Reporter {
    /// Writes to standard error, until [`set`](Reporter::set).
    pub(crate) fn new() -> Reporter {
        let hook = |error: &Error| {
            // Not `eprintln!`: it panics where there is no standard error to write to.
            let _ = writeln!(std::io::stderr(), "green-ctx: a clean-up failed: {error}");
        };
        Reporter { hook: RwLock::new(Arc::new(hook)), told_of_fault: AtomicBool::new(false) }
    }

    pub(crate) fn set(&self, hook: Arc<Hook>) {
        let former = std::mem::replace(&mut *self.hook.write(), hook);
        // Outside of the lock: dropping a hook runs the caller's code.
        drop(former);
    }

    #[inline]
    pub(crate) fn report(&self, result: Result<()>) {
        if let Err(error) = result {
            self.tell(&error);
        }
    }

    #[cold]
    pub(crate) fn tell(&self, error: &Error) {
        // A driver that is shutting down has cleaned up itself.
        if error.status() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
            return;
        }
        if error.is_sticky() && self.told_of_fault.swap(true, Ordering::Relaxed) {
            return;
        }
        crate::trace::event!(WARN, error = %error, "a clean-up failed");
        let hook = Arc::clone(&self.hook.read());
        hook(error);
    }
}

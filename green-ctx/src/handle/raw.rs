//! Raw driver handles that can be sent between threads.

use std::ptr::NonNull;

/// A handle from the driver, which is never null. The object that holds the handle decides when the driver's object is
/// destroyed.
pub(crate) struct Raw<T>(NonNull<T>);

impl<T> Raw<T> {
    /// Wraps the handle that a successful driver call returned. Returns `None` for a null handle.
    pub(crate) fn new(raw: *mut T) -> Option<Raw<T>> {
        NonNull::new(raw).map(Raw)
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }

    /// Returns the address, for use as a key.
    pub(crate) fn address(self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Raw<T> {
        *self
    }
}

impl<T> Copy for Raw<T> {}

#[allow(unsafe_code, reason = "the driver's threading rule is stated here once")]
mod threads {
    use super::Raw;

    // SAFETY: a driver handle identifies an object of the process, not of a thread. Handles are only passed to the
    // driver, never dereferenced. cuda.h up to CUDA 13.4 requires calls on a `CUgreenCtx` to be serialised, and the
    // callers serialise these calls with `Calls`.
    unsafe impl<T> Send for Raw<T> {}
    // SAFETY: a shared reference only gives out copies of the handle, and those may be sent between threads.
    unsafe impl<T> Sync for Raw<T> {}
}

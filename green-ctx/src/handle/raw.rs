//! Raw driver handles that may cross threads.

use std::ptr::NonNull;

/// A handle that the driver gave out: never null, owned by whoever holds it.
pub(crate) struct Raw<T>(NonNull<T>);

impl<T> Raw<T> {
    /// Takes what a successful call wrote; a null handle is none.
    pub(crate) fn new(raw: *mut T) -> Option<Raw<T>> {
        NonNull::new(raw).map(Raw)
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }

    /// The address, as a key.
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

#[allow(unsafe_code, reason = "the driver's rule on threads is said here once")]
mod threads {
    use super::Raw;

    // SAFETY: driver handles name objects of the process, not of a thread, and are only passed to
    // the driver. What the driver wants serialised (calls on a CUgreenCtx, by the header up to
    // 13.4) is serialised where it is called.
    unsafe impl<T> Send for Raw<T> {}
    // SAFETY: as above; a shared reference gives nothing but a copy of the handle.
    unsafe impl<T> Sync for Raw<T> {}
}

//! Holding the driver's handles between calls.
#![allow(unsafe_code, reason = "says that handles may cross threads")]

/// A driver's handle, kept between calls.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Handle<T>) -> bool {
        self.0 == other.0
    }
}

// SAFETY: a handle is a name that is only passed to the driver, which takes it on any thread.
unsafe impl<T> Send for Handle<T> {}

// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

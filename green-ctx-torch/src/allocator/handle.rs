//! A raw handle of the driver that is stored between calls.
#![allow(unsafe_code, reason = "implements `Send` and `Sync` for raw handles")]

/// A raw handle of the driver. Only the driver dereferences the pointer.
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

// SAFETY: this crate never dereferences the pointer. It only passes it to the driver, which accepts it on any thread.
unsafe impl<T> Send for Handle<T> {}

// SAFETY: as for `Send`. A shared reference only gives access to the pointer's value.
unsafe impl<T> Sync for Handle<T> {}

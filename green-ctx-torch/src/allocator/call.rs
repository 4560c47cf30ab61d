//! Calling the driver, and holding handles between calls.
#![allow(unsafe_code, reason = "says that handles may cross threads")]

use green_ctx::{CUresult, Error, Result};

/// Turns a driver's answer into a result.
pub(super) fn check(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Error::Driver { call, status }) }
}

/// Calls a driver function by name: looks it up, calls it, checks the answer.
///
/// Expands to a call of a foreign function, so it stands in an `unsafe` block at the call site, with
/// the reason why the arguments are right.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::allocator::call::check(stringify!($function), $api.$function()?($($argument),*))
    };
}
pub(super) use call;

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

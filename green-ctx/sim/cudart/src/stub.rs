//! The function that the generated stubs call.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_long};
use std::sync::{Mutex, PoisonError};

use green_ctx_sys::CUresult;

use crate::error;

/// Reports a function that is not simulated, once per function and process, and returns the function's result:
/// `cudaErrorNotSupported`, or 1, which is an error in all other libraries.
// SAFETY: no other function of the library has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn greenCtxNotSimulated(name: *const c_char) -> c_long {
    static REPORTED: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    // SAFETY: the name is a literal of a stub, and this library is never unloaded.
    let name = unsafe { CStr::from_ptr(name) };
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        eprintln!("simulated CUDA runtime: {} is not simulated and fails", name.to_string_lossy());
    }
    match name.to_bytes().starts_with(b"cuda") {
        true => error::note(CUresult::CUDA_ERROR_NOT_SUPPORTED).0.into(),
        false => 1,
    }
}

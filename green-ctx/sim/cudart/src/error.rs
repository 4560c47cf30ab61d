//! The thread's last error, and the names of errors.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null;
use std::sync::{Mutex, PoisonError};

use green_ctx_sys::CUresult;

use crate::driver::{cuGetErrorName, cuGetErrorString};

thread_local! {
    static LAST: Cell<CUresult> = const { Cell::new(CUresult::CUDA_SUCCESS) };
}

/// `cudaErrorInvalidPitchValue` and `cudaErrorInvalidMemcpyDirection`, which the driver does not have.
pub(crate) const INVALID_PITCH: CUresult = CUresult(12);
pub(crate) const INVALID_DIRECTION: CUresult = CUresult(21);

/// The errors whose name in the runtime has other words than in the driver.
const NAMES: &[(CUresult, &str)] = &[
    (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "cudaErrorMemoryAllocation"),
    (CUresult::CUDA_ERROR_NOT_INITIALIZED, "cudaErrorInitializationError"),
    (CUresult::CUDA_ERROR_INVALID_CONTEXT, "cudaErrorDeviceUninitialized"),
    (CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "cudaErrorNoKernelImageForDevice"),
    (CUresult::CUDA_ERROR_INVALID_HANDLE, "cudaErrorInvalidResourceHandle"),
    (CUresult::CUDA_ERROR_NOT_FOUND, "cudaErrorSymbolNotFound"),
    (CUresult::CUDA_ERROR_LAUNCH_FAILED, "cudaErrorLaunchFailure"),
    (INVALID_PITCH, "cudaErrorInvalidPitchValue"),
    (INVALID_DIRECTION, "cudaErrorInvalidMemcpyDirection"),
];

/// Stores a failure as the thread's last error.
pub(crate) fn note(status: CUresult) -> CUresult {
    if status != CUresult::CUDA_SUCCESS {
        LAST.set(status);
    }
    status
}

pub(crate) fn of(status: CUresult) -> Result<(), CUresult> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(status) }
}

/// Returns the runtime's name of an error: `cudaErrorInvalidValue` for the driver's `CUDA_ERROR_INVALID_VALUE`.
fn name(error: CUresult) -> String {
    if let Some((_, name)) = NAMES.iter().find(|(of, _)| *of == error) {
        return (*name).to_owned();
    }
    let mut text = null();
    // SAFETY: the pointer is to a local variable.
    if unsafe { cuGetErrorName(error, &mut text) } != CUresult::CUDA_SUCCESS {
        return "unrecognized error code".to_owned();
    }
    // SAFETY: the driver's names end with a null byte and are never freed.
    let driver = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let words = driver.split('_').skip(1).map(|word| {
        let (first, rest) = word.split_at(1);
        format!("{first}{}", rest.to_lowercase())
    });
    format!("cuda{}", words.collect::<String>())
}

// SAFETY: no other function of the library has this name, here and below.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> CUresult {
    LAST.replace(CUresult::CUDA_SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> CUresult {
    LAST.get()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(error: CUresult) -> *const c_char {
    /// The requested names. They are never removed, so that callers can keep them.
    static TEXTS: Mutex<BTreeMap<CUresult, CString>> = Mutex::new(BTreeMap::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.entry(error).or_insert_with(|| CString::new(name(error)).unwrap_or_default()).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(error: CUresult) -> *const c_char {
    let mut text = null();
    // SAFETY: the pointer is to a local variable.
    match unsafe { cuGetErrorString(error, &mut text) } {
        CUresult::CUDA_SUCCESS => text,
        _ if error == INVALID_DIRECTION => c"invalid copy direction for memcpy".as_ptr(),
        _ => c"unrecognized error code".as_ptr(),
    }
}

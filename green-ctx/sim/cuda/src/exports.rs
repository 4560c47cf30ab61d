//! The exported functions.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use green_ctx_sys::*;

use crate::launches;
use crate::machine::{profile, sim};

/// Returns the name of the simulated profile; null if the driver could not be created. `green-ctx-sys`
/// looks up this function to distinguish a simulated library from NVIDIA's, which does not export it.
// SAFETY: no other function of this library has this name, and `cuda.h` does not declare it.
#[allow(non_snake_case, reason = "the name has the style of the driver's functions")]
#[unsafe(no_mangle)]
extern "C" fn greenCtxSimulatedProfile() -> *const c_char {
    profile().map_or(std::ptr::null(), CStr::as_ptr)
}

/// Returns the kernel launches since the last call, as a JSON list of events in the form of Chrome's traces, which
/// torch's profiler writes too. The text is valid until the thread's next call.
// SAFETY: as above.
#[allow(non_snake_case, reason = "the name has the style of the driver's functions")]
#[unsafe(no_mangle)]
extern "C" fn greenCtxSimulatedLaunches() -> *const c_char {
    thread_local! {
        static TEXT: RefCell<CString> = RefCell::default();
    }
    let text = CString::new(launches::events(&launches::take())).unwrap_or_default();
    TEXT.with_borrow_mut(|kept| {
        *kept = text;
        kept.as_ptr()
    })
}

macro_rules! exports {
    ($($export:ident: $plain:ident = $name:literal $version:literal ($($arg:ident: $ty:ty),*);)*) => {$(
        // SAFETY: no other function of this library has this name. A program that loads the library
        // expects the driver's function under this name, with this signature.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $export($($arg: $ty),*) -> CUresult {
            let Some(sim) = sim() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
            if sim.spec().version() < $version {
                return CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
            }
            // SAFETY: this function passes its arguments on unchanged, so the caller's guarantees
            // still hold for them.
            unsafe { green_ctx_sim::entrances::$export(sim.slot(), $($arg),*) }
        }
    )*};
}

green_ctx_sim::driver_functions!(exports);

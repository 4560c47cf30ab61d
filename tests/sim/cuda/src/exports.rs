//! The exported functions.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use green_ctx_sys::*;

use crate::machine::sim;

macro_rules! exports {
    ($($export:ident: $plain:ident = $name:literal $version:literal ($($arg:ident: $ty:ty),*);)*) => {$(
        // SAFETY: no other function of this library has the name, and a program that loads the
        // library expects the driver's function under it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $export($($arg: $ty),*) -> CUresult {
            let Some(sim) = sim() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
            if sim.spec().version() < $version {
                return CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
            }
            // SAFETY: the arguments are passed on with the caller's promise about them.
            unsafe { green_ctx_sim::entrances::$export(sim.slot(), $($arg),*) }
        }
    )*};
}

green_ctx_sim::driver_functions!(exports);

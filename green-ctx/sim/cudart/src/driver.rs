//! The functions of the driver, which the linker finds in the simulated `libcuda.so.1`.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use green_ctx_sys::*;

macro_rules! declare {
    ($($export:ident: $plain:ident = $name:literal $version:literal ($($arg:ident: $ty:ty),*);)*) => {
        #[allow(dead_code, reason = "the list has every function of the driver")]
        // SAFETY: the list is generated from the header.
        unsafe extern "C" {
            $(pub(crate) fn $export($($arg: $ty),*) -> CUresult;)*
        }
    };
}

green_ctx_sim::driver_functions!(declare);

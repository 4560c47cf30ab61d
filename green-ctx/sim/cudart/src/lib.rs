//! A CUDA runtime for PyTorch on the simulated driver: most functions of `libcudart.so.13` that torch imports, and
//! the parts of cuBLAS that launch.
//!
//! NVIDIA's runtime requests undocumented tables from the driver, which the simulated driver does not have. This
//! runtime calls only documented functions. Like NVIDIA's runtime, it makes the primary context of the thread's device
//! current if the thread has no current context, loads a kernel when the kernel is first needed, and returns the
//! driver's statuses as its own errors, which have the same numbers. That holds for wrong launches too: a block that is
//! too large is `cudaErrorInvalidValue` (recorded on an H100 with libcudart 13.0).
//!
//! cuBLAS computes nothing. A function that would compute launches one empty kernel with the function's name on the
//! handle's stream, so that a test can see where a matrix product runs. Every other function that torch imports, such
//! as those of cuDNN and NCCL, is a stub that returns an error. `cargo xtask sim-lib --torch` generates the stubs.

#![allow(unsafe_code, reason = "the library defines the functions that torch calls")]
#![allow(non_snake_case, reason = "the names are those of CUDA's libraries")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::too_many_arguments,
    reason = "a C function relies on one guarantee, its caller's"
)]

/// Defines C functions, each with the value that it returns. `$call` makes the calls of the driver possible and
/// stores an error.
macro_rules! functions {
    ($call:path: $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) => $body:expr;)*) => {$(
        $(#[$doc])*
        // SAFETY: no other function of the library has this name.
        #[allow(unused_unsafe, reason = "not every value needs an unsafe operation")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            // SAFETY: the caller guarantees what CUDA's documentation of this function requires. The functions of the
            // driver require the same of these arguments, and the other pointers are to local variables.
            $call(|| unsafe { $body })
        }
    )*};
}

mod blas;
mod context;
mod device;
mod driver;
mod error;
mod kernel;
mod memory;
mod order;
mod stub;

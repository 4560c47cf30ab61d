//! The simulated CUDA driver as a `libcuda.so.1`, for programs that load or link the driver themselves.
//! `cargo xtask sim-lib` builds it.
//!
//! The library exports every function that `cuda.h` of CUDA 13.5 declares, including old versions and the variants
//! for the per-thread default stream. Functions that [`green_ctx_sim`] does not simulate return
//! `CUDA_ERROR_NOT_SUPPORTED`. `cuGetProcAddress` does not find these functions, so a program that looks up functions
//! in this way can use an alternative. The process has one simulated driver, which the first call creates.
//! Environment variables configure it:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `GREEN_CTX_SIM` | the [`Spec`](green_ctx_sim::Spec): `h200@13.1`, or just `h200` | `h200@13.0` |
//! | `GREEN_CTX_SIM_DEVICES` | the number of devices, all of the same profile | 1 |
//! | `GREEN_CTX_SIM_CLOCK` | `virtual`, or `real` for time that also passes between calls ([`Clock::Real`](green_ctx_sim::Clock::Real)) | `virtual` |
//! | `GREEN_CTX_SIM_FAULT` | `FUNCTION` or `FUNCTION:NTH`: the call that fails with `CUDA_ERROR_UNKNOWN` | none |
//! | `GREEN_CTX_SIM_LAUNCHES` | `1`: at exit, a line on standard error for each context: the kernels that were launched in it | none |
//! | `GREEN_CTX_SIM_REPORT` | a file for a report at exit: races, called functions that are not simulated, live objects, and calls per function | none |
//!
//! If one of the first three variables is invalid, the library prints an error to standard error and
//! simulates no devices: `cuInit` returns `CUDA_ERROR_NO_DEVICE`.
//!
//! A real library does not export functions that are newer than the library, so a program that links such a function
//! does not start. This library exports all functions, whatever version it simulates. A function that the simulated
//! version does not have returns `CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`, and `cuGetProcAddress` does not find it, as
//! with a real driver.

#[expect(unsafe_code, reason = "the module defines the functions that C programs call")]
mod exports;
mod launches;
mod machine;
#[expect(unsafe_code, reason = "the module registers an exit handler")]
mod report;

//! The simulated CUDA driver as a `libcuda.so.1`, for programs that load or link the driver
//! themselves. `cargo xtask sim-lib` builds it.
//!
//! It exports every function that `cuda.h` of CUDA 13.5 declares, old forms and those of the
//! per-thread default stream included. Those that [`green_ctx_sim`] does not simulate answer
//! `CUDA_ERROR_NOT_SUPPORTED`, and `cuGetProcAddress` does not find them, so that a program that asks
//! before it calls chooses another way. One simulated driver serves the process, made at the first
//! call from environment variables:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `GREEN_CTX_SIM` | the [`Spec`](green_ctx_sim::Spec): `h200@13.1`, or `h200` alone | `h200@13.0` |
//! | `GREEN_CTX_SIM_DEVICES` | how many devices there are, all alike | 1 |
//! | `GREEN_CTX_SIM_CLOCK` | `real` lets time pass while the program makes no call ([`Clock::Real`](green_ctx_sim::Clock::Real)) | `virtual` |
//! | `GREEN_CTX_SIM_REPORT` | a file that gets, at the process's end, accesses to memory that nothing puts in order, functions that were called and are not simulated, what is left alive, and how often each function was called | none |
//!
//! Where one of the first three makes no sense, that is said on the standard error, and there are no
//! devices: `cuInit` answers `CUDA_ERROR_NO_DEVICE`.
//!
//! A real library lacks the functions that are newer than it, and a program that links them does
//! not start. This one has them at every version, and answers
//! `CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER` where the driver that is played lacks them.
//! `cuGetProcAddress` does not find them, as with the real one.

#[expect(unsafe_code, reason = "it is what C calls")]
mod exports;
mod machine;
#[expect(unsafe_code, reason = "it registers an exit handler")]
mod report;

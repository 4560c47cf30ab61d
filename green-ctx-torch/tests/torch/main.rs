//! Partitions under PyTorch, with a simulated driver and a libtorch that has only its C functions for streams.

mod common;
mod fake;
#[path = "../raw/mod.rs"]
mod raw;

mod faults;
mod guard;
#[cfg(target_os = "linux")]
mod loading;
mod nesting;
mod order;
mod runtime;

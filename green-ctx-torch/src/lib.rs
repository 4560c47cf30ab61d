//! Runs PyTorch in partitions of one GPU's SMs.
//!
//! PyTorch submits work to the current stream. Each thread has one current stream per device. If a partition's stream
//! is a thread's current stream, PyTorch's work of that thread runs on the partition's SMs:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions};
//! use green_ctx_torch::{Torch, scope};
//!
//! // The PyTorch of this process. `Torch::load_from` loads libtorch from a folder instead.
//! let torch = Torch::find()?;
//! let device = Driver::load()?.device(0)?;
//!
//! let split = device.resources().sm()?.split(SplitRequest::new().group("decode", 16))?;
//! let group = split.groups.into_iter().next().ok_or("one group was requested")?;
//! let decode = device.create_context(group)?;
//! let stream = decode.create_stream(StreamOptions::default())?;
//! {
//!     let _decode = scope::entered(&torch, &stream)?;
//!     // PyTorch's work on this thread now runs on 16 SMs, after the work that was submitted before.
//! }
//! // Work that is submitted now runs after the work in the partition.
//! # Ok(())
//! # }
//! ```
//!
//! - [`Torch`]: libtorch's stable C functions, found at run time (PyTorch 2.10 and newer).
//! - [`scope`]: makes a partition's stream current, and orders the work inside the partition after earlier work and
//!   before later work.
//! - [`Torch::guard`]: makes a stream current without ordering any work.
//! - [`allocator`]: an allocator for PyTorch with an account and a limit per partition.
//! - [`runtime`]: the functions of `torch.cuda.cudart()`, implemented with the driver.
//!
//! Tested with PyTorch 2.11 and 2.15 on an H200, driver 580.159.04.

#![deny(unsafe_code)]

pub mod allocator;
mod error;
mod libtorch;
pub mod runtime;
pub mod scope;
mod stream;

pub use error::{Result, TorchError};
pub use libtorch::Torch;
pub use stream::{StreamGuard, raw_stream};

//! PyTorch in partitions of one GPU's SMs.
//!
//! PyTorch submits work to a current stream, one for each thread and device. Make a partition's stream current, and
//! PyTorch's work of that thread runs on the partition's SMs:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use green_ctx::{Driver, SplitRequest, StreamOptions};
//! use green_ctx_torch::{Torch, scope};
//!
//! // The PyTorch of this process; `Torch::load_from` takes libtorch's folder.
//! let torch = Torch::find()?;
//! let device = Driver::load()?.device(0)?;
//!
//! let split = device.resources().sm()?.split(SplitRequest::new().group("decode", 16))?;
//! let group = split.groups.into_iter().next().ok_or("one group was asked for")?;
//! let decode = device.create_context(group)?;
//! let stream = decode.create_stream(StreamOptions::default())?;
//! {
//!     let _decode = scope::entered(&torch, &stream)?;
//!     // What PyTorch does on this thread now runs on 16 SMs, after what it was given before.
//! }
//! // What it does now comes after that.
//! # Ok(())
//! # }
//! ```
//!
//! - [`Torch`]: libtorch's stable C functions, found at run time (PyTorch 2.10 and newer).
//! - [`Torch::guard`] makes a stream current and keeps no order; [`scope`] makes a partition's stream
//!   current and keeps the order.
//! - [`runtime`]: what `torch.cuda.cudart()` offers, through the driver.
//!
//! It ran with PyTorch 2.11 and 2.15 on an H200, driver 580.159.04.

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

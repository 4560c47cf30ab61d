//! PyTorch in partitions of one GPU's SMs.

#![deny(unsafe_code)]

mod error;
mod libtorch;
pub mod runtime;
pub mod scope;
mod stream;

pub use error::{Result, TorchError};
pub use libtorch::Torch;
pub use stream::{StreamGuard, raw_stream};

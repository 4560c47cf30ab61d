//! The CUDA driver's C interface for green contexts, loaded at run time.
//!
//! Nothing is linked. [`Api::load`] opens the driver library. It requests each function with the CUDA version that
//! introduced the signature declared in this crate. [`Api::load`] returns a [`LoadError`] if there is no driver. If
//! the driver lacks a function, the function's accessor returns [`Unsupported`]. One binary therefore runs on every
//! driver from CUDA 12.4 on.
//!
//! The types come from the headers of CUDA 13.5. A C enum is a newtype over an integer, since a new driver may return
//! new values. The method `name()` returns the header's name for a value, if the header has one.
//!
//! # Examples
//!
//! ```no_run
//! use green_ctx_sys::{Api, CUresult};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let api = Api::load()?;
//! // SAFETY: 0 is the only value that `cuInit` accepts.
//! let status = unsafe { api.cuInit()(0) };
//! assert_eq!(status, CUresult::CUDA_SUCCESS, "{status}");
//! println!("CUDA {}", api.version());
//! # Ok(())
//! # }
//! ```

mod load;
mod search;
mod version;

#[allow(
    missing_docs,
    non_snake_case,
    reason = "the functions have the driver's names"
)]
#[rustfmt::skip]
mod api;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "bindgen keeps the names and the documentation of the header"
)]
#[rustfmt::skip]
mod bindings;
mod enums;
mod table;
mod text;

pub use api::SYMBOLS;
pub use bindings::*;
pub use load::{Api, GetProcAddress, LIBRARY, LoadError, OLDEST, Rest, Unsupported};
pub use search::find;
pub use text::{with_sources, write_with_sources};
pub use version::{Version, kernel_driver};

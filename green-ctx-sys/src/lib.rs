//! The CUDA driver's C interface for green contexts, loaded at run time.
//!
//! Nothing is linked: [`Api::load`] opens the driver library, asks it for each function at the
//! version that introduced the signature declared here, and fails with a [`LoadError`] where there
//! is no driver. A function that the driver lacks is an [`Unsupported`] when it is taken, so that one
//! binary runs on every driver from CUDA 12.4 on.
//!
//! The types come from the headers of CUDA 13.5. C enums are newtypes with a `name()`, since new
//! values arrive with every driver.
//!
//! # Example
//!
//! ```no_run
//! use green_ctx_sys::{Api, CUresult};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let api = Api::load()?;
//! // SAFETY: `cuInit` takes the flags 0 and nothing else.
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
    reason = "the names are the driver's own"
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
    reason = "bindgen's output: the names and the documentation are the header's"
)]
#[rustfmt::skip]
mod bindings;
mod enums;
mod table;
mod text;

pub use api::SYMBOLS;
pub use bindings::*;
pub use load::{Api, GetProcAddress, LIBRARY, LoadError, OLDEST, Unsupported};
pub use text::fmt_with_sources;
pub use version::{Version, kernel_driver};

//! The CUDA driver's C interface for green contexts, loaded at run time.
//!
//! Nothing is linked. [`Api::load`] opens the driver library and requests each function at the version that
//! introduced the signature declared here. It fails with a [`LoadError`] if there is no driver. If the driver lacks
//! a function, the function's accessor returns [`Unsupported`]. So one binary runs on every driver from CUDA 12.4
//! on.
//!
//! The types come from the headers of CUDA 13.5. C enums are newtypes with a `name()`, since new values arrive with
//! every driver.
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

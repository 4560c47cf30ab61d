//! The log of calls.

use green_ctx_sys::CUresult;

/// One call of a C function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The function's name without a version suffix.
    pub function: &'static str,
    /// The status that the call returned.
    pub status: CUresult,
}

//! Functions that are not simulated. An answer without the work would be wrong, so they refuse. The
//! crate's documentation says which of them can be looked up.

use green_ctx_sys::CUresult;

use crate::driver::Driver;
use crate::pointer::Answer;

/// Answers for every function that has no handler.
pub(crate) fn refuse(_: &Driver) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

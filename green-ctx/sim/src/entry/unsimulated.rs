//! Functions that are not simulated. They refuse, because an answer without the work would be wrong. The
//! crate documentation lists the simulated functions, with the uses that are not supported.

use green_ctx_sys::CUresult;

use crate::driver::Driver;
use crate::pointer::Answer;

/// Answers for every function without a handler.
pub(crate) fn refuse(_: &Driver) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

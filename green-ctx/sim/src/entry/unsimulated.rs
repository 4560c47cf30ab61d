//! Functions that are not simulated. Such a function returns an error, because success without the work
//! would be wrong. The crate documentation names the groups of functions that are not simulated, and the
//! unsupported uses of simulated functions.

use green_ctx_sys::CUresult;

use crate::driver::Driver;
use crate::pointer::Answer;

/// Returns the error of every function that has no handler.
pub(crate) fn refuse(_: &Driver) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

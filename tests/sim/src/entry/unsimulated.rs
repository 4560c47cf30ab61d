//! Functions that are not simulated. An answer without the work would be wrong, so they refuse. The
//! crate's documentation says which of them can be looked up.

use green_ctx_sys::{CUresult, CUstream_st};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};

/// Answers for every function that has no handler.
pub(crate) fn refuse(_: &Driver) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// When memory gets a value is not known before somebody submits the write, and time is known when
/// work is submitted: a stream cannot wait for what may never be. The first forms of these functions
/// and of those that write, of CUDA 8 and 9, a driver of today has only where its kernel module allows
/// them (`CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1`, which is 0).
pub(crate) fn value<V>(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: V,
    _flags: u32,
) -> Answer {
    driver.state().stream(stream.address())?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

//! Functions that can be looked up and are not simulated yet. An answer without the work would be
//! wrong, so they refuse. The crate's documentation lists them.

use green_ctx_sys::{CUresult, CUstream_st};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};

fn refuse(driver: &Driver, stream: Ptr<CUstream_st>) -> Answer {
    driver.state().stream(stream.address())?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// When memory gets a value is not known before somebody submits the write, and time is known when
/// work is submitted: a stream cannot wait for what may never be.
pub(crate) fn wait_value_32(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u32,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

pub(crate) fn wait_value_64(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u64,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

/// The first form of operations on memory in a stream, of CUDA 8 and 9. A driver of today has it
/// only where its kernel module allows it (`CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1`, which is 0).
pub(crate) fn first_value_32(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u32,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

/// See [`first_value_32`].
pub(crate) fn first_value_64(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u64,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

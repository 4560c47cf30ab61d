//! Functions of the program that run in stream order.

use std::ffi::c_void;

use green_ctx_sys::{CUresult, CUstream, CUstream_st, CUstreamCallback};

use crate::driver::Driver;
use crate::effects::Effect;
use crate::handle;
use crate::pointer::{Answer, Ptr};

/// A function of the program and what it is called with.
pub(crate) struct Callback {
    function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: usize,
    user_data: Ptr<c_void>,
}

// SAFETY: the pointer is only passed on, and who adds a callback promises that it may run on a
// thread of the driver's choosing (cuda.h, `cuStreamAddCallback`).
unsafe impl Send for Callback {}

impl Callback {
    /// Runs the function. No lock of the driver may be held: it may call the driver.
    pub(crate) fn run(self, status: CUresult) {
        let stream = handle::pointer::<CUstream_st>(self.stream);
        // SAFETY: who added the callback promised that it can be called with this pointer, once.
        unsafe { (self.function)(stream, status, self.user_data.raw()) };
    }
}

/// Adds a function to a stream. It runs on whichever thread calls the driver when its turn has
/// come, at the end of that call, before the call returns.
pub(crate) fn add(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    function: CUstreamCallback,
    user_data: Ptr<c_void>,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // A callback cannot be captured (cuda.h, `cuStreamAddCallback`).
    state.not_captured(handle)?;
    let time = state.occupy(handle, 0);
    let device = state.device_of_stream(handle);
    let callback = Callback { function, stream: stream.address(), user_data };
    state.later(time, device, Effect::Call(callback));
    driver.expect_callbacks();
    Ok(())
}

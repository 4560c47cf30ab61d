//! The functions of `torch.cuda.cudart()`, implemented with the driver API. The CUDA runtime is neither needed nor
//! loaded.
//!
//! If a function of the CUDA runtime uses the current device, the function here takes the device as an argument.
#![allow(unsafe_code, reason = "calls the driver")]

mod code;

use std::ffi::c_void;
use std::ptr;

use green_ctx::sys::CUstream;
use green_ctx::{Device, context::Context, graph::RelaxedCapture};

use crate::error::{Result, check_process};
use green_ctx::call;

pub use code::ErrorCode;

/// The memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// The memory that the driver could allocate now. Memory that PyTorch's allocator caches is not included.
    pub free: u64,
    /// The total memory of the device.
    pub total: u64,
}

/// Returns the free and the total memory of a device.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails.
#[doc(alias("cudaMemGetInfo", "cuMemGetInfo"))]
pub fn memory_info(device: &Device) -> Result<MemoryInfo> {
    let (mut free, mut total) = (0, 0);
    let primary = device.primary_context()?;
    let _current = primary.make_current()?;
    // SAFETY: `free` and `total` are live locals, and `_current` makes a context current.
    unsafe { call!(device.driver().api(), cuMemGetInfo(&raw mut free, &raw mut total)) }?;
    Ok(MemoryInfo { free: free as u64, total: total as u64 })
}

/// Starts collection in the profiler under which the program runs. Does nothing without a profiler. Captures on other
/// threads stay valid.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails.
#[doc(alias("cudaProfilerStart", "cuProfilerStart"))]
pub fn profiler_start(device: &Device) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: the call takes no arguments, and `_current` makes a context current.
    unsafe { call!(device.driver().api(), cuProfilerStart()) }?;
    Ok(())
}

/// Stops collection in the profiler under which the program runs. Does nothing without a profiler. Captures on other
/// threads stay valid.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails.
#[doc(alias("cudaProfilerStop", "cuProfilerStop"))]
pub fn profiler_stop(device: &Device) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: the call takes no arguments, and `_current` makes a context current.
    unsafe { call!(device.driver().api(), cuProfilerStop()) }?;
    Ok(())
}

/// Page-locks host memory so that copies to and from it can overlap with other work. Captures on other threads stay
/// valid.
///
/// `flags` takes the flags of `cudaHostRegister`, which have the same values in the driver API: 1 portable (for all
/// contexts), 2 mapped, 4 I/O memory of a device, 8 read-only.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails, for example because the memory is
/// already registered.
///
/// # Safety
///
/// `address` must be the start of `bytes` bytes of this process's memory. These bytes must stay mapped until they are
/// unregistered.
#[doc(alias("cudaHostRegister", "cuMemHostRegister"))]
pub unsafe fn host_register(
    device: &Device,
    address: *mut c_void,
    bytes: usize,
    flags: u32,
) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: the contract of this function says that the memory exists and stays mapped.
    unsafe { call!(device.driver().api(), cuMemHostRegister(address, bytes, flags)) }?;
    Ok(())
}

/// Reverses [`host_register`]. `address` is the address that was registered. Captures on other threads stay valid.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails, for example because the memory is not
/// registered.
///
/// # Safety
///
/// No work on a device may use the memory.
#[doc(alias("cudaHostUnregister", "cuMemHostUnregister"))]
pub unsafe fn host_unregister(device: &Device, address: *mut c_void) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: by this function's contract no work uses the memory. The driver checks that the memory is registered.
    unsafe { call!(device.driver().api(), cuMemHostUnregister(address)) }?;
    Ok(())
}

/// Creates a stream in a context, as `cudaStreamCreate` does in the current context. The caller owns the handle and
/// destroys it with [`destroy_stream`].
///
/// The stream synchronises with the default stream in both directions. In a partition, no stream synchronises with the
/// default stream. Unlike this function, [`Context::create_stream`] creates a stream that is destroyed when its last
/// handle is dropped.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails.
#[doc(alias("cudaStreamCreate", "cuStreamCreate"))]
pub fn create_stream(context: &Context) -> Result<*mut c_void> {
    let mut stream: CUstream = ptr::null_mut();
    check_process(context.device())?;
    let driver = context.device().driver();
    let _current = context.make_current()?;
    // SAFETY: `stream` is a live local, and `_current` makes a context current.
    unsafe { call!(driver.api(), cuStreamCreate(&raw mut stream, 0)) }?;
    Ok(stream.cast())
}

/// Destroys a stream from [`create_stream`]. Work that is already submitted to the stream continues.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver) if a driver call fails.
///
/// # Safety
///
/// `stream` must be a live stream of the device, and must not be used afterwards. No [`Stream`](green_ctx::Stream)
/// object may use this handle.
#[doc(alias("cudaStreamDestroy", "cuStreamDestroy"))]
pub unsafe fn destroy_stream(device: &Device, stream: *mut c_void) -> Result<()> {
    check_process(device)?;
    // SAFETY: the caller guarantees that the stream is live and not used afterwards.
    unsafe { call!(device.driver().api(), cuStreamDestroy(stream.cast())) }?;
    Ok(())
}

//! What `torch.cuda.cudart()` offers, through the driver: no CUDA runtime is needed or loaded.
//!
//! Where the runtime acts on the current device, these take it.
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
    /// What the driver could allocate now. What PyTorch's allocator keeps for itself is not in it.
    pub free: u64,
    /// What the device has.
    pub total: u64,
}

/// The memory of a device that is free, and that there is.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver).
#[doc(alias("cudaMemGetInfo", "cuMemGetInfo"))]
pub fn memory_info(device: &Device) -> Result<MemoryInfo> {
    let (mut free, mut total) = (0, 0);
    let primary = device.primary_context()?;
    let _current = primary.make_current()?;
    // SAFETY: both pointers are to live numbers, a context is current.
    unsafe { call!(device.driver().api(), cuMemGetInfo(&raw mut free, &raw mut total)) }?;
    Ok(MemoryInfo { free: free as u64, total: total as u64 })
}

/// Has the profiler that the program runs under collect from now on; without one nothing happens. Captures
/// of other threads go on.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver).
#[doc(alias("cudaProfilerStart", "cuProfilerStart"))]
pub fn profiler_start(device: &Device) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: takes no arguments; a context is current.
    unsafe { call!(device.driver().api(), cuProfilerStart()) }?;
    Ok(())
}

/// Has the profiler that the program runs under collect no longer.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver).
#[doc(alias("cudaProfilerStop", "cuProfilerStop"))]
pub fn profiler_stop(device: &Device) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: takes no arguments; a context is current.
    unsafe { call!(device.driver().api(), cuProfilerStop()) }?;
    Ok(())
}

/// Page-locks memory of the host, so that copies of it can overlap with other work. `flags` are the
/// runtime's `cudaHostRegister…`, which are the driver's: 1 for all contexts, 2 mapped, 4 of a device,
/// 8 only read. Captures of other threads go on.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver), for memory that is registered already too.
///
/// # Safety
///
/// `address` must be the begin of `bytes` bytes of this process's memory, which must stay where they
/// are until they are unregistered.
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
    // SAFETY: the memory is there by this function's contract.
    unsafe { call!(device.driver().api(), cuMemHostRegister(address, bytes, flags)) }?;
    Ok(())
}

/// Ends what [`host_register`] did; `address` is the one that was given there. Captures of other threads
/// go on.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver), for memory that is not registered too.
///
/// # Safety
///
/// No work on a device may use the memory any more.
#[doc(alias("cudaHostUnregister", "cuMemHostUnregister"))]
pub unsafe fn host_unregister(device: &Device, address: *mut c_void) -> Result<()> {
    let primary = device.primary_context()?;
    let _relaxed = RelaxedCapture::enter(device.driver())?;
    let _current = primary.make_current()?;
    // SAFETY: as this function's own contract; the driver knows which memory is registered.
    unsafe { call!(device.driver().api(), cuMemHostUnregister(address)) }?;
    Ok(())
}

/// Makes a stream of a context, as `cudaStreamCreate` does where that context is current, and gives
/// its handle out: nobody but the caller destroys it. Its work waits for the default stream's and the
/// other way round, but in a partition, where no stream does.
///
/// [`Context::create_stream`] makes a stream that is destroyed with its last handle.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver).
#[doc(alias("cudaStreamCreate", "cuStreamCreate"))]
pub fn create_stream(context: &Context) -> Result<*mut c_void> {
    let mut stream: CUstream = ptr::null_mut();
    check_process(context.device())?;
    let driver = context.device().driver();
    let _current = context.make_current()?;
    // SAFETY: the pointer is to a live handle, a context is current.
    unsafe { call!(driver.api(), cuStreamCreate(&raw mut stream, 0)) }?;
    Ok(stream.cast())
}

/// Destroys a stream that [`create_stream`] made. What was submitted to it goes on.
///
/// # Errors
///
/// [`TorchError::Driver`](crate::TorchError::Driver).
///
/// # Safety
///
/// `stream` must be alive and of the device, and nothing may use it afterwards; no object of green-ctx stands for it.
#[doc(alias("cudaStreamDestroy", "cuStreamDestroy"))]
pub unsafe fn destroy_stream(device: &Device, stream: *mut c_void) -> Result<()> {
    check_process(device)?;
    // SAFETY: as this function's own contract.
    unsafe { call!(device.driver().api(), cuStreamDestroy(stream.cast())) }?;
    Ok(())
}

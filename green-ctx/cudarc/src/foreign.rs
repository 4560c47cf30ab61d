//! cudarc's objects as those of green-ctx.
#![allow(unsafe_code, reason = "takes raw handles")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use green_ctx::{CUresult, Device, Driver, Error, Result, Stream, context::Context};

/// The device of cudarc's context.
///
/// # Errors
///
/// [`Error::NoSuchDevice`], [`Error::InvalidRequest`] where cudarc has loaded another driver library
/// than `driver`, [`Error::Forked`], [`Error::Driver`].
pub fn device_of(driver: &Driver, context: &CudaContext) -> Result<Device> {
    shared(driver, context).map(|(device, _)| device)
}

/// cudarc's context as one of green-ctx. That of `CudaContext::new` is the device's
/// [primary context](Device::primary_context), which is retained; any other is borrowed, and
/// cudarc's object kept until the last handle of the result is gone.
///
/// # Errors
///
/// As [`device_of`].
pub fn context_of(driver: &Driver, context: &Arc<CudaContext>) -> Result<Context> {
    let (_, primary) = shared(driver, context)?;
    if context.cu_ctx().addr() == primary.as_raw().addr() {
        return Ok(primary);
    }
    // SAFETY: it is a context of this driver, as `shared` has found out, and cudarc destroys it
    // when the last `Arc` goes.
    unsafe { Context::from_raw_borrowed(driver, context.cu_ctx().cast(), Arc::clone(context)) }
}

/// A stream of cudarc's as one of green-ctx: for events, waits and launches between it and
/// partitions. cudarc's object is kept until the last handle of the result is gone; where that is
/// its last, cudarc makes its context current on that thread and destroys the stream.
///
/// The stream of a [`CudarcStream`](crate::CudarcStream) is the [`Stream`] that it was made from.
///
/// # Errors
///
/// As [`device_of`], and [`Error::DefaultStream`] for cudarc's default and per-thread streams.
pub fn stream_of(driver: &Driver, stream: &Arc<CudaStream>) -> Result<Stream> {
    shared(driver, stream.context())?;
    // SAFETY: the stream is one of this driver, as `shared` has found out of its context. cudarc
    // destroys its own, and the context, when the last `Arc` goes; whoever gave it another's
    // promised to keep that one until then (cudarc, `CudaContext::wrap_borrowed_stream`).
    unsafe { Stream::from_raw_borrowed(driver, stream.cu_stream().cast(), Arc::clone(stream)) }
}

/// The device of cudarc's context, and its primary context. That cudarc and `driver` are of one
/// library shows in both being given the same primary context: handles are addresses, so two libraries
/// of one process have none in common.
pub(crate) fn shared(driver: &Driver, context: &CudaContext) -> Result<(Device, Context)> {
    if driver.is_forked() {
        return Err(Error::Forked);
    }
    let number = context.cu_device();
    let device = driver.devices().find(|device| device.as_raw() == number);
    let device = device.ok_or_else(|| Error::NoSuchDevice {
        ordinal: u32::try_from(number).unwrap_or(u32::MAX),
        count: u32::try_from(driver.devices().count()).unwrap_or(u32::MAX),
    })?;
    let primary = device.primary_context()?;
    let theirs = if context.is_primary() { context.cu_ctx() } else { retained(context)? };
    if theirs.addr() != primary.as_raw().addr() {
        let reason = "cudarc has loaded another driver library than this `Driver` is of";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    Ok((device, primary))
}

/// The primary context as cudarc's driver library knows it, as a number.
fn retained(context: &CudaContext) -> Result<cudarc::driver::sys::CUcontext> {
    let device = context.cu_device();
    // SAFETY: the device is one that cudarc's driver gave it.
    let raw = unsafe { result::primary_ctx::retain(device) };
    let raw = answer("cuDevicePrimaryCtxRetain", raw)?;
    // SAFETY: as above; it gives back what was taken just now.
    let released = unsafe { result::primary_ctx::release(device) };
    answer("cuDevicePrimaryCtxRelease", released).map(|()| raw)
}

/// What cudarc answered, as an error of green-ctx.
pub(crate) fn answer<T>(call: &'static str, answer: Result<T, DriverError>) -> Result<T> {
    answer.map_err(|DriverError(status)| Error::Driver { call, status: CUresult(status as _) })
}

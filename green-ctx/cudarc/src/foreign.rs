//! Conversions from cudarc objects to green-ctx objects.
#![allow(unsafe_code, reason = "takes raw handles")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use green_ctx::{CUresult, Device, Driver, Error, Result, Stream, context::Context};

/// Returns the device of a cudarc context.
///
/// # Errors
///
/// - [`Error::NoSuchDevice`] if `driver` does not have the device.
/// - [`Error::InvalidRequest`] if cudarc has loaded another driver library than `driver`.
/// - [`Error::Forked`] in a forked process, and [`Error::Driver`] if a driver call fails.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use cudarc::driver::CudaContext;
/// use green_ctx_cudarc::device_of;
///
/// let driver = green_ctx::Driver::load()?;
/// let cuda = CudaContext::new(0)?;
/// assert_eq!(device_of(&driver, &cuda)?.ordinal(), 0);
/// # Ok(())
/// # }
/// ```
pub fn device_of(driver: &Driver, context: &CudaContext) -> Result<Device> {
    shared(driver, context).map(|(device, _)| device)
}

/// Converts a cudarc context to a green-ctx context. For a context from `CudaContext::new`, the result is the
/// device's [primary context](Device::primary_context), which it retains. Any other context is borrowed, and the
/// cudarc object is kept alive until the last handle of the result is dropped.
///
/// # Errors
///
/// As for [`device_of`].
pub fn context_of(driver: &Driver, context: &Arc<CudaContext>) -> Result<Context> {
    let (_, primary) = shared(driver, context)?;
    if context.cu_ctx().addr() == primary.as_raw().addr() {
        return Ok(primary);
    }
    // SAFETY: `shared` has checked that the context belongs to this driver. cudarc destroys the context when its
    // last `Arc` is dropped, and the result holds one.
    unsafe { Context::from_raw_borrowed(driver, context.cu_ctx().cast(), Arc::clone(context)) }
}

/// Converts a cudarc stream to a green-ctx stream. Use the result for events, waits and launches between cudarc's
/// stream and partitions. The cudarc object is kept alive until the last handle of the result is dropped. If that
/// drops its last `Arc`, cudarc makes its context current on that thread and destroys the stream.
///
/// For the stream of a [`CudarcStream`](crate::CudarcStream), the result is the [`Stream`] from which it was
/// created.
///
/// # Errors
///
/// As for [`device_of`], and [`Error::DefaultStream`] for cudarc's default stream and per-thread default stream.
pub fn stream_of(driver: &Driver, stream: &Arc<CudaStream>) -> Result<Stream> {
    shared(driver, stream.context())?;
    // SAFETY: `shared` has checked, using the stream's context, that the stream belongs to this driver. The result
    // holds an `Arc` of the cudarc object. cudarc destroys its own streams and their context only when the last `Arc`
    // is dropped. For a borrowed stream, the caller of `CudaContext::wrap_borrowed_stream` guarantees that the stream
    // stays alive until that time.
    unsafe { Stream::from_raw_borrowed(driver, stream.cu_stream().cast(), Arc::clone(stream)) }
}

/// Returns the device of a cudarc context, and the device's primary context. Fails unless cudarc and `driver` get
/// the same primary context, and so use the same driver library: handles are addresses, and two libraries in one
/// process have no addresses in common.
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
        let reason = "cudarc has loaded another driver library than this `Driver`; load the same \
                      library in both";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    Ok((device, primary))
}

/// Returns the primary context that cudarc's driver library has. The result is only compared, and not kept alive.
fn retained(context: &CudaContext) -> Result<cudarc::driver::sys::CUcontext> {
    let device = context.cu_device();
    // SAFETY: cudarc's driver reported this device.
    let raw = unsafe { result::primary_ctx::retain(device) };
    let raw = answer("cuDevicePrimaryCtxRetain", raw)?;
    // SAFETY: this releases the reference that was retained above.
    let released = unsafe { result::primary_ctx::release(device) };
    answer("cuDevicePrimaryCtxRelease", released).map(|()| raw)
}

/// Converts a cudarc error to a green-ctx error.
pub(crate) fn answer<T>(call: &'static str, answer: Result<T, DriverError>) -> Result<T> {
    answer.map_err(|DriverError(status)| Error::Driver { call, status: CUresult(status as _) })
}

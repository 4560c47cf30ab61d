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
/// - [`Error::InvalidRequest`] if cudarc and `driver` have loaded different driver libraries.
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
/// device's [primary context](Device::primary_context), and the result retains it. Any other context is borrowed: the
/// cudarc object stays alive until the last handle of the result is dropped.
///
/// # Errors
///
/// The same errors as [`device_of`].
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
/// stream and partitions. The cudarc object stays alive until the last handle of the result is dropped. If this drop
/// releases the cudarc object's last `Arc`, cudarc makes its own context current on the dropping thread and destroys
/// the stream.
///
/// For the stream of a [`CudarcStream`](crate::CudarcStream), the result is the [`Stream`] from which it was
/// created.
///
/// # Errors
///
/// The same errors as [`device_of`], and [`Error::DefaultStream`] if `stream` is cudarc's default stream or
/// per-thread default stream.
pub fn stream_of(driver: &Driver, stream: &Arc<CudaStream>) -> Result<Stream> {
    shared(driver, stream.context())?;
    // SAFETY: `shared` has checked, using the stream's context, that the stream belongs to this driver. The result
    // holds an `Arc` of the cudarc object. cudarc destroys its own streams and their context only when the last `Arc`
    // is dropped. For a borrowed stream, the caller of `CudaContext::wrap_borrowed_stream` guarantees that the stream
    // stays alive until that time.
    unsafe { Stream::from_raw_borrowed(driver, stream.cu_stream().cast(), Arc::clone(stream)) }
}

/// Returns the device of a cudarc context, and the device's primary context. Fails if cudarc and `driver` get
/// different primary contexts, because they then use different driver libraries. Handles are addresses, and no two
/// libraries in a process use the same address.
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
        let reason = "cudarc and this `Driver` have loaded different driver libraries; load the \
                      same library in both";
        return Err(Error::InvalidRequest(reason.to_owned()));
    }
    Ok((device, primary))
}

/// Returns the handle of the primary context in cudarc's driver library. This function releases the context again, so
/// the caller may only compare the handle.
fn retained(context: &CudaContext) -> Result<cudarc::driver::sys::CUcontext> {
    let device = context.cu_device();
    // SAFETY: cudarc's driver reported this device.
    let raw = unsafe { result::primary_ctx::retain(device) };
    let raw = answer("cuDevicePrimaryCtxRetain", raw)?;
    // SAFETY: this call releases the reference that `retain` acquired above.
    let released = unsafe { result::primary_ctx::release(device) };
    answer("cuDevicePrimaryCtxRelease", released).map(|()| raw)
}

/// Converts a cudarc error to a green-ctx error.
pub(crate) fn answer<T>(call: &'static str, answer: Result<T, DriverError>) -> Result<T> {
    answer.map_err(|DriverError(status)| Error::Driver { call, status: CUresult(status as _) })
}

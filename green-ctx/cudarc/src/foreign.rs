//! Conversions from cudarc objects to green-ctx objects.
#![allow(unsafe_code, reason = "takes raw handles")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result};
use green_ctx::{CUresult, Device, Driver, Error, Graph, Result, Stream, context::Context};

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

/// Converts a graph that cudarc has captured to a green-ctx graph, which can be audited, and
/// [moved](Graph::retarget) to another partition. Launch the result instead of cudarc's graph. It keeps cudarc's graph,
/// and the stream on which it was captured, until the last handle of the result, of its copies and of its executables is
/// dropped. `context` is a cudarc context of the graph's device.
///
/// # Errors
///
/// The same errors as [`device_of`]. The graph is then dropped.
///
/// # Safety
///
/// The modules of the graph's kernels must stay loaded, and the memory that the graph uses must stay allocated, while the
/// result, a copy or an executable of it exists. cudarc's own graph has the same requirement, although its functions
/// are safe.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use cudarc::driver::{CudaContext, sys};
/// use green_ctx::{Driver, SplitRequest};
/// use green_ctx_cudarc::{CudarcStream, device_of, graph_of};
///
/// let (driver, cuda) = (Driver::load()?, CudaContext::new(0)?);
/// let device = device_of(&driver, &cuda)?;
/// let parts = device.partition(SplitRequest::new().group("day", 96).group("night", 16))?;
///
/// // cudarc's waits for other streams cannot be captured (CUDA_ERROR_STREAM_CAPTURE_ISOLATION).
/// // SAFETY: the memory below is used on one stream.
/// unsafe { cuda.disable_event_tracking() };
/// let stream = CudarcStream::new(parts["day"].stream(), &cuda)?;
/// let mut memory = stream.alloc_zeros::<f32>(1000)?;
/// stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
/// stream.memset_zeros(&mut memory)?;
/// let captured = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("nothing was captured")?;
///
/// // SAFETY: the graph has no kernels, and the memory lives as long as the graph.
/// let graph = unsafe { graph_of(&driver, &cuda, captured) }?;
/// let moved = graph.retarget(parts["night"].context())?.instantiate()?;
/// // SAFETY: no other work uses the memory.
/// unsafe { parts["night"].stream().launch_graph(&moved) }?;
/// parts["night"].stream().synchronize()?;
/// # Ok(())
/// # }
/// ```
pub unsafe fn graph_of(driver: &Driver, context: &CudaContext, graph: CudaGraph) -> Result<Graph> {
    /// Is never used, and drops the graph.
    struct Owner(#[allow(dead_code, reason = "it is only dropped")] CudaGraph);
    // SAFETY: no thread reads the graph. Its drop destroys the two handles, which a driver allows on any thread.
    unsafe impl Send for Owner {}
    // SAFETY: as above.
    unsafe impl Sync for Owner {}

    let (device, _) = shared(driver, context)?;
    let raw = graph.cu_graph().cast();
    // SAFETY: `shared` has checked that the graph belongs to this driver, and the caller vouches for what its nodes
    // use. cudarc destroys the graph when the owner is dropped, and no other code has it.
    unsafe { Graph::from_raw_borrowed(&device, raw, Owner(graph)) }
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

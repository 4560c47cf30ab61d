//! Direct driver calls, as another library makes them without this crate.

use std::ptr;

use green_ctx::sys::{
    CUcontext, CUdevResource, CUdevResourceType, CUevent, CUfunction, CUgraph, CUgreenCtx,
    CUmodule, CUstream, CUstreamCaptureMode,
};
use green_ctx::{Device, Stream, call, context::Context};

/// Creates a stream of a context by making the context current.
pub(crate) fn stream(context: &Context) -> green_ctx::Result<CUstream> {
    let _current = context.make_current()?;
    let (api, mut raw) = (context.device().driver().api(), ptr::null_mut());
    // SAFETY: `raw` outlives the call.
    unsafe { call!(api, cuStreamCreate(&raw mut raw, 1)) }?;
    Ok(raw)
}

/// Creates a stream of a green context.
pub(crate) fn stream_of(device: &Device, green: CUgreenCtx) -> green_ctx::Result<CUstream> {
    let (api, mut raw) = (device.driver().api(), ptr::null_mut());
    // SAFETY: the callers keep the green context alive, and `raw` outlives the call.
    unsafe { call!(api, cuGreenCtxStreamCreate(&raw mut raw, green, 1, 0)) }?;
    Ok(raw)
}

pub(crate) fn destroy_stream(device: &Device, raw: CUstream) -> green_ctx::Result<()> {
    // SAFETY: the callers created the stream and do not use it again.
    unsafe { call!(device.driver().api(), cuStreamDestroy(raw)) }
}

pub(crate) fn event(device: &Device) -> green_ctx::Result<CUevent> {
    let context = device.primary_context()?;
    let _current = context.make_current()?;
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` outlives the call.
    unsafe { call!(device.driver().api(), cuEventCreate(&raw mut raw, 2)) }?;
    Ok(raw)
}

pub(crate) fn destroy_event(device: &Device, raw: CUevent) -> green_ctx::Result<()> {
    // SAFETY: the callers created the event and do not use it again.
    unsafe { call!(device.driver().api(), cuEventDestroy(raw)) }
}

pub(crate) fn push(device: &Device, context: CUcontext) -> green_ctx::Result<()> {
    // SAFETY: the callers keep the context alive until they pop it.
    unsafe { call!(device.driver().api(), cuCtxPushCurrent(context)) }
}

pub(crate) fn pop(device: &Device) -> green_ctx::Result<CUcontext> {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` outlives the call.
    unsafe { call!(device.driver().api(), cuCtxPopCurrent(&raw mut popped)) }?;
    Ok(popped)
}

/// Begins a capture in relaxed mode.
pub(crate) fn begin_capture(device: &Device, stream: CUstream) -> green_ctx::Result<()> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the callers keep the stream alive.
    unsafe { call!(device.driver().api(), cuStreamBeginCapture(stream, mode)) }
}

pub(crate) fn end_capture(device: &Device, stream: CUstream) -> green_ctx::Result<CUgraph> {
    let mut graph = ptr::null_mut();
    // SAFETY: the callers keep the stream alive, and `graph` outlives the call.
    unsafe { call!(device.driver().api(), cuStreamEndCapture(stream, &raw mut graph)) }?;
    Ok(graph)
}

/// Sets `count` 32-bit numbers at `at`. The caller keeps the memory allocated.
pub(crate) fn fill(stream: &Stream, at: u64, value: u32, count: usize) -> green_ctx::Result<()> {
    let api = stream.context().device().driver().api();
    // SAFETY: the callers keep `count` numbers allocated at `at` until the work, and every graph that captured
    // it, is done.
    unsafe { call!(api, cuMemsetD32Async(at, value, count, stream.as_raw())) }
}

/// Copies on the device. The caller keeps both memory ranges allocated.
pub(crate) fn copy(stream: &Stream, to: u64, from: u64, bytes: usize) -> green_ctx::Result<()> {
    let api = stream.context().device().driver().api();
    // SAFETY: the callers keep `bytes` allocated at both addresses until the work, and every graph that
    // captured it, is done.
    unsafe { call!(api, cuMemcpyDtoDAsync(to, from, bytes, stream.as_raw())) }
}

/// Launches a kernel without parameters.
pub(crate) fn launch(
    device: &Device,
    stream: CUstream,
    kernel: CUfunction,
    [blocks, threads]: [u32; 2],
) -> green_ctx::Result<()> {
    let (api, none) = (device.driver().api(), ptr::null_mut());
    // SAFETY: the callers keep the kernel and the stream alive, and the kernel has no parameters.
    unsafe {
        call!(
            api,
            cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, none, ptr::null_mut())
        )
    }
}

/// A module loaded with `cuModuleLoadData`. Its functions have no kernel handle (`CUkernel`).
pub(crate) struct Module {
    raw: CUmodule,
    device: Device,
}

impl Module {
    pub(crate) fn load(device: &Device, ptx: &str) -> green_ctx::Result<Module> {
        let context = device.primary_context()?;
        let _current = context.make_current()?;
        let text = std::ffi::CString::new(ptx).expect("text without NUL");
        let mut raw = ptr::null_mut();
        // SAFETY: `text` is NUL-terminated, and `raw` outlives the call.
        unsafe {
            call!(device.driver().api(), cuModuleLoadData(&raw mut raw, text.as_ptr().cast()))
        }?;
        Ok(Module { raw, device: device.clone() })
    }

    pub(crate) fn function(&self, name: &str) -> green_ctx::Result<CUfunction> {
        let name = std::ffi::CString::new(name).expect("a name without NUL");
        let (api, mut function) = (self.device.driver().api(), ptr::null_mut());
        // SAFETY: `self` keeps the module loaded, and the name is NUL-terminated.
        unsafe { call!(api, cuModuleGetFunction(&raw mut function, self.raw, name.as_ptr())) }?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let context = self.device.primary_context().expect("a device");
        let _current = context.make_current().expect("a live context");
        // SAFETY: the tests finish all work that uses the module before they drop it.
        unsafe { call!(self.device.driver().api(), cuModuleUnload(self.raw)) }.expect("unloaded");
    }
}

/// A foreign green context on one group of the driver's own split by count (at least 16 SMs).
pub(crate) struct Green {
    pub(crate) green: CUgreenCtx,
    pub(crate) context: CUcontext,
    device: Device,
}

impl Green {
    pub(crate) fn create(device: &Device) -> green_ctx::Result<Green> {
        let api = device.driver().api();
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        // SAFETY: `CUdevResource` consists of integers, bytes and a pointer; all of them may be zero.
        let mut whole: CUdevResource = unsafe { std::mem::zeroed() };
        // SAFETY: `whole` outlives the call.
        unsafe { call!(api, cuDeviceGetDevResource(device.as_raw(), &raw mut whole, kind)) }?;
        let (mut part, mut count, none) = (whole, 1, ptr::null_mut());
        // SAFETY: `part` has room for the one requested group, and the remainder pointer may be null.
        unsafe {
            call!(
                api,
                cuDevSmResourceSplitByCount(
                    &raw mut part,
                    &raw mut count,
                    &raw const whole,
                    none,
                    0,
                    16
                )
            )
        }?;
        let mut descriptor = ptr::null_mut();
        // SAFETY: `part` is one resource, filled by the split above.
        unsafe { call!(api, cuDevResourceGenerateDesc(&raw mut descriptor, &raw mut part, 1)) }?;
        let (mut green, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the descriptor was generated above, and `green` outlives the call.
        unsafe { call!(api, cuGreenCtxCreate(&raw mut green, descriptor, device.as_raw(), 1)) }?;
        // SAFETY: the green context was created above.
        unsafe { call!(api, cuCtxFromGreenCtx(&raw mut context, green)) }?;
        Ok(Green { green, context, device: device.clone() })
    }

    /// Creates a stream of the green context.
    pub(crate) fn stream(&self) -> green_ctx::Result<CUstream> {
        stream_of(&self.device, self.green)
    }
}

impl Drop for Green {
    fn drop(&mut self) {
        // SAFETY: `self` owns the green context, and the tests do not use its handle after the drop.
        unsafe { call!(self.device.driver().api(), cuGreenCtxDestroy(self.green)) }
            .expect("destroyed");
    }
}
// SAFETY: driver handles belong to the process, not to a thread.
unsafe impl Send for Green {}
// SAFETY: as above; the methods only copy handles.
unsafe impl Sync for Green {}

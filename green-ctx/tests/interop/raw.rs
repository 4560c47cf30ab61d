//! Handles as another library makes them: through the driver, past this crate.

use std::ptr;

use green_ctx::sys_0_1::{
    CUcontext, CUdevResource, CUdevResourceType, CUevent, CUgreenCtx, CUresult, CUstream,
};
use green_ctx::{Device, Error, context::Context};

pub(crate) fn ok(call: &'static str, status: CUresult) -> green_ctx::Result<()> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Error::Driver { call, status }) }
}

/// A stream of whatever context is current while it is made.
#[allow(dead_code, reason = "not every test binary makes streams in other contexts")]
pub(crate) fn stream(context: &Context) -> green_ctx::Result<CUstream> {
    let _current = context.make_current()?;
    let create = context.device().driver().api().cuStreamCreate()?;
    let mut raw = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    ok("cuStreamCreate", unsafe { create(&raw mut raw, 1) })?;
    Ok(raw)
}

pub(crate) fn destroy_stream(device: &Device, raw: CUstream) -> green_ctx::Result<()> {
    let destroy = device.driver().api().cuStreamDestroy()?;
    // SAFETY: the callers made the stream, and do not use it any more.
    ok("cuStreamDestroy", unsafe { destroy(raw) })
}

pub(crate) fn event(device: &Device) -> green_ctx::Result<CUevent> {
    let context = device.primary_context()?;
    let _current = context.make_current()?;
    let create = device.driver().api().cuEventCreate()?;
    let mut raw = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    ok("cuEventCreate", unsafe { create(&raw mut raw, 2) })?;
    Ok(raw)
}

/// A green context, of as many SMs as one group of the driver's own split.
pub(crate) struct Green {
    pub(crate) green: CUgreenCtx,
    pub(crate) context: CUcontext,
    device: Device,
}

impl Green {
    pub(crate) fn create(device: &Device) -> green_ctx::Result<Green> {
        let api = device.driver().api();
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        // SAFETY: integers, bytes and a pointer: all zeros is a value.
        let mut whole: CUdevResource = unsafe { std::mem::zeroed() };
        let get = api.cuDeviceGetDevResource()?;
        // SAFETY: the pointer is to a live structure.
        ok("cuDeviceGetDevResource", unsafe { get(device.as_raw(), &raw mut whole, kind) })?;
        let mut part = whole;
        let mut count = 1;
        let split = api.cuDevSmResourceSplitByCount()?;
        let none = ptr::null_mut();
        // SAFETY: room for one group is given, and no remainder is wanted.
        ok("cuDevSmResourceSplitByCount", unsafe {
            split(&raw mut part, &raw mut count, &raw const whole, none, 0, 16)
        })?;
        let mut descriptor = ptr::null_mut();
        let generate = api.cuDevResourceGenerateDesc()?;
        // SAFETY: one live structure.
        ok("cuDevResourceGenerateDesc", unsafe {
            generate(&raw mut descriptor, &raw mut part, 1)
        })?;
        let mut green = ptr::null_mut();
        let create = api.cuGreenCtxCreate()?;
        // SAFETY: the descriptor was generated just now.
        ok("cuGreenCtxCreate", unsafe { create(&raw mut green, descriptor, device.as_raw(), 1) })?;
        let mut context = ptr::null_mut();
        let derive = api.cuCtxFromGreenCtx()?;
        // SAFETY: the green context is alive.
        ok("cuCtxFromGreenCtx", unsafe { derive(&raw mut context, green) })?;
        Ok(Green { green, context, device: device.clone() })
    }

    /// A stream of the green context.
    pub(crate) fn stream(&self) -> green_ctx::Result<CUstream> {
        stream_of(&self.device, self.green)
    }
}

/// A stream of a green context.
pub(crate) fn stream_of(device: &Device, green: CUgreenCtx) -> green_ctx::Result<CUstream> {
    let create = device.driver().api().cuGreenCtxStreamCreate()?;
    let mut raw = ptr::null_mut();
    // SAFETY: the green context is alive.
    ok("cuGreenCtxStreamCreate", unsafe { create(&raw mut raw, green, 1, 0) })?;
    Ok(raw)
}

impl Drop for Green {
    fn drop(&mut self) {
        let destroy = self.device.driver().api().cuGreenCtxDestroy().expect("it was made");
        // SAFETY: whoever made the context does not use it any more.
        let status = unsafe { destroy(self.green) };
        assert_eq!(status, CUresult::CUDA_SUCCESS);
    }
}
// SAFETY: handles name objects of the process, not of a thread.
unsafe impl Send for Green {}
// SAFETY: as above.
unsafe impl Sync for Green {}

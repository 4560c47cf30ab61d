//! Direct calls of the driver, as another library makes them.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx::sys::{CUcontext, CUdevResource, CUdevResourceType, CUgreenCtx, CUstream};
use green_ctx::{Device, call, context::Context};

/// Creates a stream in a context.
#[allow(dead_code, reason = "not every test has streams of another library")]
pub(crate) fn stream(context: &Context) -> green_ctx::Result<CUstream> {
    let _current = context.make_current()?;
    let (api, mut raw) = (context.device().driver().api(), ptr::null_mut());
    // SAFETY: `raw` is a live local.
    unsafe { call!(api, cuStreamCreate(&raw mut raw, 1)) }?;
    Ok(raw)
}

#[allow(dead_code, reason = "as above")]
pub(crate) fn destroy_stream(device: &Device, raw: CUstream) -> green_ctx::Result<()> {
    // SAFETY: the callers created the stream and do not use it again.
    unsafe { call!(device.driver().api(), cuStreamDestroy(raw)) }
}

pub(crate) fn push(device: &Device, context: CUcontext) -> green_ctx::Result<()> {
    // SAFETY: the callers keep the context alive until they pop it.
    unsafe { call!(device.driver().api(), cuCtxPushCurrent(context)) }
}

pub(crate) fn pop(device: &Device) -> green_ctx::Result<()> {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` is a live local.
    unsafe { call!(device.driver().api(), cuCtxPopCurrent(&raw mut popped)) }
}

/// A green context of all SMs. Dropping it destroys it.
pub(crate) struct Green {
    pub(crate) context: CUcontext,
    green: CUgreenCtx,
    device: Device,
}

impl Green {
    pub(crate) fn create(device: &Device) -> green_ctx::Result<Green> {
        let (api, kind) = (device.driver().api(), CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM);
        // SAFETY: the structure consists of integers, bytes and a pointer, for which zeros are valid.
        let mut all: CUdevResource = unsafe { std::mem::zeroed() };
        let mut descriptor = ptr::null_mut();
        let (mut green, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `all` is a live local.
        unsafe { call!(api, cuDeviceGetDevResource(device.as_raw(), &raw mut all, kind)) }?;
        // SAFETY: `descriptor` and `all` are live locals, and 1 is the number of resources in `all`.
        unsafe { call!(api, cuDevResourceGenerateDesc(&raw mut descriptor, &raw mut all, 1)) }?;
        // SAFETY: the call above created the descriptor.
        unsafe { call!(api, cuGreenCtxCreate(&raw mut green, descriptor, device.as_raw(), 1)) }?;
        // SAFETY: the call above created the green context.
        unsafe { call!(api, cuCtxFromGreenCtx(&raw mut context, green)) }?;
        Ok(Green { green, context, device: device.clone() })
    }

    #[allow(dead_code, reason = "as above")]
    pub(crate) fn stream(&self) -> green_ctx::Result<CUstream> {
        let (api, mut raw) = (self.device.driver().api(), ptr::null_mut());
        // SAFETY: `self` keeps the green context alive.
        unsafe { call!(api, cuGreenCtxStreamCreate(&raw mut raw, self.green, 1, 0)) }?;
        Ok(raw)
    }
}

impl Drop for Green {
    fn drop(&mut self) {
        // SAFETY: the context is not used after its owner is dropped.
        unsafe { call!(self.device.driver().api(), cuGreenCtxDestroy(self.green)) }
            .expect("destroyed");
    }
}

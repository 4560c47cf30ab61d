//! The source of the memory: the allocator's pool, or the device itself.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;

use green_ctx::sys::{
    CUdeviceptr, CUipcMemHandle_v1, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocation_st__bindgen_ty_1, CUmemLocationType, CUmemPool_attribute, CUmemPoolHandle_st,
    CUmemPoolProps, CUstream,
};
use green_ctx::{
    Device, Driver, Result, Stream, StreamOptions, context::Context, graph::RelaxedCapture,
};

use super::handle::Handle;
use green_ctx::call;

/// A memory pool of a device, and an internal stream (`quiet`) for allocations and frees that do not belong to a
/// caller's stream.
pub(super) struct Source {
    pool: Handle<CUmemPoolHandle_st>,
    quiet: Stream,
    primary: Context,
}

impl Source {
    pub(super) fn create(device: &Device, threshold: u64) -> Result<Source> {
        let primary = device.primary_context()?;
        let quiet = primary.create_stream(StreamOptions::default())?;
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id: device.as_raw() },
            },
            win32SecurityAttributes: ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            gpuDirectRDMACapable: 0,
            reserved: [0; 53],
        };
        let mut pool = ptr::null_mut();
        // SAFETY: `pool` and `props` are live locals.
        unsafe { call!(device.driver().api(), cuMemPoolCreate(&raw mut pool, &raw const props)) }?;
        // `Source` destroys the pool if a step below fails.
        let source = Source { pool: Handle(pool), quiet, primary };
        source.set_threshold(threshold)?;
        // With internal dependencies, the driver could make an allocation of one partition wait for a free of
        // another.
        let never: i32 = 0;
        source
            .set(CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &never)?;
        Ok(source)
    }

    pub(super) fn primary(&self) -> &Context {
        &self.primary
    }

    fn driver(&self) -> &Driver {
        self.primary.device().driver()
    }

    /// Sets an attribute. `T` must be the attribute's type in cuda.h. While another thread captures a stream, the
    /// driver refuses this call unless the calling thread's capture mode is relaxed (recorded on hardware).
    fn set<T>(&self, attribute: CUmemPool_attribute, value: &T) -> Result<()> {
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        let value = ptr::from_ref(value).cast_mut().cast();
        // SAFETY: the pool is alive until `Drop`. The driver reads a value of the attribute's type, and both callers
        // pass the type of cuda.h: `cuuint64_t` for the threshold, `int` for the reuse attribute.
        unsafe { call!(self.driver().api(), cuMemPoolSetAttribute(self.pool.0, attribute, value)) }
    }

    fn get(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        let mut value = 0_u64;
        let out = (&raw mut value).cast();
        // SAFETY: the pool is alive until `Drop`. `value` is a live local of 64 bits, which is the size of the only
        // attribute that the caller passes (cuda.h).
        unsafe { call!(self.driver().api(), cuMemPoolGetAttribute(self.pool.0, attribute, out)) }?;
        Ok(value)
    }

    /// Sets the number of unused bytes that the pool keeps when the host synchronises with the device.
    pub(super) fn set_threshold(&self, bytes: u64) -> Result<()> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes)
    }

    /// Returns the bytes of device memory that the pool holds, in use or not.
    pub(super) fn reserved_bytes(&self) -> Result<u64> {
        self.get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Returns the pool's unused memory to the device.
    pub(super) fn trim(&self) -> Result<()> {
        // SAFETY: the pool is alive until `Drop`.
        unsafe { call!(self.driver().api(), cuMemPoolTrimTo(self.pool.0, 0)) }
    }

    /// Allocates memory in stream order.
    ///
    /// # Safety
    ///
    /// The stream must be alive and must not be captured. A default-stream token is resolved in the current context.
    pub(super) unsafe fn allocate(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
        let mut address = 0;
        let out = &raw mut address;
        // SAFETY: `address` is a live local and the pool is alive until `Drop`. The contract of this function covers
        // `stream`.
        unsafe {
            call!(self.driver().api(), cuMemAllocFromPoolAsync(out, bytes, self.pool.0, stream))
        }?;
        Ok(address)
    }

    /// Allocates memory that every stream can use immediately, like memory from `cuMemAlloc`. The host waits until the
    /// memory is ready.
    pub(super) fn allocate_for_all(&self, bytes: usize) -> Result<CUdeviceptr> {
        // SAFETY: `self` keeps `quiet` alive. No other code has this stream, so it is not captured.
        let address = unsafe { self.allocate(bytes, self.quiet.as_raw()) }?;
        self.quiet.synchronize().inspect_err(|_| {
            self.driver().report(self.free_quietly(address));
        })?;
        Ok(address)
    }

    /// Frees memory of the pool in stream order.
    ///
    /// # Safety
    ///
    /// As for [`allocate`](Source::allocate). The memory must be from the pool. All work that uses the memory must be
    /// done, or must come before the free in stream order.
    pub(super) unsafe fn free(&self, address: CUdeviceptr, stream: CUstream) -> Result<()> {
        // SAFETY: the caller guarantees that the stream is live, that the memory is from the pool, and that all work
        // that uses the memory is done or comes before the free in stream order.
        unsafe { call!(self.driver().api(), cuMemFreeAsync(address, stream)) }
    }

    /// Frees memory of the pool that no work uses.
    pub(super) fn free_quietly(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: `self` keeps `quiet` alive, and no other code captures it. The callers pass memory of the pool
        // after waiting for all work that used it.
        unsafe { self.free(address, self.quiet.as_raw()) }
    }

    /// Allocates memory outside the pool, which can have an IPC handle.
    pub(super) fn allocate_shareable(&self, bytes: usize) -> Result<CUdeviceptr> {
        let _current = self.primary.make_current()?;
        let mut address = 0;
        // SAFETY: `address` is a live local, and `_current` makes the primary context current.
        unsafe { call!(self.driver().api(), cuMemAlloc(&raw mut address, bytes)) }?;
        Ok(address)
    }

    /// Frees memory outside the pool. The driver waits for the device's work (recorded on an H200, driver
    /// 580.159.04).
    pub(super) fn free_shareable(&self, address: CUdeviceptr) -> Result<()> {
        let _current = self.primary.make_current()?;
        // SAFETY: the only caller passes memory from `allocate_shareable`, after waiting for all work that used it.
        unsafe { call!(self.driver().api(), cuMemFree(address)) }
    }

    /// Returns the IPC handle of memory outside the pool.
    pub(super) fn ipc_handle(&self, address: CUdeviceptr) -> Result<[u8; 64]> {
        let _current = self.primary.make_current()?;
        let mut handle = CUipcMemHandle_v1 { reserved: [0; 64] };
        // SAFETY: `handle` is a live local, and the driver checks the address.
        unsafe { call!(self.driver().api(), cuIpcGetMemHandle(&raw mut handle, address)) }?;
        // The signedness of `c_char` depends on the platform. The bytes are the same.
        Ok(handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Waits until the frees on the quiet stream have run.
    pub(super) fn finish(&self) -> Result<()> {
        self.quiet.synchronize()
    }

    /// Waits until all work of the device is done, including the work of green contexts (cuda.h, `cuCtxSynchronize`).
    /// The call does not wait for a graph on a stream of a green context unless other work follows the graph. The call
    /// invalidates captures of the device's streams.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.primary.synchronize()
    }
}

impl Source {
    fn destroy(&self) -> Result<()> {
        // SAFETY: `create` created the pool, and `Drop`, the only caller, destroys it once. Blocks that are still
        // allocated stay valid (recorded on an H200, driver 580.159.04).
        unsafe { call!(self.driver().api(), cuMemPoolDestroy(self.pool.0)) }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let device = self.primary.device();
        if device.driver().device(device.ordinal()).is_err() {
            // In a forked child, the driver's objects belong to the parent.
            return;
        }
        // The last handle can be dropped at any time, even while other threads capture.
        let relaxed = RelaxedCapture::enter(device.driver());
        let destroyed = self.destroy();
        device.driver().report(relaxed.map(drop));
        device.driver().report(destroyed);
    }
}

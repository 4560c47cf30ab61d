//! Where memory comes from: a pool of the allocator's own, or the device itself.
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

/// A memory pool of a device, and a stream for what is in no other stream's order.
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
        // SAFETY: both pointers are to live values.
        unsafe { call!(device.driver().api(), cuMemPoolCreate(&raw mut pool, &raw const props)) }?;
        // Destroyed from here on, whatever fails.
        let source = Source { pool: Handle(pool), quiet, primary };
        source.set_threshold(threshold)?;
        // Otherwise the driver may have an allocation of one partition wait for a free of another.
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

    /// Sets an attribute, whose type must be the one that cuda.h gives. Captures forbid that, as
    /// recorded.
    fn set<T>(&self, attribute: CUmemPool_attribute, value: &T) -> Result<()> {
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        let value = ptr::from_ref(value).cast_mut().cast();
        // SAFETY: the pool is alive; the driver reads a value of the attribute's type.
        unsafe { call!(self.driver().api(), cuMemPoolSetAttribute(self.pool.0, attribute, value)) }
    }

    fn get(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        let _relaxed = RelaxedCapture::enter(self.driver())?;
        let mut value = 0_u64;
        let out = (&raw mut value).cast();
        // SAFETY: the pool is alive; the attributes asked for are of 64 bits (cuda.h).
        unsafe { call!(self.driver().api(), cuMemPoolGetAttribute(self.pool.0, attribute, out)) }?;
        Ok(value)
    }

    /// How many bytes that are not in use the pool keeps when work is waited for.
    pub(super) fn set_threshold(&self, bytes: u64) -> Result<()> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes)
    }

    /// The bytes that the pool has of the device, in use or not.
    pub(super) fn reserved_bytes(&self) -> Result<u64> {
        self.get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Gives what is not in use back to the device.
    pub(super) fn trim(&self) -> Result<()> {
        // SAFETY: the pool is alive.
        unsafe { call!(self.driver().api(), cuMemPoolTrimTo(self.pool.0, 0)) }
    }

    /// Memory in the order of a stream.
    ///
    /// # Safety
    ///
    /// The stream must be alive and not be captured; a token is looked up in the current context.
    pub(super) unsafe fn allocate(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
        let mut address = 0;
        let out = &raw mut address;
        // SAFETY: the pointer is to a live address; pool and stream are alive.
        unsafe {
            call!(self.driver().api(), cuMemAllocFromPoolAsync(out, bytes, self.pool.0, stream))
        }?;
        Ok(address)
    }

    /// Memory that every stream can use at once, as `cuMemAlloc` gives it. The host waits until the
    /// driver has it ready.
    pub(super) fn allocate_for_all(&self, bytes: usize) -> Result<CUdeviceptr> {
        // SAFETY: the stream is alive, and nobody else submits to it.
        let address = unsafe { self.allocate(bytes, self.quiet.as_raw()) }?;
        self.quiet.synchronize().inspect_err(|_| {
            self.driver().report(self.free_quietly(address));
        })?;
        Ok(address)
    }

    /// Frees memory of the pool in the order of a stream.
    ///
    /// # Safety
    ///
    /// As [`allocate`](Source::allocate). The memory must be the pool's; what is not in the order of the
    /// stream must be done with it.
    pub(super) unsafe fn free(&self, address: CUdeviceptr, stream: CUstream) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { call!(self.driver().api(), cuMemFreeAsync(address, stream)) }
    }

    /// Frees memory of the pool that nothing uses any more.
    pub(super) fn free_quietly(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the callers have waited for what used the memory; the stream is alive.
        unsafe { self.free(address, self.quiet.as_raw()) }
    }

    /// Memory that is in no pool, of which there are IPC handles.
    pub(super) fn allocate_shareable(&self, bytes: usize) -> Result<CUdeviceptr> {
        let _current = self.primary.make_current()?;
        let mut address = 0;
        // SAFETY: the pointer is to a live address; a context is current.
        unsafe { call!(self.driver().api(), cuMemAlloc(&raw mut address, bytes)) }?;
        Ok(address)
    }

    /// Frees memory that is in no pool. It waits for the device's work (recorded on an H200, driver
    /// 580.159.04).
    pub(super) fn free_shareable(&self, address: CUdeviceptr) -> Result<()> {
        let _current = self.primary.make_current()?;
        // SAFETY: allocated by `allocate_shareable`; the callers have waited for what used it.
        unsafe { call!(self.driver().api(), cuMemFree(address)) }
    }

    /// The IPC handle of memory that is in no pool.
    pub(super) fn ipc_handle(&self, address: CUdeviceptr) -> Result<[u8; 64]> {
        let _current = self.primary.make_current()?;
        let mut handle = CUipcMemHandle_v1 { reserved: [0; 64] };
        // SAFETY: the pointer is to a live handle; the driver checks the address.
        unsafe { call!(self.driver().api(), cuIpcGetMemHandle(&raw mut handle, address)) }?;
        // `c_char` is signed or not, by platform; the bytes are the same.
        Ok(handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Waits until what was freed in no other stream's order is.
    pub(super) fn finish(&self) -> Result<()> {
        self.quiet.synchronize()
    }

    /// Waits until all work of the device is done, that of green contexts included (cuda.h,
    /// `cuCtxSynchronize`), but for graphs on their streams with nothing behind them. Captures of the device's streams are invalidated.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.primary.synchronize()
    }
}

impl Source {
    fn destroy(&self) -> Result<()> {
        // SAFETY: made by `create`, destroyed once. Blocks that are left stay (recorded on an H200,
        // driver 580.159.04).
        unsafe { call!(self.driver().api(), cuMemPoolDestroy(self.pool.0)) }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let device = self.primary.device();
        if device.driver().device(device.ordinal()).is_err() {
            // A forked child: nothing of it is this process's.
            return;
        }
        // Allocators end where nobody chooses to, and captures of other threads go on.
        let relaxed = RelaxedCapture::enter(device.driver());
        let destroyed = self.destroy();
        device.driver().report(relaxed.map(drop));
        device.driver().report(destroyed);
    }
}

//! Functions that allocate, copy, fill and query memory.

use core::ffi::c_void;
use core::ptr::null_mut;

use green_ctx_sys::*;

use super::{Calls, Reply};

calls! {
    cuMemAlloc(bytes: usize) -> (address: CUdeviceptr = 0) => (&raw mut address, bytes);
    cuMemFree(address: CUdeviceptr) => (address);
    cuMemAllocAsync(bytes: usize, stream: CUstream) -> (address: CUdeviceptr = 0)
        => (&raw mut address, bytes, stream);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) => (address, stream);
    cuMemcpyHtoD(to: CUdeviceptr, from: &[u8]) => (to, from.as_ptr().cast(), from.len());
    cuMemcpyDtoH(to: &mut [u8], from: CUdeviceptr)
        => (to.as_mut_ptr().cast(), from, to.len());
    cuMemsetD8(to: CUdeviceptr, byte: u8, bytes: usize) => (to, byte, bytes);
    cuMemsetD8Async(to: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream)
        => (to, byte, bytes, stream);
    cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream)
        => (to, value, count, stream);
    cuMemcpyHtoDAsync(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream)
        => (to, from, bytes, stream);
    cuMemcpyDtoHAsync(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => (to, from, bytes, stream);

    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => (to, from, bytes);
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => (to, from, bytes, stream);
    cuMemcpyDtoD(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => (to, from, bytes);
    cuMemcpyDtoDAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => (to, from, bytes, stream);

    cuMemsetD16(to: CUdeviceptr, value: u16, count: usize) => (to, value, count);
    cuMemsetD32(to: CUdeviceptr, value: u32, count: usize) => (to, value, count);
    cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream)
        => (to, value, count, stream);

    cuMemAllocHost(bytes: usize) -> (pointer: *mut c_void = null_mut()) => (&raw mut pointer, bytes);
    cuMemFreeHost(pointer: *mut c_void) => (pointer);
    cuMemHostAlloc(bytes: usize, flags: u32) -> (pointer: *mut c_void = null_mut())
        => (&raw mut pointer, bytes, flags);
    cuMemHostRegister(pointer: *mut c_void, bytes: usize, flags: u32) => (pointer, bytes, flags);
    cuMemHostUnregister(pointer: *mut c_void) => (pointer);
    cuMemPoolCreate(props: &CUmemPoolProps) -> (pool: CUmemoryPool = null_mut())
        => (&raw mut pool, props);
    cuMemPoolDestroy(pool: CUmemoryPool) => (pool);
    cuMemPoolTrimTo(pool: CUmemoryPool, bytes: usize) => (pool, bytes);
    cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> (value: u64 = 0)
        => (pool, attribute, (&raw mut value).cast());
    cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: &mut u64)
        => (pool, attribute, (&raw mut *value).cast());
    cuMemPoolSetAccess(pool: CUmemoryPool, access: &[CUmemAccessDesc])
        => (pool, access.as_ptr(), access.len());
    cuMemAllocFromPoolAsync(bytes: usize, pool: CUmemoryPool, stream: CUstream)
        -> (address: CUdeviceptr = 0)
        => (&raw mut address, bytes, pool, stream);

    cuPointerGetAttribute(attribute: CUpointer_attribute, address: CUdeviceptr) -> (value: u64 = 0)
        => ((&raw mut value).cast(), attribute, address);
    cuPointerGetAttributes(
        attributes: &mut [CUpointer_attribute], places: &mut [*mut c_void], address: CUdeviceptr)
        => (u32::try_from(attributes.len()).unwrap_or(0), attributes.as_mut_ptr(),
            places.as_mut_ptr(), address);
}

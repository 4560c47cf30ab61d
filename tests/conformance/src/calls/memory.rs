//! The functions of memory: allocated, copied, filled, asked about.

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
    cuMemGetAddressRange(address: CUdeviceptr) -> (base: CUdeviceptr = 0, bytes: usize = 0)
        => (&raw mut base, &raw mut bytes, address);
    cuMemAllocManaged(bytes: usize, flags: u32) -> (address: CUdeviceptr = 0)
        => (&raw mut address, bytes, flags);

    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => (to, from, bytes);
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => (to, from, bytes, stream);
    cuMemcpyDtoD(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => (to, from, bytes);
    cuMemcpyDtoDAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => (to, from, bytes, stream);
    cuMemcpyPeer(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
        bytes: usize)
        => (to, to_context, from, from_context, bytes);
    cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
        bytes: usize, stream: CUstream)
        => (to, to_context, from, from_context, bytes, stream);
    cuMemcpy2D(copy: &CUDA_MEMCPY2D_st) => (copy);
    cuMemcpy2DAsync(copy: &CUDA_MEMCPY2D_st, stream: CUstream) => (copy, stream);
    cuMemcpy3D(copy: &CUDA_MEMCPY3D_st) => (copy);
    cuMemcpy3DAsync(copy: &CUDA_MEMCPY3D_st, stream: CUstream) => (copy, stream);

    cuMemsetD16(to: CUdeviceptr, value: u16, count: usize) => (to, value, count);
    cuMemsetD32(to: CUdeviceptr, value: u32, count: usize) => (to, value, count);
    cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream)
        => (to, value, count, stream);
    cuMemsetD2D8Async(
        to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream)
        => (to, pitch, value, width, height, stream);
    cuMemsetD2D16Async(
        to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream)
        => (to, pitch, value, width, height, stream);
    cuMemsetD2D32Async(
        to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream)
        => (to, pitch, value, width, height, stream);

    cuMemAllocHost(bytes: usize) -> (pointer: *mut c_void = null_mut()) => (&raw mut pointer, bytes);
    cuMemFreeHost(pointer: *mut c_void) => (pointer);
    cuMemHostAlloc(bytes: usize, flags: u32) -> (pointer: *mut c_void = null_mut())
        => (&raw mut pointer, bytes, flags);
    cuMemHostGetDevicePointer(pointer: *mut c_void, flags: u32) -> (address: CUdeviceptr = 0)
        => (&raw mut address, pointer, flags);
    cuMemHostGetFlags(pointer: *mut c_void) -> (flags: u32 = u32::MAX) => (&raw mut flags, pointer);
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
    cuMemPoolGetAccess(pool: CUmemoryPool, location: &mut CUmemLocation)
        -> (flags: CUmemAccess_flags = CUmemAccess_flags(99))
        => (&raw mut flags, pool, &raw mut *location);
    cuMemAllocFromPoolAsync(bytes: usize, pool: CUmemoryPool, stream: CUstream)
        -> (address: CUdeviceptr = 0)
        => (&raw mut address, bytes, pool, stream);

    cuPointerGetAttribute(attribute: CUpointer_attribute, address: CUdeviceptr) -> (value: u64 = 0)
        => ((&raw mut value).cast(), attribute, address);
    cuPointerGetAttributes(
        attributes: &mut [CUpointer_attribute], places: &mut [*mut c_void], address: CUdeviceptr)
        => (u32::try_from(attributes.len()).unwrap_or(0), attributes.as_mut_ptr(),
            places.as_mut_ptr(), address);
    cuPointerSetAttribute(value: &u32, attribute: CUpointer_attribute, address: CUdeviceptr)
        => ((&raw const *value).cast(), attribute, address);
}

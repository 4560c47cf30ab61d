//! Memory and copies.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::context::in_context;
use crate::driver::*;
use crate::error::{INVALID_DIRECTION, INVALID_PITCH};

/// `cudaMemcpyDeviceToDevice`. Only for this kind do the addresses have to match (recorded on hardware).
const DEVICE_TO_DEVICE: c_uint = 3;
/// `cudaMemcpyDefault`, the last kind.
const DEFAULT: c_uint = 4;

/// `cudaPointerAttributes`.
#[repr(C)]
struct Attributes {
    /// 0 for memory that CUDA does not know, 1 for host memory, 2 for device memory.
    kind: c_uint,
    device: c_int,
    device_address: *mut c_void,
    host_address: *mut c_void,
    reserved: [i64; 8],
}

/// Returns the attributes of an address. Memory that CUDA does not know counts as memory of the host and of device -2
/// (recorded on hardware).
fn attributes(address: *mut c_void) -> Attributes {
    let query = |attribute| {
        let mut value = 0_i32;
        let at = (&raw mut value).cast();
        // SAFETY: both attributes that are queried have four bytes.
        let known = unsafe { cuPointerGetAttribute(at, attribute, address as CUdeviceptr) };
        (known == CUresult::CUDA_SUCCESS).then_some(value)
    };
    let kind = query(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    let (kind, device) = match kind.map(|kind| CUmemorytype(kind as u32)) {
        None => (0, None),
        Some(CUmemorytype::CU_MEMORYTYPE_DEVICE) => {
            (2, query(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL))
        }
        Some(_) => (1, query(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)),
    };
    Attributes {
        kind,
        device: device.unwrap_or(-2),
        device_address: if kind == 0 { null_mut() } else { address },
        host_address: if kind == 2 { null_mut() } else { address },
        reserved: [0; 8],
    }
}

functions! { in_context:
    cudaMalloc(out: *mut CUdeviceptr, len: usize) => match len {
        0 => { out.write(0); CUresult::CUDA_SUCCESS }
        _ => cuMemAlloc_v2(out, len),
    };
    cudaFree(memory: CUdeviceptr) => match memory {
        0 => CUresult::CUDA_SUCCESS,
        _ => cuMemFree_v2(memory),
    };
    cudaMallocAsync(out: *mut CUdeviceptr, len: usize, stream: CUstream) => cuMemAllocAsync(out, len, stream);
    cudaFreeAsync(memory: CUdeviceptr, stream: CUstream) => cuMemFreeAsync(memory, stream);
    cudaMemGetInfo(free: *mut usize, total: *mut usize) => cuMemGetInfo_v2(free, total);
    cudaDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: c_int) => cuDeviceGetDefaultMemPool(pool, device);
    cudaMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) =>
        cuMemPoolGetAttribute(pool, attribute, value);
    cudaMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) =>
        cuMemPoolSetAttribute(pool, attribute, value);
    cudaMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize) =>
        cuMemPoolSetAccess(pool, access, count);
    cudaMemPoolTrimTo(pool: CUmemoryPool, keep: usize) => cuMemPoolTrimTo(pool, keep);

    cudaMallocHost(out: *mut *mut c_void, len: usize) => cuMemHostAlloc(out, len, 0);
    cudaHostAlloc(out: *mut *mut c_void, len: usize, flags: c_uint) => cuMemHostAlloc(out, len, flags);
    cudaFreeHost(memory: *mut c_void) => match memory.is_null() {
        true => CUresult::CUDA_SUCCESS,
        false => cuMemFreeHost(memory),
    };
    cudaHostRegister(memory: *mut c_void, len: usize, flags: c_uint) => cuMemHostRegister_v2(memory, len, flags);
    cudaHostUnregister(memory: *mut c_void) => cuMemHostUnregister(memory);
    cudaPointerGetAttributes(out: *mut Attributes, address: *mut c_void) => {
        out.write(attributes(address));
        CUresult::CUDA_SUCCESS
    };

    cudaMemset(memory: CUdeviceptr, value: c_int, len: usize) => cuMemsetD8_v2(memory, value as u8, len);
    cudaMemsetAsync(memory: CUdeviceptr, value: c_int, len: usize, stream: CUstream) => match len {
        0 => CUresult::CUDA_SUCCESS,
        _ => cuMemsetD8Async(memory, value as u8, len, stream),
    };
    cudaMemcpy(to: CUdeviceptr, from: CUdeviceptr, len: usize, kind: c_uint) => match kind {
        _ if len == 0 => CUresult::CUDA_SUCCESS,
        DEVICE_TO_DEVICE => cuMemcpyDtoD_v2(to, from, len),
        0..=DEFAULT => cuMemcpy(to, from, len),
        _ => INVALID_DIRECTION,
    };
    cudaMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, len: usize, kind: c_uint, stream: CUstream) => match kind {
        _ if len == 0 => CUresult::CUDA_SUCCESS,
        DEVICE_TO_DEVICE => cuMemcpyDtoDAsync_v2(to, from, len, stream),
        0..=DEFAULT => cuMemcpyAsync(to, from, len, stream),
        _ => INVALID_DIRECTION,
    };
    cudaMemcpyPeerAsync(
        to: CUdeviceptr, _to_device: c_int, from: CUdeviceptr, _from_device: c_int, len: usize, stream: CUstream
    ) => cudaMemcpyAsync(to, from, len, DEFAULT, stream);
    /// Copies row by row.
    cudaMemcpy2DAsync(
        to: CUdeviceptr, to_pitch: usize, from: CUdeviceptr, from_pitch: usize, width: usize, height: usize,
        kind: c_uint, stream: CUstream
    ) => {
        let rows = (0..height).map(|row| (to + (row * to_pitch) as u64, from + (row * from_pitch) as u64));
        let mut copied = rows.map(|(to, from)| cudaMemcpyAsync(to, from, width, kind, stream));
        match width > to_pitch.min(from_pitch) {
            true => INVALID_PITCH,
            false => copied.find(|status| *status != CUresult::CUDA_SUCCESS).unwrap_or(CUresult::CUDA_SUCCESS),
        }
    };
}

//! Devices: their number, versions and properties.

use std::ffi::{c_char, c_int, c_uint, c_void};

use green_ctx_sys::{
    CUdevice_attribute as A, CUdriverProcAddressQueryResult, CUresult, CUuuid, cuuint64_t,
};

use crate::context::initialised;
use crate::driver::*;

/// `cudaDeviceProp` of CUDA 13, as bytes.
type Properties = [u8; 1008];

/// Fields of `cudaDeviceProp`: the offset, the size, and the attribute with the value. The offsets are those of the
/// header of CUDA 13.0. The fields that are not listed are 0.
const FIELDS: &[(usize, usize, A)] = &[
    (296, 8, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
    (304, 4, A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
    (308, 4, A::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
    (320, 4, A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
    (324, 4, A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
    (328, 4, A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
    (332, 4, A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
    (336, 4, A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
    (340, 4, A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
    (344, 4, A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
    (360, 4, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    (364, 4, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    (384, 4, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    (568, 4, A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
    (588, 4, A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
    (596, 4, A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    (604, 4, A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
    (624, 8, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    (632, 4, A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
    (668, 4, A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
    (672, 8, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    (688, 4, A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR),
    (696, 8, A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
    (720, 4, A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
];

/// Writes the properties of a device.
fn properties(found: &mut Properties, device: c_int) -> CUresult {
    *found = [0; 1008];
    let (mut uuid, mut memory) = (CUuuid { bytes: [0; 16] }, 0);
    // SAFETY: the structure begins with 256 bytes for the name.
    let known = unsafe { cuDeviceGetName(found.as_mut_ptr().cast(), 256, device) };
    if known != CUresult::CUDA_SUCCESS {
        return known;
    }
    // SAFETY: the pointer is to a local variable, here and below.
    unsafe { cuDeviceGetUuid_v2(&mut uuid, device) };
    found[256..272].copy_from_slice(&uuid.bytes.map(|byte| byte as u8));
    // SAFETY: as above.
    unsafe { cuDeviceTotalMem_v2(&mut memory, device) };
    found[288..296].copy_from_slice(&memory.to_le_bytes());
    for &(offset, size, attribute) in FIELDS {
        let mut value = 0;
        // SAFETY: as above.
        unsafe { cuDeviceGetAttribute(&mut value, attribute, device) };
        found[offset..offset + size].copy_from_slice(&i64::from(value).to_le_bytes()[..size]);
    }
    CUresult::CUDA_SUCCESS
}

/// Refuses access to the memory of another device, which the simulated driver does not have.
fn can_access(can: &mut c_int, devices: [c_int; 2]) -> CUresult {
    let mut count = 0;
    // SAFETY: the pointer is to a local variable.
    let known = unsafe { cuDeviceGetCount(&mut count) };
    *can = 0;
    match devices.iter().all(|device| (0..count).contains(device)) {
        true => known,
        false => CUresult::CUDA_ERROR_INVALID_DEVICE,
    }
}

functions! { initialised:
    cudaGetDeviceCount(count: *mut c_int) => cuDeviceGetCount(count);
    cudaDriverGetVersion(version: *mut c_int) => cuDriverGetVersion(version);
    cudaRuntimeGetVersion(version: *mut c_int) => cuDriverGetVersion(version);
    cudaGetDeviceProperties(out: *mut Properties, device: c_int) => properties(&mut *out, device);
    cudaDeviceGetAttribute(value: *mut c_int, attribute: A, device: c_int) =>
        cuDeviceGetAttribute(value, attribute, device);
    cudaDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) =>
        cuDeviceGetPCIBusId(id, len, device);
    cudaDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) =>
        can_access(&mut *can, [from, to]);
    cudaGetDriverEntryPointByVersion(
        name: *const c_char, out: *mut *mut c_void, version: c_uint, flags: cuuint64_t,
        found: *mut CUdriverProcAddressQueryResult
    ) => cuGetProcAddress_v2(name, out, version as c_int, flags, found);
}

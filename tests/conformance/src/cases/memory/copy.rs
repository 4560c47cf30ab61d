//! Copies in every direction.

use std::ffi::c_void;
use std::ptr::null_mut;

use green_ctx_sys::CUdeviceptr;

use crate::answer::Failure;
use crate::cases::Case;
use crate::gpu::{Gpu, LONG};
/// Returns the address of host memory as a unified address.
fn at(bytes: &mut [u8]) -> CUdeviceptr {
    bytes.as_mut_ptr().expose_provenance() as CUdeviceptr
}

/// Allocates device memory that holds the numbers from 0 on.
fn counted(gpu: &Gpu, len: u8) -> Result<CUdeviceptr, Failure> {
    let address = gpu.cuMemAlloc(usize::from(len))?.must()?;
    gpu.cuMemcpyHtoD(address, &(0..len).collect::<Vec<_>>())?.must()?;
    Ok(address)
}

/// Returns the device memory's content after all work.
fn bytes<const N: usize>(gpu: &Gpu, address: CUdeviceptr) -> Result<Vec<u32>, Failure> {
    gpu.cuCtxSynchronize()?.must()?;
    let mut bytes = [0; N];
    gpu.cuMemcpyDtoH(&mut bytes, address)?.must()?;
    Ok(bytes.map(u32::from).to_vec())
}
pub(in crate::cases) fn cases() -> Vec<Case> {
    vec![
        Case::new("copy/unified-in-every-direction", |gpu, answer| {
            let memory = counted(gpu, 16)?;
            let (mut host, mut other) = ([9_u8; 4], [0_u8; 4]);
            answer.add("on_device", gpu.cuMemcpy(memory, memory + 8, 4)?);
            answer.add("to_device", gpu.cuMemcpy(memory + 4, at(&mut host), 4)?);
            answer.add("device", bytes::<9>(gpu, memory)?);
            answer.add("to_host", gpu.cuMemcpy(at(&mut other), memory, 4)?);
            answer.add("host", other.map(u32::from).to_vec());
            answer.add("on_host", gpu.cuMemcpy(at(&mut other), at(&mut host), 2)?);
            gpu.cuCtxSynchronize()?.must()?;
            answer.add("host_again", other.map(u32::from).to_vec());
            Ok(())
        }),
        Case::new("copy/unified-async", |gpu, answer| {
            let (memory, stream) = (counted(gpu, 16)?, gpu.stream_of(gpu.green_with(16)?)?);
            let (mut host, mut other) = ([9_u8; 4], [0_u8; 4]);
            answer.add("on_device", gpu.cuMemcpyAsync(memory, memory + 8, 4, stream)?);
            answer.add("to_device", gpu.cuMemcpyAsync(memory + 4, at(&mut host), 4, stream)?);
            answer.add("to_host", gpu.cuMemcpyAsync(at(&mut other), memory, 4, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("device", bytes::<9>(gpu, memory)?);
            answer.add("host", other.map(u32::from).to_vec());
            Ok(())
        }),
        Case::new("copy/on-device", |gpu, answer| {
            let (memory, stream) = (counted(gpu, 32)?, gpu.stream()?);
            answer.add("without_stream", gpu.cuMemcpyDtoD(memory, memory + 8, 4)?);
            gpu.cuCtxSynchronize()?.must()?;
            answer.add("in_stream", gpu.cuMemcpyDtoDAsync(memory + 4, memory + 16, 4, stream)?);
            answer.add("to_itself", gpu.cuMemcpyDtoDAsync(memory, memory, 4, stream)?);
            answer.add("bytes", bytes::<9>(gpu, memory)?);
            Ok(())
        }),
        Case::new("copy/nothing", |gpu, answer| {
            let stream = gpu.stream()?;
            answer.add("unified", gpu.cuMemcpy(0, 0, 0)?);
            answer.add("unified_async", gpu.cuMemcpyAsync(0, 0, 0, stream)?);
            answer.add("on_device", gpu.cuMemcpyDtoD(0, 0, 0)?);
            answer.add("on_device_async", gpu.cuMemcpyDtoDAsync(0, 0, 0, stream)?);
            answer.add("to_device", gpu.cuMemcpyHtoDAsync(0, null_mut(), 0, stream)?);
            answer.add("to_host", gpu.cuMemcpyDtoHAsync(null_mut(), 0, 0, stream)?);
            answer.add("garbage", gpu.cuMemcpyDtoD(0x1234, 0x4321, 0)?);
            Ok(())
        })
        .alone(),
        Case::new("copy/null", |gpu, answer| {
            let (memory, stream) = (counted(gpu, 16)?, gpu.stream()?);
            answer.add("on_device_to", gpu.cuMemcpyDtoD(0, memory, 4)?);
            answer.add("on_device_from", gpu.cuMemcpyDtoD(memory, 0, 4)?);
            answer.add("async_to", gpu.cuMemcpyDtoDAsync(0, memory, 4, stream)?);
            answer.add("async_from", gpu.cuMemcpyDtoDAsync(memory, 0, 4, stream)?);
            answer.add("unified_to", gpu.cuMemcpy(0, memory, 4)?);
            answer.add("unified_from", gpu.cuMemcpy(memory, 0, 4)?);
            answer.add("to_host", gpu.cuMemcpyDtoHAsync(null_mut(), memory, 4, stream)?);
            answer.add("from_host", gpu.cuMemcpyHtoDAsync(memory, null_mut(), 4, stream)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("copy/garbage-on-device", |gpu, answer| {
            let (memory, stream) = (counted(gpu, 16)?, gpu.stream()?);
            answer.add("to", gpu.cuMemcpyDtoD(0x1234, memory, 4)?);
            answer.add("from", gpu.cuMemcpyDtoD(memory, 0x1234, 4)?);
            answer.add("async_to", gpu.cuMemcpyDtoDAsync(0x1234, memory, 4, stream)?);
            answer.add("async_from", gpu.cuMemcpyDtoDAsync(memory, 0x1234, 4, stream)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("copy/host-said-to-be-device", |gpu, answer| {
            let memory = counted(gpu, 16)?;
            let mut host = [9_u8; 4];
            answer.add("from", gpu.cuMemcpyDtoD(memory, at(&mut host), 4)?);
            answer.add("to", gpu.cuMemcpyDtoD(at(&mut host), memory, 4)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("copy/device-said-to-be-host", |gpu, answer| {
            let (memory, stream) = (counted(gpu, 16)?, gpu.stream()?);
            let device: *mut c_void = std::ptr::with_exposed_provenance_mut(memory as usize + 8);
            answer.add("from", gpu.cuMemcpyHtoDAsync(memory, device, 4, stream)?);
            answer.add("to", gpu.cuMemcpyDtoHAsync(device, memory, 4, stream)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            answer.add("bytes", bytes::<12>(gpu, memory)?);
            Ok(())
        })
        .alone(),
        Case::new("copy/freed", |gpu, answer| {
            // Large enough to share no address range with other allocations.
            let (memory, freed) = (counted(gpu, 16)?, gpu.cuMemAlloc(64 << 20)?.must()?);
            gpu.cuMemFree(freed)?.must()?;
            answer.add("from", gpu.cuMemcpyDtoD(memory, freed, 4)?);
            answer.add("to", gpu.cuMemcpyDtoD(freed, memory, 4)?);
            answer.add("to_host", gpu.cuMemcpyDtoH(&mut [0; 4], freed)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("copy/behind-the-end", |gpu, answer| {
            let memory = gpu.cuMemAlloc(64 << 20)?.must()?;
            let end = memory + (64 << 20);
            answer.add("last_byte", gpu.cuMemcpyDtoH(&mut [0; 1], end - 1)?);
            answer.add("over_the_end", gpu.cuMemcpyDtoH(&mut [0; 8], end - 4)?);
            answer.add("on_device", gpu.cuMemcpyDtoD(memory, end - 4, 8)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("copy/in-no-stream", |gpu, answer| {
            let memory = counted(gpu, 16)?;
            let stream = gpu.stream()?;
            gpu.cuStreamDestroy(stream)?.must()?;
            gpu.pop()?;
            answer.add("on_device", gpu.cuMemcpyDtoD(memory, memory + 8, 4)?);
            answer.add("unified", gpu.cuMemcpy(memory, memory + 8, 4)?);
            answer.add("null", gpu.cuMemcpyAsync(memory, memory + 8, 4, null_mut())?);
            Ok(())
        }),
        Case::new("copy/without-a-context-in-a-stream", |gpu, answer| {
            let (memory, stream) = (counted(gpu, 16)?, gpu.stream_of(gpu.green_with(16)?)?);
            gpu.pop()?;
            answer.add("on_device", gpu.cuMemcpyDtoDAsync(memory, memory + 8, 4, stream)?);
            answer.add("unified", gpu.cuMemcpyAsync(memory, memory + 8, 4, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            Ok(())
        }),
        Case::new("copy/on-device-does-not-wait", |gpu, answer| {
            let (memory, out) = (counted(gpu, 16)?, gpu.probe_memory(1)?);
            answer.add("launch", gpu.launch_probe(null_mut(), 1, out, LONG)?);
            answer.add("on_device", gpu.cuMemcpyDtoD(memory, memory + 8, 4)?);
            answer.add("then", gpu.cuStreamQuery(null_mut())?);
            answer.add("unified", gpu.cuMemcpy(memory, memory + 8, 4)?);
            answer.add("then_too", gpu.cuStreamQuery(null_mut())?);
            answer.add("to_host", gpu.cuMemcpyDtoH(&mut [0; 4], memory)?);
            answer.add("at_last", gpu.cuStreamQuery(null_mut())?);
            Ok(())
        }),
    ]
}

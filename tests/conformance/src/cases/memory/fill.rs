//! Memsets of every width.

use green_ctx_sys::CUdeviceptr;

use crate::answer::Failure;
use crate::cases::Case;
use crate::gpu::Gpu;

/// Allocates zeroed device memory.
fn zeros(gpu: &Gpu, len: usize) -> Result<CUdeviceptr, Failure> {
    let address = gpu.cuMemAlloc(len)?.must()?;
    gpu.cuMemcpyHtoD(address, &vec![0; len])?.must()?;
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
        Case::new("fill/of-every-width", |gpu, answer| {
            let (memory, stream) = (zeros(gpu, 64)?, gpu.stream_of(gpu.green_with(16)?)?);
            answer.add("d16", gpu.cuMemsetD16(memory, 0x0201, 2)?);
            answer.add("d32", gpu.cuMemsetD32(memory + 4, 0x0605_0403, 1)?);
            answer.add("d16_async", gpu.cuMemsetD16Async(memory + 8, 0x0807, 1, stream)?);
            answer.add("d32_async", gpu.cuMemsetD32Async(memory + 12, 0x0102_0304, 1, stream)?);
            answer.add("bytes", bytes::<17>(gpu, memory)?);
            Ok(())
        }),
        Case::new("fill/misaligned", |gpu, answer| {
            let (memory, stream) = (zeros(gpu, 64)?, gpu.stream()?);
            answer.add("d16", gpu.cuMemsetD16(memory + 1, 1, 1)?);
            answer.add("d32", gpu.cuMemsetD32(memory + 2, 1, 1)?);
            answer.add("d16_async", gpu.cuMemsetD16Async(memory + 1, 1, 1, stream)?);
            answer.add("d32_async", gpu.cuMemsetD32Async(memory + 2, 1, 1, stream)?);
            answer.add("bytes", bytes::<8>(gpu, memory)?);
            Ok(())
        })
        .alone(),
        Case::new("fill/nothing", |gpu, answer| {
            let stream = gpu.stream()?;
            answer.add("d16", gpu.cuMemsetD16(0, 1, 0)?);
            answer.add("d32", gpu.cuMemsetD32(0, 1, 0)?);
            answer.add("d16_async", gpu.cuMemsetD16Async(0, 1, 0, stream)?);
            answer.add("misaligned", gpu.cuMemsetD32(1, 1, 0)?);
            Ok(())
        })
        .alone(),
        Case::new("fill/bad-places", |gpu, answer| {
            let (memory, stream) = (gpu.cuMemAlloc(64 << 20)?.must()?, gpu.stream()?);
            answer.add("null", gpu.cuMemsetD16(0, 1, 1)?);
            answer.add("garbage", gpu.cuMemsetD32(0x1234, 1, 1)?);
            answer.add("behind_the_end", gpu.cuMemsetD32(memory, 1, (16 << 20) + 1)?);
            answer.add("endless", gpu.cuMemsetD32(memory, 1, usize::MAX)?);
            answer.add("null_async", gpu.cuMemsetD16Async(0, 1, 1, stream)?);
            answer.add("garbage_async", gpu.cuMemsetD32Async(0x1234, 1, 1, stream)?);
            let mut host = [0_u8; 8];
            let address = host.as_mut_ptr().expose_provenance() as CUdeviceptr;
            answer.add("host", gpu.cuMemsetD16(address, 1, 1)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("fill/page-locked-memory", |gpu, answer| {
            let host: *mut u8 = gpu.cuMemAllocHost(16)?.must()?.cast();
            let address = host.expose_provenance() as CUdeviceptr;
            answer.add("d8", gpu.cuMemsetD8(address, 7, 16)?);
            answer.add("d32", gpu.cuMemsetD32(address, 0x0403_0201, 1)?);
            answer.add("bytes", bytes::<5>(gpu, address)?);
            gpu.cuMemFreeHost(host.cast())?.must()
        }),
    ]
}

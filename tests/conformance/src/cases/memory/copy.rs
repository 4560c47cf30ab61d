//! Copies of every direction and shape.

use std::ffi::c_void;
use std::ptr::null_mut;

use green_ctx_sys::{CUDA_MEMCPY2D_st, CUDA_MEMCPY3D_st, CUdeviceptr, CUmemorytype};

use crate::answer::{Answer, Failure, Outcome};
use crate::cases::Case;
use crate::gpu::{Gpu, LONG};

const HOST: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_HOST;
const DEVICE: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_DEVICE;
const UNIFIED: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_UNIFIED;

/// The address of memory of the host, as a unified address.
fn at(bytes: &mut [u8]) -> CUdeviceptr {
    bytes.as_mut_ptr().expose_provenance() as CUdeviceptr
}

/// Device memory that holds the numbers from 0 on.
fn counted(gpu: &Gpu, len: u8) -> Result<CUdeviceptr, Failure> {
    let address = gpu.cuMemAlloc(usize::from(len))?.must()?;
    gpu.cuMemcpyHtoD(address, &(0..len).collect::<Vec<_>>())?.must()?;
    Ok(address)
}

/// What is on the device when everything is done.
fn bytes<const N: usize>(gpu: &Gpu, address: CUdeviceptr) -> Result<Vec<u32>, Failure> {
    gpu.cuCtxSynchronize()?.must()?;
    let mut bytes = [0; N];
    gpu.cuMemcpyDtoH(&mut bytes, address)?.must()?;
    Ok(bytes.map(u32::from).to_vec())
}

/// Two rows of three bytes out of rows of eight, into rows of five.
fn two(from: CUdeviceptr, to: CUdeviceptr) -> CUDA_MEMCPY2D_st {
    CUDA_MEMCPY2D_st {
        srcXInBytes: 1,
        srcY: 1,
        srcMemoryType: DEVICE,
        srcHost: null_mut(),
        srcDevice: from,
        srcArray: null_mut(),
        srcPitch: 8,
        dstXInBytes: 2,
        dstY: 1,
        dstMemoryType: DEVICE,
        dstHost: null_mut(),
        dstDevice: to,
        dstArray: null_mut(),
        dstPitch: 5,
        WidthInBytes: 3,
        Height: 2,
    }
}

/// Two slices of two rows of two bytes, out of slices of four rows of four.
fn three(from: CUdeviceptr, to: CUdeviceptr) -> CUDA_MEMCPY3D_st {
    CUDA_MEMCPY3D_st {
        srcXInBytes: 1,
        srcY: 1,
        srcZ: 1,
        srcLOD: 0,
        srcMemoryType: DEVICE,
        srcHost: null_mut(),
        srcDevice: from,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: 4,
        srcHeight: 4,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: DEVICE,
        dstHost: null_mut(),
        dstDevice: to,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: 2,
        dstHeight: 2,
        WidthInBytes: 2,
        Height: 2,
        Depth: 2,
    }
}

type Change2 = fn(&mut CUDA_MEMCPY2D_st);
type Change3 = fn(&mut CUDA_MEMCPY3D_st);

/// Descriptions of rows, each of which differs in something from one that can be done.
const ROWS: [(&str, Change2); 13] = [
    ("as_it_is", |_| {}),
    ("no_rows", |copy| copy.Height = 0),
    ("no_width", |copy| copy.WidthInBytes = 0),
    ("pitch_too_small_from", |copy| copy.srcPitch = 3),
    ("pitch_too_small_to", |copy| copy.dstPitch = 4),
    ("no_pitch_from", |copy| copy.srcPitch = 0),
    ("no_pitch_to", |copy| copy.dstPitch = 0),
    ("no_pitch_one_row", |copy| (copy.srcPitch, copy.dstPitch, copy.Height) = (0, 0, 1)),
    ("no_type_from", |copy| copy.srcMemoryType = CUmemorytype(0)),
    ("no_type_to", |copy| copy.dstMemoryType = CUmemorytype(99)),
    ("null_from", |copy| copy.srcDevice = 0),
    ("null_host_to", |copy| copy.dstMemoryType = HOST),
    ("unified", |copy| (copy.srcMemoryType, copy.dstMemoryType) = (UNIFIED, UNIFIED)),
];

/// The same of slices.
const SLICES: [(&str, Change3); 12] = [
    ("as_it_is", |_| {}),
    ("no_slices", |copy| copy.Depth = 0),
    ("no_rows", |copy| copy.Height = 0),
    ("no_width", |copy| copy.WidthInBytes = 0),
    ("pitch_too_small", |copy| copy.srcPitch = 2),
    ("height_too_small", |copy| copy.srcHeight = 2),
    ("no_pitch", |copy| copy.dstPitch = 0),
    ("no_height", |copy| copy.dstHeight = 0),
    ("no_height_one_slice", |copy| (copy.srcHeight, copy.dstHeight, copy.Depth) = (0, 0, 1)),
    ("no_type", |copy| copy.srcMemoryType = CUmemorytype(0)),
    ("null", |copy| copy.dstDevice = 0),
    ("unified", |copy| (copy.srcMemoryType, copy.dstMemoryType) = (UNIFIED, UNIFIED)),
];

pub(in crate::cases) fn cases() -> Vec<Case> {
    let mut cases = vec![
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
            // So large that it is in no range with other allocations.
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
        Case::new("copy/peer-with-itself", |gpu, answer| {
            let (memory, stream, primary) = (counted(gpu, 32)?, gpu.stream()?, gpu.primary()?);
            let green = gpu.context_of(gpu.green_with(16)?)?;
            let copy = |to, from| gpu.cuMemcpyPeer(memory, to, memory + 8, from, 4);
            answer.add("same", copy(primary, primary)?);
            answer.add("to_green", copy(green, primary)?);
            answer.add("from_green", copy(primary, green)?);
            answer.add("to_null", copy(null_mut(), primary)?);
            answer.add("from_null", copy(primary, null_mut())?);
            answer.add("bytes", bytes::<4>(gpu, memory)?);
            let copy = |to, from, bytes| {
                gpu.cuMemcpyPeerAsync(memory, to, memory + 16, from, bytes, stream)
            };
            answer.add("async", copy(primary, primary, 4)?);
            answer.add("async_green", copy(green, green, 4)?);
            answer.add("async_null", copy(null_mut(), primary, 4)?);
            answer.add("async_nothing", copy(primary, primary, 0)?);
            answer.add("bytes_async", bytes::<4>(gpu, memory)?);
            Ok(())
        })
        .alone(),
        Case::new("copy/rows-from-the-host", |gpu, answer| {
            let (to, mut source) = (gpu.cuMemAlloc(32)?.must()?, [0_u8; 32]);
            gpu.cuMemcpyHtoD(to, &source)?.must()?;
            source.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
            let host = source.as_ptr().cast();
            let copy = CUDA_MEMCPY2D_st { srcMemoryType: HOST, srcHost: host, ..two(0, to) };
            answer.add("copy", gpu.cuMemcpy2D(&copy)?);
            answer.add("bytes", bytes::<20>(gpu, to)?);
            Ok(())
        }),
        Case::new("copy/rows-to-the-host-on-a-green-stream", |gpu, answer| {
            let (from, mut back) = (counted(gpu, 32)?, [0_u8; 16]);
            let stream = gpu.stream_of(gpu.green_with(16)?)?;
            let host = back.as_mut_ptr().cast();
            let copy = CUDA_MEMCPY2D_st { dstMemoryType: HOST, dstHost: host, ..two(from, 0) };
            answer.add("copy", gpu.cuMemcpy2DAsync(&copy, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("bytes", back.map(u32::from).to_vec());
            Ok(())
        }),
        Case::new("copy/slices-to-the-host", |gpu, answer| {
            let (from, mut back) = (counted(gpu, 64)?, [0_u8; 8]);
            let host = back.as_mut_ptr().cast();
            let copy = CUDA_MEMCPY3D_st { dstMemoryType: HOST, dstHost: host, ..three(from, 0) };
            answer.add("copy", gpu.cuMemcpy3D(&copy)?);
            answer.add("bytes", back.map(u32::from).to_vec());
            back.fill(0);
            let stream = gpu.stream()?;
            answer.add("async", gpu.cuMemcpy3DAsync(&copy, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("bytes_async", back.map(u32::from).to_vec());
            Ok(())
        }),
    ];
    cases.extend(ROWS.map(|(name, change)| {
        Case::new(format!("copy/rows/{name}"), move |gpu, answer| rows(gpu, answer, change)).alone()
    }));
    cases.extend(SLICES.map(|(name, change)| {
        Case::new(format!("copy/slices/{name}"), move |gpu, answer| slices(gpu, answer, change))
            .alone()
    }));
    cases
}

fn rows(gpu: &Gpu, answer: &mut Answer<'_>, change: Change2) -> Outcome {
    let (from, to) = (counted(gpu, 64)?, gpu.cuMemAlloc(64)?.must()?);
    gpu.cuMemcpyHtoD(to, &[0; 64])?.must()?;
    let mut copy = two(from, to);
    change(&mut copy);
    answer.add("copy", gpu.cuMemcpy2D(&copy)?);
    answer.add("async", gpu.cuMemcpy2DAsync(&copy, null_mut())?);
    answer.add("bytes", bytes::<16>(gpu, to)?);
    Ok(())
}

fn slices(gpu: &Gpu, answer: &mut Answer<'_>, change: Change3) -> Outcome {
    let (from, to) = (counted(gpu, 64)?, gpu.cuMemAlloc(64)?.must()?);
    gpu.cuMemcpyHtoD(to, &[0; 64])?.must()?;
    let mut copy = three(from, to);
    change(&mut copy);
    answer.add("copy", gpu.cuMemcpy3D(&copy)?);
    answer.add("async", gpu.cuMemcpy3DAsync(&copy, null_mut())?);
    answer.add("bytes", bytes::<16>(gpu, to)?);
    Ok(())
}

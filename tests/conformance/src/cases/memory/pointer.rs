//! The driver's information about addresses.

use std::ffi::c_void;
use std::ptr::null_mut;

use green_ctx_sys::{CUdeviceptr, CUpointer_attribute};

use crate::answer::{Answer, Failure, Outcome};
use crate::cases::{Case, Needs};
use crate::gpu::Gpu;

/// Attributes whose values, or the meaning of their values, are the same in every run for the same kind of memory.
const ATTRIBUTES: [(&str, CUpointer_attribute); 13] = [
    ("context", CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT),
    ("memory_type", CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
    ("device_pointer", CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
    ("host_pointer", CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER),
    ("sync_memops", CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS),
    ("buffer_id", CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID),
    ("is_managed", CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED),
    ("device_ordinal", CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
    ("ipc", CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE),
    ("range_start", CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
    ("range_size", CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE),
    ("mapped", CUpointer_attribute::CU_POINTER_ATTRIBUTE_MAPPED),
    ("pool", CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
];

/// Returns the meaning of an attribute's value that differs from run to run.
fn meaning(gpu: &Gpu, address: CUdeviceptr, name: &str, value: u64) -> Result<String, Failure> {
    let primary = gpu.primary()?.addr() as u64;
    let pool = gpu.cuDeviceGetDefaultMemPool(gpu.device)?.must()?.addr() as u64;
    let meanings = [
        (0, "null"),
        (primary, "primary"),
        (pool, "default_pool"),
        (address, "address"),
        (address - 8, "begin"),
    ];
    let known = meanings.into_iter().find(|(known, _)| *known == value);
    let small = name == "buffer_id" || value > 1 << 32;
    Ok(known.map_or_else(
        || if small { "other".to_owned() } else { value.to_string() },
        |(_, meaning)| meaning.to_owned(),
    ))
}

/// Adds every attribute of an address eight bytes after the start of its memory.
fn attributes(gpu: &Gpu, answer: &mut Answer<'_>, address: CUdeviceptr) -> Outcome {
    for (name, attribute) in ATTRIBUTES {
        let value = gpu.cuPointerGetAttribute(attribute, address)?;
        answer.add(name, value);
        if value.is_ok() {
            answer.add(format!("{name}_is"), meaning(gpu, address, name, value.out)?);
        }
    }
    Ok(())
}

fn address(pointer: *mut c_void) -> CUdeviceptr {
    pointer.expose_provenance() as CUdeviceptr
}

pub(in crate::cases) fn cases() -> Vec<Case> {
    vec![
        Case::new("pointer/of-device-memory", |gpu, answer| {
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            attributes(gpu, answer, memory + 8)?;
            gpu.cuMemFree(memory)?.must()
        }),
        Case::new("pointer/of-green-device-memory", |gpu, answer| {
            gpu.push(gpu.context_of(gpu.green_with(16)?)?)?;
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            attributes(gpu, answer, memory + 8)?;
            gpu.pop()?;
            gpu.cuMemFree(memory)?.must()
        }),
        Case::new("pointer/of-pinned-memory", |gpu, answer| {
            let host = gpu.cuMemAllocHost(4096)?.must()?;
            attributes(gpu, answer, address(host) + 8)?;
            gpu.cuMemFreeHost(host)?.must()
        }),
        Case::new("pointer/of-registered-memory", |gpu, answer| {
            let mut own = vec![0_u64; 2048];
            // A whole page, so that it overlaps no other registration.
            let page = own.as_mut_ptr().expose_provenance().next_multiple_of(4096);
            let page: *mut c_void = std::ptr::with_exposed_provenance_mut(page);
            gpu.cuMemHostRegister(page, 4096, 0)?.must()?;
            attributes(gpu, answer, address(page) + 8)?;
            gpu.cuMemHostUnregister(page)?.must()
        }),
        Case::new("pointer/of-pooled-memory", |gpu, answer| {
            let memory = gpu.cuMemAllocAsync(4096, null_mut())?.must()?;
            gpu.cuCtxSynchronize()?.must()?;
            attributes(gpu, answer, memory + 8)?;
            gpu.cuMemFreeAsync(memory, null_mut())?.must()
        }),
        Case::new("pointer/of-pageable-memory", |gpu, answer| {
            let mut own = [0_u8; 64];
            attributes(gpu, answer, address(own.as_mut_ptr().cast()) + 8)
        }),
        Case::new("pointer/of-nothing", |gpu, answer| attributes(gpu, answer, 0x1234)).alone(),
        Case::new("pointer/of-freed-memory", |gpu, answer| {
            let memory = gpu.cuMemAlloc(64 << 20)?.must()?;
            gpu.cuMemFree(memory)?.must()?;
            attributes(gpu, answer, memory + 8)
        })
        .alone(),
        Case::new("pointer/unknown-attributes", |gpu, answer| {
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            for number in [0, 99, u32::MAX] {
                let value = gpu.cuPointerGetAttribute(CUpointer_attribute(number), memory)?;
                answer.add(format!("{number}"), value);
            }
            gpu.cuMemFree(memory)?.must()
        })
        .alone(),
        Case::new("pointer/without-a-context", |gpu, answer| {
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
            answer.add("attribute", gpu.cuPointerGetAttribute(attribute, 0x1234)?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("pointer/several-attributes", |gpu, answer| {
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            let mut own = [0_u8; 64];
            let own = address(own.as_mut_ptr().cast());
            for (name, address) in [("device", memory), ("garbage", 0x1234), ("pageable", own)] {
                let mut asked = [
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                ];
                let (mut kind, mut managed, mut size, mut ordinal) = (9_u32, 9_u32, 9_u64, 9_i32);
                let mut places = [
                    (&raw mut kind).cast(),
                    (&raw mut managed).cast(),
                    (&raw mut size).cast(),
                    (&raw mut ordinal).cast(),
                ];
                let got = gpu.cuPointerGetAttributes(&mut asked, &mut places, address)?;
                answer.add(name, got);
                answer.add(format!("{name}_kind"), kind);
                answer.add(format!("{name}_managed"), managed & 0xff);
                answer.add(format!("{name}_size"), size);
                answer.add(format!("{name}_ordinal"), ordinal);
            }
            answer.add("none", gpu.cuPointerGetAttributes(&mut [], &mut [], memory)?);
            gpu.cuMemFree(memory)?.must()
        })
        .alone(),
    ]
}

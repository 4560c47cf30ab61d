//! Memory pools.

use std::ptr::null_mut;

use green_ctx_sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType,
    CUmemLocation, CUmemLocation_st__bindgen_ty_1, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps,
};

use crate::cases::{Case, Needs};

fn of_device(id: i32) -> CUmemLocation {
    let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemLocation { type_, __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id } }
}

fn props() -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: of_device(0),
        win32SecurityAttributes: null_mut(),
        maxSize: 0,
        usage: 0,
        gpuDirectRDMACapable: 0,
        reserved: [0; 53],
    }
}

type Change = fn(&mut CUmemPoolProps);

/// Pool properties, each of which differs from a plain pool's in one value.
const PROPS: [(&str, Change); 11] = [
    ("as_they_are", |_| {}),
    ("no_type", |props| props.allocType = CUmemAllocationType(0)),
    ("unknown_type", |props| props.allocType = CUmemAllocationType(9)),
    ("exported", |props| props.handleTypes = CUmemAllocationHandleType(1)),
    ("of_windows", |props| props.handleTypes = CUmemAllocationHandleType(2)),
    ("unknown_handle", |props| props.handleTypes = CUmemAllocationHandleType(64)),
    ("no_place", |props| props.location.type_ = CUmemLocationType(0)),
    ("unknown_place", |props| props.location.type_ = CUmemLocationType(99)),
    ("no_device", |props| props.location = of_device(99)),
    ("negative_device", |props| props.location = of_device(-1)),
    ("limited", |props| props.maxSize = 64 << 20),
];

const NUMBERED: [CUmemPool_attribute; 4] = [
    CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
    CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
    CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
];
const USED: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
const USED_HIGH: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
const RESERVED: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;

pub(in crate::cases) fn cases() -> Vec<Case> {
    vec![
        Case::new("pool/of-the-device", |gpu, answer| {
            let default = gpu.cuDeviceGetDefaultMemPool(gpu.device)?;
            answer.add("default", default);
            let current = gpu.cuDeviceGetMemPool(gpu.device)?;
            answer.add("current", current);
            answer.add("same", default.out == current.out);
            answer.add("null", default.out.is_null());
            answer.add("destroy_default", gpu.cuMemPoolDestroy(default.out)?);
            answer.add("default_of_99", gpu.cuDeviceGetDefaultMemPool(99)?);
            answer.add("current_of_99", gpu.cuDeviceGetMemPool(99)?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("pool/null", |gpu, answer| {
            answer.add("destroy", gpu.cuMemPoolDestroy(null_mut())?);
            answer.add("trim", gpu.cuMemPoolTrimTo(null_mut(), 0)?);
            answer.add("get", gpu.cuMemPoolGetAttribute(null_mut(), USED)?);
            answer.add("alloc", gpu.cuMemAllocFromPoolAsync(4096, null_mut(), null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("pool/create", |gpu, answer| {
            for (name, change) in PROPS {
                let mut props = props();
                change(&mut props);
                let pool = gpu.cuMemPoolCreate(&props)?;
                answer.add(name, pool);
                if pool.is_ok() {
                    gpu.cuMemPoolDestroy(pool.out)?.must()?;
                }
            }
            Ok(())
        })
        .alone(),
        Case::new("pool/attributes-at-first", |gpu, answer| {
            let pool = gpu.cuMemPoolCreate(&props())?.must()?;
            for attribute in 0..10 {
                let value = gpu.cuMemPoolGetAttribute(pool, CUmemPool_attribute(attribute))?;
                answer.add(format!("get_{attribute}"), value);
                answer.add(format!("value_{attribute}"), value.out);
            }
            answer.add("unknown", gpu.cuMemPoolGetAttribute(pool, CUmemPool_attribute(999))?);
            gpu.cuMemPoolDestroy(pool)?.must()
        }),
        Case::new("pool/set-attributes", |gpu, answer| {
            let pool = gpu.cuMemPoolCreate(&props())?.must()?;
            for attribute in NUMBERED {
                let number = attribute.0;
                let set = gpu.cuMemPoolSetAttribute(pool, attribute, &mut 0)?;
                answer.add(format!("set_{number}"), set);
                answer
                    .add(format!("get_{number}"), gpu.cuMemPoolGetAttribute(pool, attribute)?.out);
                gpu.cuMemPoolSetAttribute(pool, attribute, &mut 1)?.must()?;
                answer
                    .add(format!("back_{number}"), gpu.cuMemPoolGetAttribute(pool, attribute)?.out);
            }
            for attribute in [USED, RESERVED, USED_HIGH, CUmemPool_attribute(0)] {
                let number = attribute.0;
                for value in 0..2 {
                    let set = gpu.cuMemPoolSetAttribute(pool, attribute, &mut { value })?;
                    answer.add(format!("set_{number}_to_{value}"), set);
                }
            }
            gpu.cuMemPoolDestroy(pool)?.must()
        }),
        Case::new("pool/counts", |gpu, answer| {
            let (pool, stream) = (gpu.cuMemPoolCreate(&props())?.must()?, gpu.stream()?);
            let used = || {
                Ok::<_, crate::answer::Failure>((
                    gpu.cuMemPoolGetAttribute(pool, USED)?.must()?,
                    gpu.cuMemPoolGetAttribute(pool, USED_HIGH)?.must()?,
                ))
            };
            let first = gpu.cuMemAllocFromPoolAsync(4 << 20, pool, stream)?;
            let second = gpu.cuMemAllocFromPoolAsync(2 << 20, pool, stream)?;
            answer.add("first", first);
            answer.add("second", second);
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("used", used()?.0);
            let reserved = gpu.cuMemPoolGetAttribute(pool, RESERVED)?.must()?;
            answer.add("reserved_is_enough", reserved >= 6 << 20);
            gpu.cuMemFreeAsync(first.out, stream)?.must()?;
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("used_less", used()?.0);
            answer.add("high", used()?.1);
            answer.add("reset", gpu.cuMemPoolSetAttribute(pool, USED_HIGH, &mut 0)?);
            answer.add("high_again", used()?.1);
            answer.add("free", gpu.cuMemFreeAsync(second.out, stream)?);
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("used_none", used()?.0);
            answer.add("trim", gpu.cuMemPoolTrimTo(pool, 0)?);
            answer.add("trimmed", gpu.cuMemPoolGetAttribute(pool, RESERVED)?.out);
            gpu.cuMemPoolDestroy(pool)?.must()
        }),
        Case::new("pool/alloc-and-use", |gpu, answer| {
            let pool = gpu.cuMemPoolCreate(&props())?.must()?;
            let stream = gpu.stream_of(gpu.green_with(16)?)?;
            let memory = gpu.cuMemAllocFromPoolAsync(4096, pool, stream)?;
            answer.add("alloc", memory);
            answer.add("fill", gpu.cuMemsetD8Async(memory.out, 7, 4096, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            let mut bytes = [0; 4];
            answer.add("copy", gpu.cuMemcpyDtoH(&mut bytes, memory.out + 4092)?);
            answer.add("filled", bytes == [7; 4]);
            let nothing = gpu.cuMemAllocFromPoolAsync(0, pool, stream)?;
            answer.add("nothing", nothing);
            answer.add("nothing_is_null", nothing.out == 0);
            answer.add("free_without_stream", gpu.cuMemFree(memory.out)?);
            answer.add("free_again", gpu.cuMemFree(memory.out)?);
            gpu.cuMemPoolDestroy(pool)?.must()
        }),
        Case::new("pool/limit", |gpu, answer| {
            let limited = CUmemPoolProps { maxSize: 64 << 20, ..props() };
            let (pool, stream) = (gpu.cuMemPoolCreate(&limited)?.must()?, gpu.stream()?);
            let memory = gpu.cuMemAllocFromPoolAsync(16 << 20, pool, stream)?;
            answer.add("below", memory);
            let more = gpu.cuMemAllocFromPoolAsync(128 << 20, pool, stream)?;
            answer.add("above", more);
            answer.add("above_is_null", more.out == 0);
            answer.add("free", gpu.cuMemFreeAsync(memory.out, stream)?);
            gpu.cuStreamSynchronize(stream)?.must()?;
            gpu.cuMemPoolDestroy(pool)?.must()
        }),
        Case::new("pool/destroyed-with-memory", |gpu, answer| {
            let (pool, stream) = (gpu.cuMemPoolCreate(&props())?.must()?, gpu.stream()?);
            let memory = gpu.cuMemAllocFromPoolAsync(4096, pool, stream)?.must()?;
            answer.add("destroy", gpu.cuMemPoolDestroy(pool)?);
            answer.add("fill", gpu.cuMemsetD8Async(memory, 7, 4096, stream)?);
            answer.add("free", gpu.cuMemFreeAsync(memory, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            Ok(())
        })
        .alone(),
        Case::new("pool/access", |gpu, answer| {
            let pool = gpu.cuMemPoolCreate(&props())?.must()?;
            for (device, flags) in [(0, 3), (0, 1), (0, 0), (0, 2), (99, 3), (-1, 3)] {
                let location = of_device(device);
                let desc = CUmemAccessDesc { location, flags: CUmemAccess_flags(flags) };
                let set = gpu.cuMemPoolSetAccess(pool, &[desc])?;
                answer.add(format!("set_{device}_{flags}"), set);
            }
            answer.add("set_nothing", gpu.cuMemPoolSetAccess(pool, &[])?);
            gpu.cuMemPoolDestroy(pool)?.must()
        })
        .alone(),
    ]
}

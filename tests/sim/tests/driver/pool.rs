//! Memory pools.

use std::ptr::null_mut;

use green_ctx_sim::Live;
use green_ctx_sys::*;

use crate::machine::*;

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const READ_WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

fn location(kind: CUmemLocationType, id: i32) -> CUmemLocation {
    CUmemLocation { type_: kind, __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id } }
}

fn of_device(id: i32) -> CUmemLocation {
    location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id)
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

fn create(machine: &Machine, props: &CUmemPoolProps) -> (CUresult, CUmemoryPool) {
    ask!(machine, null_mut(), cuMemPoolCreate(; props))
}

fn number(machine: &Machine, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = u64::MAX;
    ok(call!(machine, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())));
    value
}

#[test]
fn a_device_has_a_pool_and_takes_another() {
    let (machine, _) = Machine::with_primary();
    let default = ask!(machine, null_mut(), cuDeviceGetDefaultMemPool(; 0)).1;
    let current = || ask!(machine, null_mut(), cuDeviceGetMemPool(; 0)).1;
    assert_eq!(current(), default);
    assert_eq!(call!(machine, cuMemPoolDestroy(default)), INVALID_VALUE);
    let (status, pool) = create(&machine, &props());
    ok(status);
    assert_eq!(machine.sim.live().memory_pools, 1);
    ok(call!(machine, cuDeviceSetMemPool(0, pool)));
    assert_eq!(current(), pool);
    let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; 100, null_mut()));
    ok(status);
    let mut of = null_mut::<CUmemPoolHandle_st>();
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    ok(call!(machine, cuPointerGetAttribute((&raw mut of).cast(), attribute, memory + 99)));
    assert_eq!(of, pool);
    // A destroyed pool is the device's no more, and its memory stays.
    ok(call!(machine, cuMemPoolDestroy(pool)));
    assert_eq!((current(), machine.sim.live().memory_pools), (default, 0));
    assert_eq!(call!(machine, cuMemPoolDestroy(pool)), INVALID_VALUE);
    ok(call!(machine, cuMemsetD8(memory, 1, 100)));
    ok(call!(machine, cuMemFreeAsync(memory, null_mut())));
    assert_eq!(call!(machine, cuMemPoolTrimTo(pool, 0)), INVALID_VALUE);
    ok(call!(machine, cuMemPoolTrimTo(default, 0)));
    let live = machine.sim.live();
    assert_eq!((live.allocations, live.memory_pools), (0, 0));
    let devices = [call!(machine, cuDeviceSetMemPool(1, default)), {
        ask!(machine, null_mut(), cuDeviceGetMemPool(; 1)).0
    }];
    assert_eq!(devices, [INVALID_VALUE; 2]);
}

#[test]
fn a_pool_is_made_as_it_should_be() {
    let machine = Machine::new();
    type Change = fn(&mut CUmemPoolProps);
    let cases: [(&str, Change, CUresult); 8] = [
        ("nothing", |_| {}, OK),
        (
            "a handle that is exported",
            |props| {
                props.handleTypes =
                    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            },
            OK,
        ),
        ("no type", |props| props.allocType.0 = 0, INVALID_VALUE),
        ("managed", |props| props.allocType.0 = 2, NOT_SUPPORTED),
        (
            "windows",
            |props| props.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32,
            INVALID_VALUE,
        ),
        ("no device", |props| props.location = of_device(1), INVALID_VALUE),
        (
            "no place",
            |props| {
                props.location = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, 0);
            },
            INVALID_VALUE,
        ),
        (
            "the host",
            |props| props.location = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
            NOT_SUPPORTED,
        ),
    ];
    for (name, change, expected) in cases {
        let mut props = props();
        change(&mut props);
        let (status, pool) = create(&machine, &props);
        assert_eq!(status, expected, "{name}");
        if status == OK {
            ok(call!(machine, cuMemPoolDestroy(pool)));
        }
    }
    assert_eq!(machine.sim.live(), Live::default());
}

#[test]
fn a_pool_counts_what_it_gives() {
    use CUmemPool_attribute as A;
    let (machine, _) = Machine::with_primary();
    let (_, pool) = create(&machine, &CUmemPoolProps { maxSize: 1000, ..props() });
    let stream = machine.stream(NON_BLOCKING);
    let alloc = |len| ask!(machine, 0, cuMemAllocFromPoolAsync(; len, pool, stream));
    let (first, second) = (alloc(600), alloc(300));
    assert_eq!([first.0, second.0], [OK; 2]);
    assert_eq!(alloc(101).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(alloc(0), (OK, 0));
    ok(call!(machine, cuMemFreeAsync(first.1, stream)));
    let value = |attribute| number(&machine, pool, attribute);
    assert_eq!(value(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 300);
    assert_eq!(value(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 900);
    assert!(value(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 300);
    let set = |attribute, mut value: u64| {
        call!(machine, cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()))
    };
    assert_eq!(set(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1), INVALID_VALUE);
    ok(set(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0));
    assert_eq!(value(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 300);
    assert_eq!(set(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0), INVALID_VALUE);
    assert_eq!(value(A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    ok(set(A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1 << 40));
    assert_eq!(value(A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 1 << 40);
    // Numbers of four bytes leave the rest alone.
    for attribute in [
        A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        assert_eq!(value(attribute), u64::MAX << 32 | 1);
        ok(set(attribute, 0));
        assert_eq!(value(attribute), u64::MAX << 32);
    }
    let none = call!(machine, cuMemPoolGetAttribute(pool, A(0), [0_u64].as_mut_ptr().cast()));
    assert_eq!(none, INVALID_VALUE);
    ok(call!(machine, cuMemFree(second.1)));
    ok(call!(machine, cuMemPoolDestroy(pool)));
}

#[test]
fn a_pool_is_opened_to_devices() {
    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
    ok(machine.push(contexts[1]));
    let (_, pool) = create(&machine, &props());
    let (status, memory) = ask!(machine, 0, cuMemAllocFromPoolAsync(; 64, pool, null_mut()));
    ok(status);
    let fill = || call!(machine, cuMemsetD8(memory, 3, 4));
    let set = |device, flags| {
        let desc = CUmemAccessDesc { location: of_device(device), flags };
        call!(machine, cuMemPoolSetAccess(pool, &desc, 1))
    };
    let get = |device| {
        let mut place = of_device(device);
        ask!(machine, CUmemAccess_flags(9), cuMemPoolGetAccess(; pool, &mut place))
    };
    let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    assert_eq!([get(0), get(1)], [(OK, READ_WRITE), (OK, none)]);
    // Access to the other memory of a device is no access to its pools.
    ok(call!(machine, cuCtxEnablePeerAccess(contexts[0], 0)));
    assert_eq!(fill(), INVALID_VALUE);
    ok(set(1, READ_WRITE));
    assert_eq!(get(1), (OK, READ_WRITE));
    ok(fill());
    ok(set(1, none));
    assert_eq!(fill(), INVALID_VALUE);
    let invalid = CUresult::CUDA_ERROR_INVALID_DEVICE;
    assert_eq!([set(0, none), set(2, READ_WRITE)], [invalid; 2]);
    assert_eq!(set(1, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ), NOT_SUPPORTED);
    assert_eq!([set(1, CUmemAccess_flags(2)), get(2).0], [INVALID_VALUE; 2]);
    ok(set(0, READ_WRITE));
    assert_eq!(call!(machine, cuDeviceSetMemPool(1, pool)), INVALID_VALUE);
}

#[test]
fn a_reset_takes_what_pools_gave() {
    use CUmemPool_attribute as A;
    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
    ok(machine.push(contexts[0]));
    let (_, pool) = create(&machine, &props());
    let (_, destroyed) = create(&machine, &props());
    let alloc = |pool| ask!(machine, 0, cuMemAllocFromPoolAsync(; 64, pool, null_mut()));
    let memory = [pool, pool, destroyed].map(|pool| alloc(pool).1);
    ok(call!(machine, cuMemPoolDestroy(destroyed)));
    // Freed while another device is current, and not gone yet when its own is reset.
    ok(machine.push(contexts[1]));
    ok(call!(machine, cuMemFree(memory[0])));
    ok(machine.pop());
    ok(call!(machine, cuDevicePrimaryCtxReset(0)));
    assert_eq!(machine.sim.live().allocations, 0);
    assert_eq!(number(&machine, pool, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    ok(machine.push(ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; 0)).1));
    let (status, again) = alloc(pool);
    ok(status);
    ok(call!(machine, cuCtxSynchronize()));
    ok(call!(machine, cuMemsetD8(again, 1, 64)));
    assert_eq!(number(&machine, pool, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 64);
}

/// A pool is a device's, whichever of its contexts the stream is of.
#[test]
fn contexts_of_a_program_s_own_share_the_device_s_pool() {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> CUresult;
    let (machine, _) = Machine::with_primary();
    let (_, elsewhere) = ask!(machine, 0, cuMemAllocAsync(; 64, null_mut()));
    let (_, plain) = ask!(machine, 0, cuMemAlloc(; 64));
    ok(call!(machine, cuCtxSynchronize()));
    // SAFETY: this is the function's signature at this version.
    let create: Create = unsafe { machine.function(c"cuCtxCreate", 3020) };
    let mut context = null_mut();
    // SAFETY: the place takes the answer.
    ok(unsafe { create(&mut context, 0, 0) });
    let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; 64, null_mut()));
    ok(status);
    let fill = |at| call!(machine, cuMemsetD8(at, 1, 64));
    assert_eq!([fill(memory), fill(elsewhere), fill(plain)], [OK, OK, INVALID_VALUE]);
}

/// What a stream is still to free is for whoever comes after it, and for those that the pool makes wait.
#[test]
fn what_is_being_freed_is_not_everybody_s() {
    use CUmemPool_attribute as A;
    let (machine, _) = Machine::with_primary();
    let (_, pool) = create(&machine, &CUmemPoolProps { maxSize: 1000, ..props() });
    let [first, second] = [(); 2].map(|()| machine.stream(NON_BLOCKING));
    let set = |attribute, mut value: i32| {
        ok(call!(machine, cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())));
    };
    let alloc = |len, stream| ask!(machine, 0, cuMemAllocFromPoolAsync(; len, pool, stream));
    let free = |memory: (CUresult, CUdeviceptr), stream| {
        ok(memory.0);
        ok(call!(machine, cuMemFreeAsync(memory.1, stream)));
    };
    let memory = alloc(800, first);
    let kernel = machine.kernel("green_ctx_probe");
    ok(machine.launch(kernel, 1, first, &[memory.1, 50_000_000]));
    free(memory, first);
    set(A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    assert_eq!(alloc(201, second).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    free(alloc(200, second), second);
    // The same stream follows, and gives back what it has taken.
    free(alloc(1000, first), first);
    // Another one does so too when it waits for an event.
    let event = machine.event();
    ok(call!(machine, cuEventRecord(event, first)));
    ok(call!(machine, cuStreamWaitEvent(second, event, 0)));
    set(A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    assert_eq!(alloc(1000, second).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    set(A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1);
    free(alloc(1000, second), second);
    // A third one is made to wait.
    let third = machine.stream(NON_BLOCKING);
    assert_eq!(call!(machine, cuStreamQuery(third)), OK);
    set(A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1);
    free(alloc(1000, third), third);
    assert_eq!(call!(machine, cuStreamQuery(third)), CUresult::CUDA_ERROR_NOT_READY);
    set(A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    // When all of it is over it is everybody's.
    ok(call!(machine, cuStreamSynchronize(third)));
    let fourth = machine.stream(NON_BLOCKING);
    free(alloc(1000, fourth), fourth);
    ok(call!(machine, cuMemPoolDestroy(pool)));
}

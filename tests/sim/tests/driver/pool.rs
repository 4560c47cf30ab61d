//! Memory pools.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{null_mut, without_provenance_mut};

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

/// Memory is a device's, from a pool or not, whichever of its contexts the stream is of.
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
    assert_eq!([memory, elsewhere, plain].map(fill), [OK; 3]);
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

/// A pool of the form of 13.0, which names a location and a kind of memory.
#[test]
fn pools_are_found_by_location() {
    let (machine, _) = Machine::with_primary();
    let pinned = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    let managed = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;
    let host = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
    type Out = *mut CUmemoryPool;
    type At = *mut CUmemLocation;
    type Kind = CUmemAllocationType;
    let get = |name, mut at: CUmemLocation, kind| {
        let mut pool = null_mut();
        let form: unsafe extern "C" fn(Out, At, Kind) -> CUresult =
            // SAFETY: both functions that are asked for here have this signature.
            unsafe { machine.function(name, 13_000) };
        // SAFETY: the pointers are to variables of the types that the function reads and fills.
        (unsafe { form(&mut pool, &mut at, kind) }, pool)
    };
    let set = |mut at: CUmemLocation, kind, pool| {
        old!(machine, c"cuMemSetMemPool", 13_000 (
            &mut at => At, kind => Kind, pool => CUmemoryPool))
    };
    let default = ask!(machine, null_mut(), cuDeviceGetDefaultMemPool(; 0)).1;
    let pool = create(&machine, &props()).1;
    for name in [c"cuMemGetDefaultMemPool", c"cuMemGetMemPool"] {
        assert_eq!(get(name, of_device(0), pinned), (OK, default));
        for (at, kind, refused) in [
            (of_device(1), pinned, INVALID_VALUE),
            (of_device(0), CUmemAllocationType(0), INVALID_VALUE),
            (of_device(0), managed, NOT_SUPPORTED),
            (location(host, 0), pinned, NOT_SUPPORTED),
        ] {
            assert_eq!(get(name, at, kind), (refused, null_mut()));
        }
    }
    assert_eq!(set(of_device(0), managed, pool), NOT_SUPPORTED);
    assert_eq!(set(of_device(0), pinned, null_mut()), INVALID_VALUE);
    ok(set(of_device(0), pinned, pool));
    assert_eq!(get(c"cuMemGetMemPool", of_device(0), pinned), (OK, pool));
    assert_eq!(get(c"cuMemGetDefaultMemPool", of_device(0), pinned), (OK, default));
    assert_eq!(ask!(machine, null_mut(), cuDeviceGetMemPool(; 0)), (OK, pool));
}

const FILE: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

fn export(machine: &Machine, pool: CUmemoryPool, kind: u32, flags: u64) -> (CUresult, c_int) {
    let mut file = -1;
    let out = (&raw mut file).cast();
    let status = old!(machine, c"cuMemPoolExportToShareableHandle", 11_020 (
        out => *mut c_void, pool => CUmemoryPool, kind => u32, flags => u64));
    (status, file)
}

fn import(machine: &Machine, file: c_int, kind: u32, flags: u64) -> (CUresult, CUmemoryPool) {
    let (mut pool, file) = (null_mut(), without_provenance_mut(file as usize));
    let status = old!(machine, c"cuMemPoolImportFromShareableHandle", 11_020 (
        &mut pool => *mut CUmemoryPool, file => *mut c_void, kind => u32, flags => u64));
    (status, pool)
}

fn export_pointer(machine: &Machine, memory: CUdeviceptr) -> (CUresult, [u8; 64]) {
    let mut data = [0; 64];
    let out = data.as_mut_ptr().cast();
    let status = old!(machine, c"cuMemPoolExportPointer", 11_020 (
        out => *mut c_void, memory => CUdeviceptr));
    (status, data)
}

fn import_pointer(
    machine: &Machine,
    pool: CUmemoryPool,
    data: &mut [u8; 64],
) -> (CUresult, CUdeviceptr) {
    let (mut memory, data) = (0, data.as_mut_ptr().cast());
    let status = old!(machine, c"cuMemPoolImportPointer", 11_020 (
        &mut memory => *mut CUdeviceptr, pool => CUmemoryPool, data => *mut c_void));
    (status, memory)
}

fn close(file: c_int) {
    // SAFETY: the test got the descriptor, and uses it no more.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(file) });
}

#[test]
fn a_pool_is_exported_and_imported_in_one_process() {
    let (machine, _) = Machine::with_primary();
    let plain = create(&machine, &props()).1;
    let handles = CUmemAllocationHandleType(FILE);
    let pool = create(&machine, &CUmemPoolProps { handleTypes: handles, ..props() }).1;
    for (pool, kind, flags) in
        [(plain, FILE, 0), (pool, 0, 0), (pool, FILE, 1), (null_mut(), FILE, 0)]
    {
        assert_eq!(export(&machine, pool, kind, flags), (INVALID_VALUE, -1));
    }
    let (status, file) = export(&machine, pool, FILE, 0);
    ok(status);
    assert_eq!(import(&machine, file, FILE, 1).0, INVALID_VALUE);
    assert_eq!(import(&machine, 1 << 20, FILE, 0).0, INVALID_VALUE);
    // A descriptor of something else, and one of another driver's pool.
    let other_file = std::fs::File::open("/dev/null").expect("it is there");
    assert_eq!(import(&machine, other_file.as_raw_fd(), FILE, 0).0, INVALID_VALUE);
    let other = Machine::new();
    assert_eq!(import(&other, file, FILE, 0).0, NOT_SUPPORTED);
    let (status, imported) = import(&machine, file, FILE, 0);
    ok(status);
    ok(import(&machine, file, FILE, 0).0);
    close(file);
    assert_eq!(machine.sim.live().memory_pools, 4);

    // It allocates nothing by itself.
    assert_eq!(
        ask!(machine, 0, cuMemAllocFromPoolAsync(; 64, imported, null_mut())).0,
        INVALID_VALUE
    );
    assert_eq!(call!(machine, cuDeviceSetMemPool(0, imported)), INVALID_VALUE);
    let memory = ask!(machine, 0, cuMemAllocFromPoolAsync(; 64, pool, null_mut())).1;
    let unshared = ask!(machine, 0, cuMemAllocFromPoolAsync(; 64, plain, null_mut())).1;
    assert_eq!(export_pointer(&machine, unshared).0, INVALID_VALUE);
    assert_eq!(export_pointer(&machine, 64).0, INVALID_VALUE);
    let (status, mut data) = export_pointer(&machine, memory);
    ok(status);
    for refused in [pool, plain, null_mut()] {
        assert_eq!(import_pointer(&machine, refused, &mut data).0, INVALID_VALUE);
    }
    assert_eq!(import_pointer(&machine, imported, &mut [0; 64]).0, INVALID_VALUE);
    assert_eq!(import_pointer(&machine, imported, &mut data), (OK, memory));
    assert_eq!(import_pointer(&machine, imported, &mut data), (OK, memory));
    ok(call!(machine, cuMemsetD8(memory, 1, 64)));
    // Each import is freed, and then the allocation.
    ok(call!(machine, cuMemFree(memory)));
    ok(call!(machine, cuMemFreeAsync(memory, null_mut())));
    assert_eq!(machine.sim.live().allocations, 2);
    ok(call!(machine, cuMemFreeAsync(memory, null_mut())));
    assert_eq!(machine.sim.live().allocations, 1);
    assert_eq!(call!(machine, cuMemFree(memory)), INVALID_VALUE);
    assert_eq!(import_pointer(&machine, imported, &mut data).0, INVALID_VALUE);
    ok(call!(machine, cuMemPoolDestroy(imported)));
    ok(call!(machine, cuMemPoolDestroy(pool)));
}

#[test]
fn memory_has_a_granularity() {
    let machine = Machine::new();
    let get = |props: Option<[u32; 8]>, option: u32| {
        let mut out = 0;
        let props = props.as_ref().map_or(std::ptr::null(), |props| props.as_ptr().cast());
        let status = old!(machine, c"cuMemGetAllocationGranularity", 10_020 (
            &mut out => *mut usize, props => *const c_void, option => u32));
        (status, out)
    };
    // The kind of memory, of which any will do, the types of handles, and the location's type and
    // number.
    let pinned = [1, 0, 1, 0, 0, 0, 0, 0];
    assert_eq!([0, 1].map(|option| get(Some(pinned), option)), [(OK, 2 << 20); 2]);
    assert_eq!(get(Some([9, 0, 1, 0, 0, 0, 0, 0]), 0), (OK, 2 << 20));
    let refused = [
        (Some(pinned), 2),
        (None, 0),
        (Some([1, 0, 1, 1, 0, 0, 0, 0]), 0),
        (Some([1, 0, 0, 0, 0, 0, 0, 0]), 0),
    ];
    for (props, option) in refused {
        assert_eq!(get(props, option), (INVALID_VALUE, 0), "{props:?} {option}");
    }
    assert_eq!(get(Some([1, 0, 2, 0, 0, 0, 0, 0]), 0).0, NOT_SUPPORTED);
}

//! Memory of devices and of the host, copies and fills of every shape, and what is known of addresses.

mod graph;

use std::ffi::c_void;
use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;
const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;
/// Longer than a test's calls take.
const LONG: u64 = 50_000_000;
const PTX: &str = "
    .version 7.0
    .target sm_52
    .visible .entry put(.param .u64 to, .param .u64 value) { ret; }
";

/// A machine with 256 bytes on the device, a stream, and a kernel that writes a byte and takes long.
struct Bench {
    machine: Machine,
    memory: u64,
    stream: CUstream,
    put: CUkernel,
}

impl Bench {
    fn new() -> Bench {
        let (machine, _) = Machine::with_primary();
        machine.sim.register_kernel("put", |kernel| {
            kernel.set_duration_ns(LONG);
            let (to, value) = (kernel.param_u64(0), kernel.param_u64(1));
            let _ = kernel.write(to.unwrap_or(0), &[value.unwrap_or(0) as u8]);
        });
        let put = machine.kernel_of(PTX, "put").expect("PTX");
        let (status, memory) = ask!(machine, 0, cuMemAlloc(; 256));
        ok(status);
        let stream = machine.stream(NON_BLOCKING);
        Bench { machine, memory, stream, put }
    }

    fn bytes<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        ok(call!(self.machine, cuCtxSynchronize()));
        ok(call!(self.machine, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), at, N)));
        bytes
    }

    fn pinned(&self, len: usize) -> *mut u8 {
        let (status, pointer) = ask!(self.machine, null_mut(), cuMemAllocHost(; len));
        ok(status);
        pointer.cast()
    }

    /// Keeps the stream busy for long.
    fn busy(&self) {
        ok(self.machine.launch(self.put, 1, self.stream, &[self.memory + 255, 9]));
    }
}

fn at(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

/// A byte of page-locked memory, which the driver may write at any time.
fn read(pointer: *const u8, index: usize) -> u8 {
    // SAFETY: tests read within what they allocated and did not free.
    unsafe { pointer.wrapping_add(index).read_volatile() }
}

fn write(pointer: *mut u8, index: usize, value: u8) {
    // SAFETY: as in `read`.
    unsafe { pointer.wrapping_add(index).write_volatile(value) };
}

/// As an H200 answers, memory is freed whether a context is current or not.
#[test]
fn memory_is_freed_without_a_context() {
    let (machine, _) = Machine::with_primary();
    let before = machine.sim.live().allocations;
    let plain = ask!(machine, 0, cuMemAlloc(; 64));
    let ordered = ask!(machine, 0, cuMemAllocAsync(; 64, null_mut()));
    ok(machine.pop());
    for (status, memory) in [plain, ordered] {
        ok(status);
        ok(call!(machine, cuMemFree(memory)));
        assert_eq!(call!(machine, cuMemFree(memory)), INVALID_VALUE);
    }
    assert_eq!(machine.sim.live().allocations, before);
}

#[test]
fn addresses_say_where_memory_is() {
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let (mut host, mut back) = ([1_u8, 2, 3, 4], [0_u8; 4]);
    let unified = |to, from, len| call!(machine, cuMemcpy(to, from, len));
    ok(unified(memory, at(host.as_mut_ptr()), 4));
    ok(unified(memory + 8, memory, 4));
    ok(unified(at(back.as_mut_ptr()), memory + 8, 4));
    assert_eq!(back, [1, 2, 3, 4]);
    // Between places of the host, too.
    ok(unified(at(back.as_mut_ptr()), at(host[2..].as_mut_ptr()), 2));
    assert_eq!(back, [3, 4, 3, 4]);
    ok(call!(machine, cuMemcpyAsync(memory + 16, memory, 4, bench.stream)));
    ok(call!(machine, cuMemcpyDtoDAsync(memory + 20, memory + 16, 4, bench.stream)));
    ok(call!(machine, cuMemcpyDtoD(memory + 24, memory + 8, 1)));
    assert_eq!(bench.bytes(memory + 16), [1, 2, 3, 4, 1, 2, 3, 4, 1]);
    let bad = [
        unified(memory + 253, memory, 4),
        unified(memory, memory + 256, 1),
        unified(memory, 0, 1),
        unified(0, memory, 1),
        call!(machine, cuMemcpyDtoD(memory, at(host.as_ptr()), 4)),
        call!(machine, cuMemcpyDtoDAsync(at(host.as_ptr()), memory, 4, bench.stream)),
    ];
    assert_eq!(bad, [INVALID_VALUE; 6]);
    ok(call!(machine, cuMemFree(memory)));
    assert_eq!([unified(memory, memory, 1), unified(0, 0, 0)], [INVALID_VALUE, OK]);
}

#[test]
fn rows_go_from_pitch_to_pitch() {
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let source: Vec<u8> = (0..32).collect();
    // Rows of three bytes from a host with rows of eight, to a device with rows of five.
    let mut copy = CUDA_MEMCPY2D_st {
        srcXInBytes: 1,
        srcY: 1,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source.as_ptr().cast(),
        srcDevice: 0,
        srcArray: null_mut(),
        srcPitch: 8,
        dstXInBytes: 2,
        dstY: 1,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: memory,
        dstArray: null_mut(),
        dstPitch: 5,
        WidthInBytes: 3,
        Height: 2,
    };
    ok(call!(machine, cuMemcpy2D(&copy)));
    assert_eq!(bench.bytes(memory + 5), [0, 0, 9, 10, 11, 0, 0, 17, 18, 19, 0]);
    // And on the device, by addresses that say where they are.
    (copy.srcMemoryType, copy.dstMemoryType) =
        (CUmemorytype::CU_MEMORYTYPE_UNIFIED, CUmemorytype::CU_MEMORYTYPE_UNIFIED);
    (copy.srcDevice, copy.srcXInBytes, copy.srcPitch) = (memory, 2, 5);
    (copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstPitch) = (memory + 64, 0, 0, 3);
    ok(call!(machine, cuMemcpy2DAsync(&copy, bench.stream)));
    assert_eq!(bench.bytes(memory + 64), [9, 10, 11, 17, 18, 19, 0]);
    let refused = |change: fn(&mut CUDA_MEMCPY2D_st)| {
        let mut copy = copy;
        change(&mut copy);
        call!(machine, cuMemcpy2D(&copy))
    };
    let answers = [
        refused(|copy| copy.srcPitch = 4),
        refused(|copy| copy.dstPitch = 2),
        refused(|copy| copy.Height = 100),
        refused(|copy| copy.WidthInBytes = usize::MAX),
        refused(|copy| copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY),
        refused(|copy| copy.dstMemoryType = CUmemorytype(0)),
        call!(machine, cuMemcpy2D(std::ptr::null())),
    ];
    assert_eq!(answers, [INVALID_VALUE; 7]);
    ok(refused(|copy| copy.Height = 0));
}

#[test]
fn slices_go_from_height_to_height() {
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let mut back = [0_u8; 8];
    let fill: Vec<u8> = (0..64).collect();
    ok(call!(machine, cuMemcpyHtoD(memory, fill.as_ptr().cast(), 64)));
    // SAFETY: zero is a copy of nothing.
    let mut copy: CUDA_MEMCPY3D_st = unsafe { std::mem::zeroed() };
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = memory;
    (copy.srcXInBytes, copy.srcY, copy.srcZ) = (1, 1, 1);
    (copy.srcPitch, copy.srcHeight) = (4, 4);
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    copy.dstHost = back.as_mut_ptr().cast();
    (copy.WidthInBytes, copy.Height, copy.Depth) = (2, 2, 2);
    (copy.dstPitch, copy.dstHeight) = (2, 2);
    ok(call!(machine, cuMemcpy3DAsync(&copy, bench.stream)));
    assert_eq!(back, [21, 22, 25, 26, 37, 38, 41, 42]);
    copy.srcZ = 0;
    ok(call!(machine, cuMemcpy3D(&copy)));
    assert_eq!(back[..4], [5, 6, 9, 10]);
    copy.reserved0 = back.as_mut_ptr().cast();
    assert_eq!(call!(machine, cuMemcpy3D(&copy)), INVALID_VALUE);
    copy.reserved0 = null_mut();
    copy.srcHeight = 2;
    assert_eq!(call!(machine, cuMemcpy3D(&copy)), INVALID_VALUE);
}

#[test]
fn fills_are_of_every_width() {
    let bench = Bench::new();
    let (machine, memory, stream) = (&bench.machine, bench.memory, bench.stream);
    ok(call!(machine, cuMemsetD16(memory, 0x0201, 2)));
    ok(call!(machine, cuMemsetD32(memory + 4, 0x0605_0403, 1)));
    ok(call!(machine, cuMemsetD16Async(memory + 8, 0x0807, 1, stream)));
    assert_eq!(bench.bytes(memory), [1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    ok(call!(machine, cuMemsetD2D8Async(memory + 16, 5, 1, 3, 2, stream)));
    assert_eq!(bench.bytes(memory + 16), [1, 1, 1, 0, 0, 1, 1, 1, 0]);
    ok(call!(machine, cuMemsetD2D16Async(memory + 32, 4, 0x0201, 1, 2, stream)));
    ok(call!(machine, cuMemsetD2D32Async(memory + 48, 8, 0x0101_0101, 1, 2, stream)));
    assert_eq!(bench.bytes(memory + 32), [1, 2, 0, 0, 1, 2, 0]);
    assert_eq!(bench.bytes(memory + 48), [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0]);
    let bad = [
        call!(machine, cuMemsetD16(memory + 1, 0, 1)),
        call!(machine, cuMemsetD32(memory + 2, 0, 1)),
        call!(machine, cuMemsetD16(memory, 0, 129)),
        call!(machine, cuMemsetD8(memory, 0, usize::MAX)),
        call!(machine, cuMemsetD2D8Async(memory, 2, 0, 3, 2, stream)),
        call!(machine, cuMemsetD2D16Async(memory, 5, 0, 2, 2, stream)),
        call!(machine, cuMemsetD2D32Async(memory, 128, 0, 1, 4, stream)),
    ];
    assert_eq!(bad, [INVALID_VALUE; 7]);
    // One row needs no pitch.
    ok(call!(machine, cuMemsetD2D8Async(memory, 0, 0, 3, 1, stream)));
    // Nothing can be filled anywhere.
    ok(call!(machine, cuMemsetD32(1, 0, 0)));
    // A count whose bytes are no number is found out by the device alone.
    assert_eq!(call!(machine, cuMemsetD32(0x1234, 0, usize::MAX)), INVALID_VALUE);
    ok(call!(machine, cuMemsetD32(memory, 0, usize::MAX)));
    assert_eq!(call!(machine, cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn page_locked_memory_is_copied_without_waiting() {
    let bench = Bench::new();
    let (machine, memory, stream) = (&bench.machine, bench.memory, bench.stream);
    let host = bench.pinned(64);
    bench.busy();
    write(host, 0, 1);
    ok(call!(machine, cuMemcpyHtoDAsync(memory, host.cast(), 1, stream)));
    ok(call!(machine, cuMemcpyDtoHAsync(host.wrapping_add(8).cast(), memory, 1, stream)));
    assert_eq!(call!(machine, cuStreamQuery(stream)), NOT_READY);
    assert_eq!(read(host, 8), 0);
    // The copy is yet to come, and sees what the program does to its source meanwhile.
    write(host, 0, 2);
    ok(machine.sync(stream));
    assert_eq!((read(host, 8), bench.bytes(memory)), (1, [2]), "each read when it was due");
    // Without a stream the copy is done when the call returns.
    ok(call!(machine, cuMemsetD8(memory, 7, 1)));
    ok(call!(machine, cuMemcpyDtoH(host.cast(), memory, 1)));
    assert_eq!(read(host, 0), 7);
    ok(call!(machine, cuMemsetD8(at(host), 8, 2)));
    assert_eq!([read(host, 0), read(host, 1)], [8, 8]);
    ok(call!(machine, cuMemFreeHost(host.cast())));
    assert_eq!(machine.sim.live().host_allocations, 0);
}

/// A buffer that goes there and back through page-locked memory, in the order of one stream.
#[test]
fn page_locked_memory_is_staged_in_order() {
    let bench = Bench::new();
    let (machine, memory, stream) = (&bench.machine, bench.memory, bench.stream);
    let host = bench.pinned(64);
    ok(machine.launch(bench.put, 1, stream, &[memory, 5]));
    ok(call!(machine, cuMemcpyDtoHAsync(host.cast(), memory, 4, stream)));
    ok(call!(machine, cuMemcpyHtoDAsync(memory + 8, host.cast(), 4, stream)));
    ok(call!(machine, cuMemcpyAsync(at(host) + 16, at(host), 4, stream)));
    ok(call!(machine, cuMemcpyDtoDAsync(memory + 16, memory + 8, 4, stream)));
    ok(machine.launch(bench.put, 1, stream, &[at(host) + 32, 6]));
    assert_eq!([read(host, 0), read(host, 16), read(host, 32)], [0; 3]);
    assert_eq!(machine.sim.races(), []);
    ok(machine.sync(stream));
    assert_eq!([read(host, 0), read(host, 16), read(host, 32)], [5, 5, 6]);
    assert_eq!([bench.bytes(memory + 8), bench.bytes(memory + 16)], [[5]; 2]);
    // Two streams that share it without order are reported.
    bench.busy();
    ok(call!(machine, cuMemcpyDtoHAsync(host.cast(), memory, 4, stream)));
    let other = machine.stream(NON_BLOCKING);
    ok(call!(machine, cuMemcpyHtoDAsync(memory + 64, host.cast(), 4, other)));
    assert_eq!(machine.sim.races().len(), 1);
    assert_eq!(machine.sim.races()[0].address, at(host));
}

#[test]
fn memory_of_the_host_is_known_by_what_it_is() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let flags = |pointer: *mut u8| ask!(machine, 99, cuMemHostGetFlags(; pointer.cast()));
    let device = |pointer: *mut u8, flags| ask!(machine, 0, cuMemHostGetDevicePointer(; pointer.cast(), flags));
    let alloc = |len, flags| ask!(machine, null_mut(), cuMemHostAlloc(; len, flags));
    let (status, host) = alloc(64, 5);
    ok(status);
    let host: *mut u8 = host.cast();
    assert_eq!(flags(host), (OK, 7));
    assert_eq!(device(host.wrapping_add(8), 0), (OK, at(host) + 8));
    assert_eq!(device(host, 1).0, INVALID_VALUE);
    assert_eq!(alloc(8, 8).0, INVALID_VALUE);
    assert_eq!(alloc(0, 0), (OK, null_mut()));
    assert_eq!(ask!(machine, host.cast(), cuMemAllocHost(; 0)), (OK, null_mut()));
    let free = |pointer: *mut u8| call!(machine, cuMemFreeHost(pointer.cast()));
    assert_eq!([free(null_mut()), free(host.wrapping_add(8))], [OK, INVALID_VALUE]);
    assert_eq!(call!(machine, cuMemFree(at(host))), INVALID_VALUE);

    let mut own = [0_u8; 64];
    let own = own.as_mut_ptr();
    let register = |pointer: *mut u8, len, flags| {
        call!(machine, cuMemHostRegister(pointer.cast(), len, flags))
    };
    let unregister = |pointer: *mut u8| call!(machine, cuMemHostUnregister(pointer.cast()));
    let already = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    let not = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    assert_eq!([flags(own).0, device(own, 0).0], [INVALID_VALUE; 2]);
    assert_eq!([register(null_mut(), 8, 0), register(own, 0, 0)], [INVALID_VALUE; 2]);
    assert_eq!(register(own, 8, 16), INVALID_VALUE);
    assert_eq!(unregister(own), not);
    ok(register(own, 32, 2));
    assert_eq!([register(own, 32, 0), register(own.wrapping_add(31), 8, 0)], [already; 2]);
    assert_eq!([register(host, 8, 0), unregister(host)], [INVALID_VALUE; 2]);
    assert_eq!([unregister(own.wrapping_add(1)), free(own)], [INVALID_VALUE; 2]);
    assert_eq!(flags(own), (OK, 2));
    assert_eq!(device(own, 0), (OK, at(own)));
    assert_eq!(machine.sim.live().host_allocations, 2);
    // Work reaches it, and the driver waits for the work.
    ok(machine.launch(bench.put, 1, bench.stream, &[at(own) + 3, 4]));
    assert_eq!(read(own, 3), 0);
    ok(unregister(own));
    assert_eq!(read(own, 3), 4);
    ok(free(host));
    assert_eq!(machine.sim.live().host_allocations, 0);
}

#[test]
fn managed_memory_is_of_both() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let alloc = |len, flags| ask!(machine, 0, cuMemAllocManaged(; len, flags));
    let (status, managed) = alloc(64, 1);
    ok(status);
    let pointer: *mut u8 = std::ptr::with_exposed_provenance_mut(managed as usize);
    write(pointer, 1, 3);
    ok(machine.launch(bench.put, 1, bench.stream, &[managed, 5]));
    ok(machine.sync(bench.stream));
    assert_eq!(([read(pointer, 0), read(pointer, 1)], bench.bytes(managed)), ([5, 3], [5, 3]));
    assert_eq!([alloc(0, 1).0, alloc(8, 0).0, alloc(8, 4).0], [INVALID_VALUE; 3]);
    assert_eq!(machine.sim.live().allocated_bytes, 256 + 64);
    ok(call!(machine, cuMemFree(managed)));
    assert_eq!(machine.sim.live().allocations, 1);
}

#[test]
fn ranges_are_found_from_within() {
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let range = |address| {
        let (mut base, mut len) = (0, 0);
        let status = call!(machine, cuMemGetAddressRange(&mut base, &mut len, address));
        (status, base, len)
    };
    assert_eq!(range(memory), (OK, memory, 256));
    assert_eq!(range(memory + 255), (OK, memory, 256));
    assert_eq!(range(memory + 256), (NOT_FOUND, 0, 0));
    ok(call!(machine, cuMemGetAddressRange(null_mut(), null_mut(), memory)));
    ok(call!(machine, cuMemFree(memory)));
    assert_eq!(range(memory).0, NOT_FOUND);
}

#[test]
fn addresses_have_attributes() {
    use CUpointer_attribute as A;
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let ask = |attribute, address| {
        let mut value = 0_u64;
        let status =
            call!(machine, cuPointerGetAttribute((&raw mut value).cast(), attribute, address));
        (status, value)
    };
    let primary = ask!(machine, null_mut(), cuCtxGetCurrent(;)).1.addr() as u64;
    let host = bench.pinned(64);
    let (_, managed) = ask!(machine, 0, cuMemAllocManaged(; 64, 1));
    for (attribute, of_device, of_host, of_managed) in [
        (A::CU_POINTER_ATTRIBUTE_CONTEXT, Some(primary), Some(primary), Some(primary)),
        (A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Some(2), Some(1), Some(2)),
        (
            A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            Some(memory + 8),
            Some(at(host) + 8),
            Some(managed + 8),
        ),
        (A::CU_POINTER_ATTRIBUTE_HOST_POINTER, None, Some(at(host) + 8), Some(managed + 8)),
        (A::CU_POINTER_ATTRIBUTE_IS_MANAGED, Some(0), Some(0), Some(1)),
        (A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Some(0), Some(0), Some(0)),
        (A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, Some(1), Some(0), Some(0)),
        (A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, Some(memory), Some(at(host)), Some(managed)),
        (A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, Some(256), Some(64), Some(64)),
        (A::CU_POINTER_ATTRIBUTE_MAPPED, Some(1), Some(1), Some(1)),
        (A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, Some(0), Some(0), Some(0)),
    ] {
        for (address, expected) in [(memory, of_device), (at(host), of_host), (managed, of_managed)]
        {
            let expected = expected.map_or((INVALID_VALUE, 0), |value| (OK, value));
            assert_eq!(ask(attribute, address + 8), expected, "{attribute:?}");
        }
        assert_eq!(ask(attribute, 0x1234).0, INVALID_VALUE);
    }
    let ids = [memory, at(host), managed].map(|at| ask(A::CU_POINTER_ATTRIBUTE_BUFFER_ID, at).1);
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids.iter().all(|id| *id != 0));
    assert_eq!([ask(A(0), memory).0, ask(A(99), memory).0], [INVALID_VALUE; 2]);
    let tokens = ask(A::CU_POINTER_ATTRIBUTE_P2P_TOKENS, memory).0;
    assert_eq!(tokens, CUresult::CUDA_ERROR_NOT_SUPPORTED);

    // Several at once are returned for any address.
    let mut attributes = [A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE];
    let (mut kind, mut len) = (9_u32, 9_u64);
    let mut out = [(&raw mut kind).cast::<c_void>(), (&raw mut len).cast()];
    let mut several = |count, address| {
        let (attributes, out) = (attributes.as_mut_ptr(), out.as_mut_ptr());
        call!(machine, cuPointerGetAttributes(count, attributes, out, address))
    };
    assert_eq!(several(0, memory), INVALID_VALUE);
    ok(several(2, memory));
    let first = (kind, len);
    ok(several(2, 0x1234));
    // A size that there is none of is not written.
    assert_eq!((first, (kind, len)), ((2, 256), (0, 256)));

    let set = |attribute, address| {
        call!(machine, cuPointerSetAttribute((&raw const first.0).cast(), attribute, address))
    };
    let sync = A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    assert_eq!(ask(sync, memory), (OK, 0));
    let copy_behind_a_kernel = || {
        ok(machine.launch(bench.put, 1, null_mut(), &[memory, 1]));
        ok(call!(machine, cuMemcpyDtoD(memory + 8, memory, 1)));
        call!(machine, cuStreamQuery(null_mut()))
    };
    assert_eq!(copy_behind_a_kernel(), NOT_READY);
    ok(set(sync, memory));
    assert_eq!(copy_behind_a_kernel(), OK);
    assert_eq!(ask(sync, memory), (OK, 1));
    assert_eq!(
        [set(sync, 0x1234), set(A::CU_POINTER_ATTRIBUTE_MAPPED, memory)],
        [INVALID_VALUE; 2]
    );
}

#[test]
fn nobody_opens_a_handle_of_its_own() {
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let mut handle = CUipcMemHandle_st { reserved: [0; 64] };
    let mut get = |address| call!(machine, cuIpcGetMemHandle(&mut handle, address));
    let (_, pooled) = ask!(machine, 0, cuMemAllocAsync(; 64, null_mut()));
    assert_eq!([get(pooled), get(0)], [INVALID_VALUE; 2]);
    ok(get(memory + 1));
    let open =
        |machine: &Machine, handle, flags| ask!(machine, 0, cuIpcOpenMemHandle(; handle, flags)).0;
    assert_eq!(
        [open(machine, handle, 1), open(machine, handle, 0)],
        [INVALID_CONTEXT, INVALID_VALUE]
    );
    let other = Machine::with_primary().0;
    assert_eq!(open(&other, handle, 1), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let garbage = CUipcMemHandle_st { reserved: [7; 64] };
    assert_eq!(open(machine, garbage, 1), INVALID_VALUE);
    assert_eq!(call!(machine, cuIpcCloseMemHandle(memory)), INVALID_VALUE);

    let event = |flags| ask!(machine, null_mut(), cuEventCreate(; flags)).1;
    let mut handle = CUipcEventHandle_st { reserved: [0; 64] };
    let mut get = |event| call!(machine, cuIpcGetEventHandle(&mut handle, event));
    assert_eq!([get(event(0)), get(null_mut())], [INVALID_HANDLE, INVALID_VALUE]);
    ok(get(event(6)));
    let open = |handle| ask!(machine, null_mut(), cuIpcOpenEventHandle(; handle)).0;
    let garbage = CUipcEventHandle_st { reserved: [7; 64] };
    assert_eq!([open(handle), open(garbage)], [INVALID_CONTEXT, CUresult::CUDA_ERROR_MAP_FAILED]);
}

#[test]
fn small_calls_answer() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let event = machine.event();
    let record = |flags| call!(machine, cuEventRecordWithFlags(event, bench.stream, flags));
    bench.busy();
    ok(record(0));
    assert_eq!(call!(machine, cuEventQuery(event)), NOT_READY);
    assert_eq!([record(1), record(2)], [CUresult::CUDA_ERROR_ILLEGAL_STATE, INVALID_VALUE]);
    ok(call!(machine, cuProfilerStart()));
    ok(call!(machine, cuProfilerStop()));
    ok(machine.pop());
    // Without a context the null pointer can be freed, and addresses are known.
    ok(call!(machine, cuMemFreeHost(null_mut())));
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE;
    let mut size = 0_u64;
    let out = (&raw mut size).cast();
    ok(call!(machine, cuPointerGetAttribute(out, attribute, bench.memory)));
    assert_eq!(size, 256);
    assert_eq!(call!(machine, cuProfilerStart()), INVALID_CONTEXT);
}

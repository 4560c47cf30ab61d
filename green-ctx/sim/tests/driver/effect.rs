//! Effects of kernels, copies and memsets, which become visible when virtual time reaches their end.

use std::ffi::c_void;
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use green_ctx_sys::*;

use crate::machine::*;

const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
/// Longer than the calls of a test take.
const LONG: u64 = 50_000_000;

/// A bench with a kernel that writes a byte and takes long, and one that copies a byte.
fn setup() -> Bench {
    let bench = Bench::new();
    bench.machine.sim.register_kernel("put", |kernel| {
        kernel.set_duration_ns(LONG);
        let (to, value) = (kernel.param_u64(0), kernel.param_u64(1));
        let _ = kernel.write(to.unwrap_or(0), &[value.unwrap_or(0) as u8]);
    });
    bench.machine.sim.register_kernel("copy", |kernel| {
        let (to, from) = (kernel.param_u64(0).unwrap_or(0), kernel.param_u64(1).unwrap_or(0));
        let mut byte = [0];
        if kernel.read(from, &mut byte).is_ok() {
            let _ = kernel.write(to, &byte);
        }
    });
    bench
}

impl Bench {
    fn put(&self, at: u64, value: u64, stream: usize) {
        self.launch("put", stream, &[self.memory + at, value]);
    }

    fn copy(&self, to: u64, from: u64, stream: usize) {
        self.launch("copy", stream, &[self.memory + to, self.memory + from]);
    }

    /// Launches a kernel that fails.
    fn fault(&self, stream: usize) {
        self.launch("put", stream, &[16, 0]);
    }

    fn bytes(&self) -> [u8; 8] {
        self.machine.read(self.memory)
    }

    fn pinned(&self) -> *mut u8 {
        get!(self.machine, null_mut(), cuMemAllocHost(; 64)).cast()
    }
}

fn at(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

/// Reads a byte of page-locked memory, which the driver may write at any time.
fn read(pointer: *const u8, index: usize) -> u8 {
    // SAFETY: tests pass a pointer into memory that they allocated and have not freed, and the index is
    // within this memory. The read is volatile because the driver may write the memory.
    unsafe { pointer.wrapping_add(index).read_volatile() }
}

#[test]
fn a_launch_is_seen_when_it_has_ended() {
    let wait_in_some_way: [fn(&Bench, CUevent); 6] = [
        |bench, _| ok(bench.machine.sync(bench.streams[0])),
        |bench, _| must!(bench.machine, cuCtxSynchronize()),
        |bench, event| must!(bench.machine, cuEventSynchronize(event)),
        |bench, _| while call!(bench.machine, cuStreamQuery(bench.streams[0])) == NOT_READY {},
        |bench, event| while call!(bench.machine, cuEventQuery(event)) == NOT_READY {},
        |bench, _| must!(bench.machine, cuMemFree(bench.machine.alloc(8))),
    ];
    for wait in wait_in_some_way {
        let bench = setup();
        let event = bench.machine.event();
        bench.put(2, 7, 0);
        must!(bench.machine, cuEventRecord(event, bench.streams[0]));
        assert_eq!(bench.bytes(), [0; 8]);
        wait(&bench, event);
        assert_eq!(bench.bytes(), [0, 0, 7, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn a_kernel_sees_what_its_stream_waited_for() {
    let bench = setup();
    let event = bench.machine.event();
    bench.put(0, 5, 0);
    must!(bench.machine, cuEventRecord(event, bench.streams[0]));
    bench.copy(1, 0, 1);
    must!(bench.machine, cuStreamWaitEvent(bench.streams[1], event, 0));
    bench.copy(2, 0, 1);
    bench.copy(3, 2, 1);
    ok(bench.machine.sync(bench.streams[1]));
    assert_eq!(bench.bytes(), [5, 0, 5, 5, 0, 0, 0, 0]);
    // In one stream, without other work.
    bench.put(6, 6, 0);
    bench.copy(7, 6, 0);
    ok(bench.machine.sync(bench.streams[0]));
    assert_eq!(bench.bytes()[6..], [6, 6]);
}

#[test]
fn a_kernel_sees_its_own_writes_and_what_is_pending_before_it() {
    let bench = setup();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    bench.machine.sim.register_kernel("copy", move |kernel| {
        let at = kernel.param_u64(0).unwrap_or(0);
        let mut bytes = [9; 8];
        kernel.read(at, &mut bytes).expect("it is allocated");
        notes.lock().expect("no panic").push(bytes);
        kernel.write(at + 3, &[1, 2]).expect("it is allocated");
        kernel.write(at + 5, &[9]).expect("it is allocated");
        kernel.write(at + 5, &[3]).expect("it is allocated");
        kernel.read(at, &mut bytes).expect("it is allocated");
        notes.lock().expect("no panic").push(bytes);
    });
    bench.put(7, 7, 0);
    must!(bench.machine, cuMemsetD32Async(bench.memory + 4, 0x0605_0403, 1, bench.streams[0]));
    bench.put(6, 6, 0);
    bench.copy(0, 0, 0);
    let expected = [[0, 0, 0, 0, 3, 4, 6, 6], [0, 0, 0, 1, 2, 3, 6, 6]];
    assert_eq!(*seen.lock().expect("no panic"), expected);
    assert_eq!(bench.bytes(), [0; 8]);
    ok(bench.machine.sync(bench.streams[0]));
    assert_eq!(bench.bytes(), expected[1]);
}

#[test]
fn copies_and_fills_come_in_their_turn() {
    let bench = setup();
    let (machine, stream) = (&bench.machine, bench.streams[0]);
    bench.put(0, 5, 0);
    let mut from = [1_u8, 2];
    must!(machine, cuMemcpyHtoDAsync(bench.memory, from.as_ptr().cast(), 2, stream));
    // The copy read its source at the call.
    from = [8, 8];
    must!(machine, cuMemsetD8Async(bench.memory + 2, 4, 2, stream));
    assert_eq!(bench.bytes(), [0; 8]);
    // A copy to pageable host memory is complete when the call returns.
    let mut to = [0_u8; 8];
    must!(machine, cuMemcpyDtoHAsync(to.as_mut_ptr().cast(), bench.memory, 8, stream));
    assert_eq!((to, from), ([1, 2, 4, 4, 0, 0, 0, 0], [8, 8]));
    assert_eq!(bench.bytes(), to);
}

/// Copies bytes from the device to page-locked memory and back, in one stream.
#[test]
fn page_locked_memory_is_copied_in_order_and_without_waiting() {
    let bench = setup();
    let (machine, memory, stream) = (&bench.machine, bench.memory, bench.streams[0]);
    let host = bench.pinned();
    bench.put(0, 5, 0);
    must!(machine, cuMemcpyDtoHAsync(host.cast(), memory, 1, stream));
    must!(machine, cuMemcpyHtoDAsync(memory + 1, host.cast(), 1, stream));
    must!(machine, cuMemcpyDtoDAsync(memory + 2, memory + 1, 1, stream));
    must!(machine, cuMemcpyHtoDAsync(memory + 3, host.wrapping_add(8).cast(), 1, stream));
    bench.launch("put", 0, &[at(host) + 32, 6]);
    assert_eq!(call!(machine, cuStreamQuery(stream)), NOT_READY);
    assert_eq!([read(host, 0), read(host, 32)], [0; 2]);
    // The last copy has not run yet, so it will read the byte that the program writes now.
    // SAFETY: the memory is allocated, and no reference to it exists.
    unsafe { host.wrapping_add(8).write_volatile(2) };
    assert_eq!(machine.sim.races(), []);
    ok(machine.sync(stream));
    assert_eq!([read(host, 0), read(host, 32)], [5, 6]);
    assert_eq!(bench.bytes()[..4], [5, 5, 5, 2]);
    // Unordered accesses by two streams are reported.
    must!(machine, cuMemcpyDtoHAsync(host.cast(), memory, 4, stream));
    must!(machine, cuMemcpyHtoDAsync(memory + 64, host.cast(), 4, bench.streams[1]));
    let races = machine.sim.races();
    assert_eq!((races.len(), races[0].address), (1, at(host)));
}

#[test]
fn memory_freed_in_stream_order_stays_until_the_stream_is_there() {
    let bench = setup();
    let (machine, stream) = (&bench.machine, bench.streams[0]);
    // An allocator would reuse memory of this size immediately.
    let len = 1 << 16;
    let memory = get!(machine, 0, cuMemAllocAsync(; len, stream));
    bench.launch("put", 0, &[memory, 3]);
    must!(machine, cuMemFreeAsync(memory, stream));
    assert_eq!(machine.sim.live().allocations, 1, "the bench's own");
    // No other allocation gets the address while the kernel writes to it.
    assert_ne!(machine.alloc(len), memory);
    assert_eq!(call!(machine, cuMemsetD8(memory, 0, 1)), INVALID_VALUE);
    ok(machine.sync(stream));
    assert_eq!(call!(machine, cuMemFreeAsync(memory, stream)), INVALID_VALUE);
}

unsafe extern "C" fn count(calls: *mut c_void) {
    // SAFETY: the test passes a pointer to a counter that outlives the driver's work.
    unsafe { &*calls.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_graph_does_its_work_at_each_launch() {
    let bench = setup();
    let (machine, stream) = (&bench.machine, bench.streams[0]);
    let (calls, host) = (AtomicU32::new(0), bench.pinned());
    let exec = bench.capture(|| {
        must!(machine, cuMemsetD8Async(bench.memory, 7, 1, stream));
        bench.copy(1, 0, 0);
        bench.put(2, 3, 0);
        must!(machine, cuMemcpyDtoHAsync(host.cast(), bench.memory, 8, stream));
        must!(machine, cuLaunchHostFunc(stream, Some(count), from_ref(&calls).cast_mut().cast()));
    });
    for round in 1..=2 {
        must!(machine, cuMemsetD8(bench.memory, 0, 8));
        must!(machine, cuCtxSynchronize());
        must!(machine, cuGraphLaunch(exec, stream));
        assert_eq!((calls.load(Ordering::Relaxed), bench.bytes()[2]), (round - 1, 0));
        ok(machine.sync(stream));
        assert_eq!(
            (calls.load(Ordering::Relaxed), bench.bytes()[..3].to_vec()),
            (round, vec![7, 7, 3])
        );
        assert_eq!([0, 1, 2].map(|index| read(host, index)), [7, 7, 3]);
    }
    must!(machine, cuMemFree(bench.memory));
    must!(machine, cuGraphLaunch(exec, stream));
    assert_eq!(machine.sync(stream), ILLEGAL, "the graph uses memory that is free");
}

#[test]
fn captured_memory_is_there_during_each_launch() {
    let bench = setup();
    let (machine, stream, len) = (&bench.machine, bench.streams[0], 1 << 16);
    let allocate = || get!(machine, 0, cuMemAllocAsync(; len, stream));
    let mut address = 0;
    let exec = bench.capture(|| {
        address = allocate();
        must!(machine, cuMemsetD8Async(address, 7, len, stream));
        must!(machine, cuMemcpyDtoDAsync(bench.memory, address, 1, stream));
        must!(machine, cuMemFreeAsync(address, stream));
    });
    for _ in 0..2 {
        must!(machine, cuMemsetD8Async(bench.memory, 0, 1, stream));
        must!(machine, cuGraphLaunch(exec, stream));
        ok(machine.sync(stream));
        assert_eq!(bench.bytes()[0], 7);
        assert_eq!(call!(machine, cuMemsetD8(address, 7, 1)), INVALID_VALUE);
    }
    assert_eq!(machine.sim.races(), []);
    // A failed capture gives its address back.
    let abandoned = [(); 2].map(|()| {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        must!(machine, cuStreamBeginCapture(stream, mode));
        let address = allocate();
        assert_ne!(call!(machine, cuStreamQuery(stream)), OK);
        assert_ne!(ask!(machine, null_mut(), cuStreamEndCapture(stream;)).0, OK);
        must!(machine, cuCtxSynchronize());
        address
    });
    assert_eq!(abandoned[0], abandoned[1]);
}

#[test]
fn a_fault_is_known_when_the_kernel_has_failed() {
    let bench = setup();
    bench.put(0, 1, 0);
    bench.fault(0);
    bench.put(1, 1, 1);
    assert_eq!(call!(bench.machine, cuStreamQuery(bench.streams[0])), NOT_READY);
    ok(bench.machine.sync(bench.streams[1]));
    assert_eq!(bench.bytes()[..2], [1, 1]);
    assert_eq!(bench.machine.sync(bench.streams[0]), ILLEGAL);
    assert_eq!(bench.machine.sync(bench.streams[1]), ILLEGAL);
}

#[test]
fn every_wait_reports_a_fault() {
    let waits: [fn(&Bench, CUevent) -> CUresult; 6] = [
        |bench, _| bench.machine.sync(bench.streams[0]),
        |bench, _| call!(bench.machine, cuCtxSynchronize()),
        |bench, event| call!(bench.machine, cuEventSynchronize(event)),
        |bench, _| call!(bench.machine, cuMemFree(bench.memory)),
        |bench, _| {
            let (mut to, from) = ([0_u8; 8], bench.memory);
            let to = to.as_mut_ptr().cast();
            call!(bench.machine, cuMemcpyDtoHAsync(to, from, 8, bench.streams[0]))
        },
        // Any other call also reports the fault, once enough time has passed.
        |bench, _| {
            let ask = || call!(bench.machine, cuMemGetInfo(&mut 0, &mut 0));
            (0..LONG / 1000).map(|_| ask()).find(|status| *status != OK).unwrap_or(OK)
        },
    ];
    for wait in waits {
        let bench = setup();
        let event = bench.machine.event();
        bench.machine.sim.register_kernel("put", |kernel| {
            kernel.set_duration_ns(LONG / 100);
            let _ = kernel.write(16, &[0]);
        });
        bench.put(0, 0, 0);
        must!(bench.machine, cuEventRecord(event, bench.streams[0]));
        assert_eq!(wait(&bench, event), ILLEGAL);
    }
}

#[test]
fn no_fault_comes_after_a_reset() {
    let bench = setup();
    let machine = &bench.machine;
    bench.fault(0);
    for green in bench.greens {
        ok(machine.destroy(green));
    }
    must!(machine, cuDevicePrimaryCtxReset(0));
    ok(machine.push(machine.retain()));
    let stream = machine.stream(NON_BLOCKING);
    machine.sim.register_kernel("put", |kernel| kernel.set_duration_ns(2 * LONG));
    ok(machine.launch(machine.kernel("put"), 1, stream, &[0, 0]));
    ok(machine.sync(stream));
}

#[test]
fn the_probe_takes_its_time_and_a_wave_for_each_two_blocks_of_an_sm() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let [first, second] = [0, 1].map(|stream| {
        bench.launch("green_ctx_probe", stream, &[bench.memory, 1_000_000]);
        machine.sim.launches().pop().expect("a launch")
    });
    assert!(first.overlaps(&second) && first.sms != second.sms);
    assert_eq!(first.end_ns - first.start_ns, 1_000_000);
    let (probe, stream) = (machine.kernel("green_ctx_probe"), bench.streams[2]);
    ok(machine.launch(probe, 32, stream, &[bench.memory, 5000]));
    ok(machine.sync(stream));
    // The record of a block has its SM, its start and its end.
    let words = machine.read::<{ 32 * 24 }>(bench.memory);
    let word = |block: usize, word: usize| {
        let at = 24 * block + 8 * word;
        u64::from_ne_bytes(words[at..at + 8].try_into().expect("eight bytes"))
    };
    assert!((0..32).all(|block| word(block, 2) >= word(block, 1) + 5000));
    assert_eq!(word(31, 1), word(0, 2), "two blocks of 1024 threads fit on an SM at once");
}

#[test]
fn kernels_see_their_parameters() {
    let Bench { machine, streams: [stream, ..], .. } = Bench::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    machine.sim.register_kernel("mixed", move |kernel| {
        let params =
            (0..5).map(|index| kernel.param_bytes(index).map(<[u8]>::to_vec)).collect::<Vec<_>>();
        let numbers = (kernel.param_u64(1), kernel.param_u32(1));
        log.lock().expect("no panic").push((params, numbers, kernel.grid(), kernel.block()));
    });
    let launch = |params: *mut *mut c_void, extra| {
        let kernel = machine.kernel("mixed").cast();
        call!(machine, cuLaunchKernel(kernel, 2, 3, 1, 4, 5, 1, 0, stream, params, extra))
    };
    let (mut a, mut b, mut c, mut d) = (7_u8, u64::MAX - 1, 0x1234_u16, [9_u8; 20]);
    let mut params: [*mut c_void; 4] = [
        from_mut(&mut a).cast(),
        from_mut(&mut b).cast(),
        from_mut(&mut c).cast(),
        from_mut(&mut d).cast(),
    ];
    ok(launch(params.as_mut_ptr(), null_mut()));
    // The same parameters in one buffer.
    let mut buffer = [0_u8; 52];
    buffer[0] = 7;
    buffer[8..16].copy_from_slice(&b.to_ne_bytes());
    buffer[16..18].copy_from_slice(&c.to_ne_bytes());
    buffer[32..].copy_from_slice(&d);
    let mut size = buffer.len();
    let tag = std::ptr::without_provenance_mut;
    let mut extra: [*mut c_void; 5] =
        [tag(1), buffer.as_mut_ptr().cast(), tag(2), from_mut(&mut size).cast(), null_mut()];
    ok(launch(null_mut(), extra.as_mut_ptr()));
    let values = [vec![7], b.to_ne_bytes().to_vec(), c.to_ne_bytes().to_vec(), d.to_vec()];
    let params: Vec<_> = values.into_iter().map(Some).chain([None]).collect();
    let expected = (params, (Some(b), None), [2, 3, 1], [4, 5, 1]);
    assert_eq!(*seen.lock().expect("no panic"), [expected.clone(), expected]);
}

#[test]
fn a_panic_in_a_kernel_does_not_cross() {
    let Bench { machine, streams: [stream, ..], .. } = Bench::new();
    machine.sim.register_kernel("nothing", |_| panic!("a kernel's own mistake"));
    let kernel = machine.kernel("nothing");
    assert_eq!(machine.launch(kernel, 1, stream, &[]), CUresult::CUDA_ERROR_UNKNOWN);
    machine.sim.register_kernel("nothing", |_| {});
    ok(machine.launch(kernel, 1, stream, &[]));
}

/// A kernel of a graph may call the driver, and may even destroy the stream and the executable graph.
#[test]
fn a_kernel_may_call_the_driver() {
    let bench = Bench::new();
    let (machine, stream) = (&bench.machine, bench.streams[1].addr());
    let nothing = machine.kernel("nothing").addr();
    let exec = bench.capture(|| {
        bench.launch("get", 0, &[0, 0]);
        bench.launch("nothing", 0, &[]);
    });
    let (driver, executable) = (machine.sim.get_proc_address(), exec.addr());
    machine.sim.register_kernel("get", move |_| {
        // SAFETY: the function belongs to the simulated driver, which lives while its kernels run.
        let api = unsafe { Api::from_get_proc_address(driver) }.expect("it was loaded before");
        let handle = std::ptr::without_provenance_mut::<c_void>;
        let launch = api.cuLaunchKernel().expect("it exists");
        let (kernel, stream, none) = (handle(nothing).cast(), handle(stream).cast(), null_mut());
        // SAFETY: the kernel has no parameters, and handles are not dereferenced.
        ok(unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, none, null_mut()) });
        // SAFETY: the call passes only a handle, and handles are not dereferenced.
        ok(unsafe { api.cuStreamDestroy().expect("it exists")(stream) });
        // SAFETY: the call passes only a handle, and handles are not dereferenced.
        ok(unsafe { api.cuGraphExecDestroy().expect("it exists")(handle(executable).cast()) });
    });
    must!(machine, cuGraphLaunch(exec, bench.streams[1]));
    assert_eq!(machine.sim.launches().len(), 3);
    must!(machine, cuCtxSynchronize());
    assert_eq!(machine.sim.live().graph_executables, 0);
}

/// Only machines with one device were recorded.
#[test]
fn what_is_of_one_device_is_not_of_another() {
    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| get!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)));
    ok(machine.push(contexts[0]));
    let (kernel, memory, event) = (machine.kernel("nothing"), machine.alloc(64), machine.event());
    let function = get!(machine, null_mut(), cuKernelGetFunction(; kernel));
    let sms = machine.units().groups[0];
    ok(machine.push(contexts[1]));
    assert_ne!(get!(machine, null_mut(), cuKernelGetFunction(; kernel)), function);
    assert_eq!(machine.launch(function.cast(), 1, null_mut(), &[]), INVALID_HANDLE);
    let stream = machine.stream(NON_BLOCKING);
    ok(machine.launch(kernel, 1, stream, &[]));
    assert_eq!(machine.sim.launches().last().map(|launch| launch.device), Some(1));
    assert_eq!(call!(machine, cuEventRecord(event, stream)), INVALID_HANDLE);
    must!(machine, cuStreamWaitEvent(stream, event, 0));
    let other = get!(machine, zeroed(), cuDeviceGetDevResource(1; SM));
    let other = machine.split(&other, 1, 0, 8).expect("it fits").groups[0];
    assert_eq!(machine.desc(&[sms, other]), Err(BAD_CONFIGURATION));
    // The fault poisons the device that made the access.
    ok(machine.launch(machine.kernel("green_ctx_fault"), 1, stream, &[memory]));
    assert_eq!(machine.sync(stream), ILLEGAL);
    machine.pop();
    must!(machine, cuCtxSynchronize());
}

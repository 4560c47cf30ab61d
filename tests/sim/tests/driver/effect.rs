//! When the effects of operations are there: when virtual time has come to their end.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use green_ctx_sys::*;

use crate::machine::*;

const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;
const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
/// Longer than a test's calls take.
const LONG: u64 = 50_000_000;

const PTX: &str = "
    .version 7.0
    .target sm_52
    .visible .entry put(.param .u64 to, .param .u64 value) { ret; }
    .visible .entry copy(.param .u64 to, .param .u64 from) { ret; }
";

/// A machine with a kernel that writes a byte and takes long, one that copies a byte, eight bytes
/// of memory, and two green streams.
struct Bench {
    machine: Machine,
    put: CUkernel,
    copy: CUkernel,
    memory: u64,
    streams: [CUstream; 2],
}

impl Bench {
    fn new() -> Bench {
        let (machine, _) = Machine::with_primary();
        machine.sim.register_kernel("put", |kernel| {
            kernel.set_duration_ns(LONG);
            let (to, value) = (kernel.param_u64(0), kernel.param_u64(1));
            let _ = kernel.write(to.unwrap_or(0), &[value.unwrap_or(0) as u8]);
        });
        machine.sim.register_kernel("copy", |kernel| {
            let (to, from) = (kernel.param_u64(0).unwrap_or(0), kernel.param_u64(1).unwrap_or(0));
            let mut byte = [0];
            if kernel.read(from, &mut byte).is_ok() {
                let _ = kernel.write(to, &byte);
            }
        });
        let [put, copy] = ["put", "copy"].map(|name| machine.kernel_of(PTX, name).expect("PTX"));
        let (status, memory) = ask!(machine, 0, cuMemAlloc(; 8));
        ok(status);
        let green = machine.green_of(16);
        let streams = [0, 1].map(|_| machine.green_stream(green));
        Bench { machine, put, copy, memory, streams }
    }

    fn put(&self, at: u64, value: u64, stream: usize) {
        ok(self.machine.launch(self.put, 1, self.streams[stream], &[self.memory + at, value]));
    }

    fn copy(&self, to: u64, from: u64, stream: usize) {
        let params = [self.memory + to, self.memory + from];
        ok(self.machine.launch(self.copy, 1, self.streams[stream], &params));
    }

    /// What a copy on the default stream, which waits for no green stream, sees.
    fn bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        ok(call!(self.machine, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), self.memory, 8)));
        bytes
    }
}

#[test]
fn a_launch_is_seen_when_it_has_ended() {
    let wait_in_some_way: [fn(&Bench, CUevent); 6] = [
        |bench, _| ok(bench.machine.sync(bench.streams[0])),
        |bench, _| ok(call!(bench.machine, cuCtxSynchronize())),
        |bench, event| ok(call!(bench.machine, cuEventSynchronize(event))),
        |bench, _| while call!(bench.machine, cuStreamQuery(bench.streams[0])) == NOT_READY {},
        |bench, event| while call!(bench.machine, cuEventQuery(event)) == NOT_READY {},
        |bench, _| {
            // Freeing anything waits for the device.
            let (_, memory) = ask!(bench.machine, 0, cuMemAlloc(; 8));
            ok(call!(bench.machine, cuMemFree(memory)));
        },
    ];
    for wait in wait_in_some_way {
        let bench = Bench::new();
        let event = bench.machine.event();
        bench.put(2, 7, 0);
        ok(call!(bench.machine, cuEventRecord(event, bench.streams[0])));
        assert_eq!(bench.bytes(), [0; 8]);
        wait(&bench, event);
        assert_eq!(bench.bytes(), [0, 0, 7, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn the_end_of_a_stream_and_of_a_context_changes_nothing() {
    let bench = Bench::new();
    let green = ask!(bench.machine, null_mut(), cuStreamGetGreenCtx(bench.streams[0];)).1;
    bench.put(0, 1, 0);
    bench.put(1, 1, 1);
    ok(call!(bench.machine, cuStreamDestroy(bench.streams[0])));
    ok(bench.machine.destroy(green));
    assert_eq!(bench.bytes(), [0; 8]);
    ok(call!(bench.machine, cuCtxSynchronize()));
    assert_eq!(bench.bytes()[..2], [1, 1]);
}

#[test]
fn a_kernel_sees_what_its_stream_waited_for() {
    let bench = Bench::new();
    let event = bench.machine.event();
    bench.put(0, 5, 0);
    ok(call!(bench.machine, cuEventRecord(event, bench.streams[0])));
    bench.copy(1, 0, 1);
    bench.copy(4, 0, 1);
    ok(call!(bench.machine, cuStreamWaitEvent(bench.streams[1], event, 0)));
    bench.copy(2, 0, 1);
    bench.copy(3, 2, 1);
    ok(bench.machine.sync(bench.streams[1]));
    assert_eq!(bench.bytes(), [5, 0, 5, 5, 0, 0, 0, 0]);
    // In stream order, with nothing else under way.
    bench.put(6, 6, 0);
    bench.copy(7, 6, 0);
    ok(bench.machine.sync(bench.streams[0]));
    assert_eq!(bench.bytes()[6..], [6, 6]);
}

#[test]
fn a_kernel_sees_its_own_writes_and_what_is_pending_before_it() {
    let bench = Bench::new();
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
    let word = bench.memory + 4;
    ok(call!(bench.machine, cuMemsetD32Async(word, 0x0605_0403, 1, bench.streams[0])));
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
    let bench = Bench::new();
    let machine = &bench.machine;
    bench.put(0, 5, 0);
    let mut from = [1_u8, 2];
    let stream = bench.streams[0];
    ok(call!(machine, cuMemcpyHtoDAsync(bench.memory, from.as_ptr().cast(), 2, stream)));
    // The source was read at the call.
    from = [8, 8];
    ok(call!(machine, cuMemsetD8Async(bench.memory + 2, 4, 2, stream)));
    ok(call!(machine, cuStreamWriteValue32(stream, bench.memory + 4, 0x0101_0101, 0)));
    assert_eq!(bench.bytes(), [0; 8]);
    // Memory of the host that is not page-locked is copied to before the call returns.
    let mut to = [0_u8; 8];
    ok(call!(machine, cuMemcpyDtoHAsync(to.as_mut_ptr().cast(), bench.memory, 8, stream)));
    assert_eq!((to, from), ([1, 2, 4, 4, 1, 1, 1, 1], [8, 8]));
    assert_eq!(bench.bytes(), to);
    ok(call!(machine, cuStreamWriteValue64(stream, bench.memory, 0x0202_0202_0202_0202, 0)));
    ok(machine.sync(stream));
    assert_eq!(bench.bytes(), [2; 8]);
    let write =
        |at, flags| call!(machine, cuStreamWriteValue64(stream, bench.memory + at, 0, flags));
    assert_eq!([write(0, 1), write(4, 0), write(8, 0)], [INVALID_VALUE; 3]);
}

#[test]
fn memory_freed_in_stream_order_stays_until_the_stream_is_there() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let stream = bench.streams[0];
    // So large that an allocator would hand it out again at once.
    let len = 1 << 16;
    let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; len, stream));
    ok(status);
    ok(machine.launch(bench.put, 1, stream, &[memory, 3]));
    ok(call!(machine, cuMemFreeAsync(memory, stream)));
    assert_eq!(machine.sim.live().allocations, 1, "the other");
    // The address is not given out again while a write to it is under way.
    let (status, other) = ask!(machine, 0, cuMemAlloc(; len));
    ok(status);
    assert_ne!(other, memory);
    assert_eq!(call!(machine, cuMemsetD8(memory, 0, 1)), INVALID_VALUE);
    ok(machine.sync(stream));
    assert_eq!(call!(machine, cuMemFreeAsync(memory, stream)), INVALID_VALUE);
    ok(call!(machine, cuMemFree(other)));
    assert_eq!(machine.sim.live().allocated_bytes, 8);
}

#[test]
fn a_fault_is_known_when_the_kernel_has_failed() {
    let bench = Bench::new();
    let machine = &bench.machine;
    bench.put(0, 1, 0);
    ok(machine.launch(bench.put, 1, bench.streams[0], &[16, 0]));
    bench.put(1, 1, 1);
    assert_eq!(call!(machine, cuStreamQuery(bench.streams[0])), NOT_READY);
    ok(machine.sync(bench.streams[1]));
    assert_eq!(bench.bytes()[..2], [1, 1]);
    assert_eq!(machine.sync(bench.streams[0]), ILLEGAL);
    assert_eq!(machine.sync(bench.streams[1]), ILLEGAL);
}

#[test]
fn whoever_waits_for_a_fault_gets_it() {
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
        // Time alone reports it, too.
        |bench, _| {
            let ask = || call!(bench.machine, cuCtxGetLimit(&mut 0, CUlimit::CU_LIMIT_STACK_SIZE));
            (0..LONG / 1000).map(|_| ask()).find(|status| *status != OK).unwrap_or(OK)
        },
    ];
    for wait in waits {
        let bench = Bench::new();
        let event = bench.machine.event();
        bench.machine.sim.register_kernel("put", |kernel| {
            kernel.set_duration_ns(LONG / 100);
            let _ = kernel.write(16, &[0]);
        });
        bench.put(0, 0, 0);
        ok(call!(bench.machine, cuEventRecord(event, bench.streams[0])));
        assert_eq!(wait(&bench, event), ILLEGAL);
    }
}

#[test]
fn a_reset_leaves_nothing_to_come() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let green = ask!(machine, null_mut(), cuStreamGetGreenCtx(bench.streams[0];)).1;
    ok(machine.launch(bench.put, 1, bench.streams[0], &[16, 0]));
    ok(machine.destroy(green));
    ok(call!(machine, cuDevicePrimaryCtxReset(0)));
    ok(machine.push(machine.retain()));
    let stream = machine.stream(NON_BLOCKING);
    machine.sim.register_kernel("put", |kernel| kernel.set_duration_ns(2 * LONG));
    ok(machine.launch(bench.put, 1, stream, &[0, 0]));
    ok(machine.sync(stream));
}

/// What callbacks were called with, in their order.
type Notes = Mutex<Vec<(usize, CUresult, [u8; 8])>>;

struct Note {
    bench: Bench,
    notes: Notes,
}

/// Reads memory through the driver, which a real driver's callback may not, and notes its call.
unsafe extern "C" fn note(stream: CUstream, status: CUresult, note: *mut c_void) {
    // SAFETY: every callback of these tests is added with a pointer to a `Note` that outlives it.
    let note = unsafe { &*note.cast::<Note>() };
    let bytes = if status == OK { note.bench.bytes() } else { [0; 8] };
    note.notes.lock().expect("no panic").push((stream.addr(), status, bytes));
}

#[test]
fn callbacks_run_in_their_turn() {
    let note_taker = Note { bench: Bench::new(), notes: Notes::default() };
    let (bench, notes) = (&note_taker.bench, &note_taker.notes);
    let data = std::ptr::from_ref(&note_taker).cast_mut().cast();
    let add = |stream: usize, flags| {
        call!(bench.machine, cuStreamAddCallback(bench.streams[stream], Some(note), data, flags))
    };
    bench.put(0, 1, 0);
    ok(add(0, 0));
    assert_eq!(bench.bytes(), [0; 8]);
    assert!(notes.lock().expect("no panic").is_empty());
    ok(bench.machine.sync(bench.streams[0]));
    let first = (bench.streams[0].addr(), OK, [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(*notes.lock().expect("no panic"), [first]);
    assert_eq!(add(0, 1), INVALID_VALUE);
    let none = call!(bench.machine, cuStreamAddCallback(bench.streams[0], None, data, 0));
    assert_eq!(none, INVALID_VALUE);
    // In a stream that has failed a callback runs, too, and gets the error.
    ok(bench.machine.launch(bench.put, 1, bench.streams[1], &[16, 0]));
    ok(add(1, 0));
    assert_eq!(bench.machine.sync(bench.streams[1]), ILLEGAL);
    assert_eq!(notes.lock().expect("no panic")[1..], [(bench.streams[1].addr(), ILLEGAL, [0; 8])]);
}

#[test]
fn a_callback_cannot_be_captured() {
    let bench = Bench::new();
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(call!(bench.machine, cuStreamBeginCapture(bench.streams[0], relaxed)));
    let status =
        call!(bench.machine, cuStreamAddCallback(bench.streams[0], Some(note), null_mut(), 0));
    assert_eq!(status, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

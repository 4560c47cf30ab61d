//! Captures that fail, streams that leave a capture, and objects that a graph needs.

use std::ffi::{c_uint, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use green_ctx_sys::*;

use crate::machine::*;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_STATE;
const IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
const INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
const ISOLATION: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
const UNJOINED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
const UNMATCHED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

impl Bench {
    fn begin(&self, mode: CUstreamCaptureMode) -> CUresult {
        call!(self.machine, cuStreamBeginCapture(self.streams[0], mode))
    }

    fn end(&self, stream: usize) -> CUresult {
        ask!(self.machine, null_mut(), cuStreamEndCapture(self.streams[stream];)).0
    }

    fn nothing(&self, stream: CUstream) -> CUresult {
        self.machine.launch(self.machine.kernel("nothing"), 1, stream, &[])
    }
}

#[test]
fn a_capture_ends_where_it_began_and_with_every_stream_joined() {
    let bench = Bench::new();
    assert_eq!(bench.end(0), ILLEGAL);
    let null_stream = call!(bench.machine, cuStreamBeginCapture(null_mut(), GLOBAL));
    assert_eq!(null_stream, UNSUPPORTED);
    let fork = || {
        ok(bench.begin(GLOBAL));
        assert_eq!(bench.begin(GLOBAL), ILLEGAL);
        bench.wait(0, 1);
        bench.launch("nothing", 1, &[]);
    };
    fork();
    bench.wait(1, 0);
    assert_eq!(bench.end(0), OK);
    fork();
    assert_eq!(bench.end(0), UNJOINED);
    fork();
    assert_eq!((bench.end(1), bench.end(0)), (UNMATCHED, INVALIDATED));
    assert!(bench.machine.sim.launches().is_empty());
}

#[test]
fn a_green_contexts_default_stream_can_be_captured() {
    let machine = Machine::with_primary();
    ok(machine.push(machine.context(machine.green_of(16))));
    ok(call!(machine, cuStreamBeginCapture(null_mut(), GLOBAL)));
    ok(machine.launch(machine.kernel("nothing"), 1, null_mut(), &[]));
    ok(ask!(machine, null_mut(), cuStreamEndCapture(null_mut();)).0);
    assert!(machine.sim.launches().is_empty());
}

#[test]
fn a_destroyed_stream_leaves_its_work_to_be_joined() {
    for (joined, ended) in [(true, OK), (false, UNJOINED)] {
        let bench = Bench::new();
        ok(bench.begin(RELAXED));
        bench.wait(0, 1);
        bench.launch("nothing", 1, &[]);
        if joined {
            bench.wait(1, 0);
        }
        must!(bench.machine, cuStreamDestroy(bench.streams[1]));
        bench.launch("nothing", 0, &[]);
        assert_eq!(bench.end(0), ended);
    }
    // If the stream that began a capture is destroyed, the capture ends for the other streams too.
    let bench = Bench::new();
    ok(bench.begin(RELAXED));
    bench.wait(0, 1);
    must!(bench.machine, cuStreamDestroy(bench.streams[0]));
    ok(bench.machine.sync(bench.streams[1]));
}

#[test]
fn calls_that_wait_invalidate_a_capture() {
    type Call = fn(&Bench) -> CUresult;
    let allocate: Call = |bench| ask!(bench.machine, 0, cuMemAlloc(; 8)).0;
    let synchronize: Call = |bench| {
        ok(bench.machine.push(bench.machine.context(bench.greens[0])));
        call!(bench.machine, cuCtxSynchronize())
    };
    let wait_for_other_work: Call = |bench| {
        let event = bench.machine.event();
        must!(bench.machine, cuEventRecord(event, bench.streams[1]));
        call!(bench.machine, cuStreamWaitEvent(bench.streams[0], event, 0))
    };
    let calls: [(Call, CUresult); 5] = [
        (|bench| bench.machine.sync(bench.streams[0]), UNSUPPORTED),
        (|bench| call!(bench.machine, cuStreamQuery(bench.streams[0])), UNSUPPORTED),
        (synchronize, UNSUPPORTED),
        (allocate, UNSUPPORTED),
        (wait_for_other_work, ISOLATION),
    ];
    for (number, (call, status)) in calls.into_iter().enumerate() {
        let bench = Bench::new();
        ok(bench.begin(GLOBAL));
        assert_eq!(call(&bench), status, "call {number}");
        assert_eq!((bench.nothing(bench.streams[0]), bench.end(0)), (INVALIDATED, INVALIDATED));
        assert_eq!(bench.machine.sim.live().graphs, 0, "call {number}");
    }
    let bench = Bench::new();
    ok(bench.begin(RELAXED));
    assert_eq!((allocate(&bench), bench.end(0)), (OK, OK));
    // The null stream would have to wait for a blocking stream.
    let blocking = bench.machine.stream(0);
    must!(bench.machine, cuStreamBeginCapture(blocking, RELAXED));
    assert_eq!(bench.nothing(null_mut()), IMPLICIT);
    let ended = ask!(bench.machine, null_mut(), cuStreamEndCapture(blocking;)).0;
    assert_eq!(ended, INVALIDATED);
}

#[test]
fn a_graph_does_not_outlive_the_contexts_of_its_nodes() {
    let bench = Bench::new();
    let exec = bench.capture(|| bench.launch("nothing", 0, &[]));
    ok(bench.machine.destroy(bench.greens[0]));
    assert_eq!(call!(bench.machine, cuGraphLaunch(exec, bench.streams[1])), DESTROYED);
}

unsafe extern "C" fn destroyed(times: *mut c_void) {
    // SAFETY: the test passes a pointer to a counter that outlives the driver's work.
    unsafe { &*times.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

/// The allocator for PyTorch depends on this. No conformance case calls these functions.
#[test]
fn a_user_object_lives_until_the_last_launch_of_its_graph_is_over() {
    type Create =
        unsafe extern "C" fn(*mut *mut c_void, *mut c_void, CUhostFn, c_uint, c_uint) -> CUresult;
    type Lend = unsafe extern "C" fn(CUgraph, *mut c_void, c_uint, c_uint) -> CUresult;
    let bench = Bench::new();
    let (machine, stream) = (&bench.machine, bench.streams[0]);
    let (times, mut object) = (AtomicU32::new(0), null_mut());
    let count = || times.load(Ordering::Relaxed);
    // SAFETY: `Create` is the signature of the function in CUDA 11.3 (cuda.h).
    let create: Create = unsafe { std::mem::transmute(machine.lookup(c"cuUserObjectCreate")) };
    // SAFETY: `Lend` is the signature of the function in CUDA 11.3 (cuda.h).
    let lend: Lend = unsafe { std::mem::transmute(machine.lookup(c"cuGraphRetainUserObject")) };
    let data = from_ref(&times).cast_mut().cast();
    // SAFETY: `object` is a local variable of the type that the function fills, and `data` points to
    // the counter that `destroyed` expects.
    ok(unsafe { create(&mut object, data, Some(destroyed), 1, 1) });
    ok(bench.begin(RELAXED));
    bench.launch("nothing", 0, &[]);
    let graph = get!(machine, null_mut(), cuStreamEndCapture(stream;));
    // SAFETY: the simulator never dereferences handles. The flag 1 transfers the program's reference
    // to the graph.
    ok(unsafe { lend(graph, object, 1, 1) });
    let exec = get!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, 0));
    must!(machine, cuGraphDestroy(graph));
    must!(machine, cuGraphLaunch(exec, stream));
    must!(machine, cuGraphExecDestroy(exec));
    assert_eq!(count(), 0);
    ok(machine.sync(stream));
    assert_eq!(count(), 1);
}

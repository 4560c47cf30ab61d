//! Stream capture, as far as contexts and streams are concerned.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn begin(machine: &Machine, stream: CUstream, mode: CUstreamCaptureMode) {
    ok(call!(machine, cuStreamBeginCapture(stream, mode)));
}

fn end(machine: &Machine, stream: CUstream) -> (CUresult, CUgraph) {
    ask!(machine, null_mut(), cuStreamEndCapture(stream;))
}

fn status(machine: &Machine, stream: CUstream) -> u32 {
    ask!(machine, CUstreamCaptureStatus(9), cuStreamIsCapturing(stream;)).1.0
}

#[test]
fn captured_work_does_not_run() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.green_stream(machine.green_of(8));
    assert_eq!(end(&machine, stream).0, CUresult::CUDA_ERROR_ILLEGAL_STATE);
    begin(&machine, stream, RELAXED);
    assert_eq!(status(&machine, stream), 1);
    assert_eq!(
        call!(machine, cuStreamBeginCapture(stream, RELAXED)),
        CUresult::CUDA_ERROR_ILLEGAL_STATE
    );
    ok(machine.launch(machine.kernel("nothing"), 1, stream, &[]));
    let (ended, graph) = end(&machine, stream);
    ok(ended);
    assert_eq!(status(&machine, stream), 0);
    assert!(machine.sim.launches().is_empty());
    assert_eq!(machine.sim.live().graphs, 1);
    ok(call!(machine, cuGraphDestroy(graph)));
    assert_eq!(call!(machine, cuGraphDestroy(graph)), INVALID_VALUE);
}

#[test]
fn destroying_the_context_ends_the_capture() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    let stream = machine.green_stream(green);
    begin(&machine, stream, GLOBAL);
    ok(machine.destroy(green));
    assert_eq!(end(&machine, stream).0, DESTROYED);
}

#[test]
fn waiting_for_a_capturing_stream_invalidates_the_capture() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for wait in [
        &(|| machine.sync(stream)) as &dyn Fn() -> CUresult,
        &|| call!(machine, cuStreamQuery(stream)),
        &|| call!(machine, cuCtxSynchronize()),
        &|| ask!(machine, 0, cuMemAlloc(; 8)).0,
    ] {
        begin(&machine, stream, GLOBAL);
        assert_eq!(wait(), unsupported);
        assert_eq!(status(&machine, stream), 2);
        let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        assert_eq!(machine.launch(machine.kernel("nothing"), 1, stream, &[]), invalidated);
        assert_eq!(end(&machine, stream), (invalidated, null_mut()));
    }
    begin(&machine, stream, RELAXED);
    assert_eq!(ask!(machine, 0, cuMemAlloc(; 8)).0, OK);
    assert_eq!(end(&machine, stream).0, OK);
    assert_eq!(call!(machine, cuStreamBeginCapture(null_mut(), GLOBAL)), unsupported);
}

/// Events of a whole context are refused while one of its streams captures, in every mode, and so is
/// waiting for an event of a capture (recorded on an H200).
#[test]
fn events_of_a_context_invalidate_its_captures() {
    let (machine, _) = Machine::with_primary();
    let (green, other) = (machine.green_of(8), machine.green_of(8));
    let stream = machine.green_stream(green);
    let event = machine.event();
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for mode in [GLOBAL, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, RELAXED] {
        let record: &dyn Fn() -> CUresult = &|| call!(machine, cuGreenCtxRecordEvent(green, event));
        let wait: &dyn Fn() -> CUresult = &|| call!(machine, cuGreenCtxWaitEvent(green, event));
        let wait_for_captured: &dyn Fn() -> CUresult = &|| {
            ok(call!(machine, cuEventRecord(event, stream)));
            call!(machine, cuGreenCtxWaitEvent(other, event))
        };
        let captured = CUresult::CUDA_ERROR_CAPTURED_EVENT;
        for (call, status_of_call) in
            [(record, unsupported), (wait, unsupported), (wait_for_captured, captured)]
        {
            begin(&machine, stream, mode);
            assert_eq!(call(), status_of_call);
            assert_eq!(status(&machine, stream), 2);
            assert_eq!(end(&machine, stream), (invalidated, null_mut()));
        }
        let event = machine.event();
        begin(&machine, stream, mode);
        ok(call!(machine, cuGreenCtxRecordEvent(other, event)));
        ok(call!(machine, cuGreenCtxWaitEvent(other, event)));
        let (ended, graph) = end(&machine, stream);
        ok(ended);
        ok(call!(machine, cuGraphDestroy(graph)));
    }
}

#[test]
fn events_take_other_streams_into_a_capture() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    let (origin, other) = (machine.stream(NON_BLOCKING), machine.green_stream(green));
    let kernel = machine.kernel("nothing");
    let (fork, join) = (machine.event(), machine.event());
    let start = || {
        begin(&machine, origin, GLOBAL);
        ok(call!(machine, cuEventRecord(fork, origin)));
        ok(call!(machine, cuStreamWaitEvent(other, fork, 0)));
        ok(machine.launch(kernel, 1, other, &[]));
        assert_eq!(status(&machine, other), 1);
    };
    start();
    ok(call!(machine, cuEventRecord(join, other)));
    ok(call!(machine, cuStreamWaitEvent(origin, join, 0)));
    assert_eq!(end(&machine, origin).0, OK);
    start();
    assert_eq!(end(&machine, other).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_eq!(end(&machine, origin).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    start();
    assert_eq!(end(&machine, origin).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_eq!((status(&machine, origin), status(&machine, other)), (0, 0));
    assert!(machine.sim.launches().is_empty());
}

#[test]
fn a_capture_waits_for_nothing_outside() {
    let (machine, _) = Machine::with_primary();
    let (stream, other) = (machine.stream(NON_BLOCKING), machine.stream(NON_BLOCKING));
    let event = machine.event();
    ok(call!(machine, cuEventRecord(event, other)));
    begin(&machine, stream, GLOBAL);
    let isolation = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    assert_eq!(call!(machine, cuStreamWaitEvent(stream, event, 0)), isolation);
    assert_eq!(end(&machine, stream).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn the_legacy_stream_does_not_wait_for_a_capture() {
    let (machine, _) = Machine::with_primary();
    let blocking = machine.stream(0);
    begin(&machine, blocking, RELAXED);
    let implicit = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    assert_eq!(machine.launch(machine.kernel("nothing"), 1, null_mut(), &[]), implicit);
    assert_eq!(end(&machine, blocking).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn destroying_a_context_invalidates_captures_that_its_streams_take_part_in() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    let (origin, other) = (machine.stream(NON_BLOCKING), machine.green_stream(green));
    let fork = machine.event();
    begin(&machine, origin, GLOBAL);
    ok(call!(machine, cuEventRecord(fork, origin)));
    ok(call!(machine, cuStreamWaitEvent(other, fork, 0)));
    ok(machine.destroy(green));
    assert_eq!(status(&machine, origin), 2);
    assert_eq!(end(&machine, origin).0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn destroying_a_stream_leaves_or_ends_its_capture() {
    let (machine, _) = Machine::with_primary();
    let (origin, other) = (machine.stream(NON_BLOCKING), machine.stream(NON_BLOCKING));
    let fork = machine.event();
    begin(&machine, origin, GLOBAL);
    ok(call!(machine, cuEventRecord(fork, origin)));
    ok(call!(machine, cuStreamWaitEvent(other, fork, 0)));
    ok(call!(machine, cuStreamDestroy(origin)));
    assert_eq!(status(&machine, other), 0);
    ok(machine.sync(other));
}

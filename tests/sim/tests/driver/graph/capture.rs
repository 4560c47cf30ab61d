//! Captures that make graphs.

use std::ptr::{null, null_mut};

use green_ctx_sys::*;

use super::PLAIN;
use crate::machine::*;

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn end(machine: &Machine, stream: CUstream) -> CUgraph {
    let (status, graph) = ask!(machine, null_mut(), cuStreamEndCapture(stream;));
    ok(status);
    graph
}

/// The graph that a stream captures into, and what its next node comes after.
fn info(machine: &Machine, stream: CUstream) -> (CUgraph, Vec<CUgraphNode>) {
    let (mut status, mut id, mut graph) = (CUstreamCaptureStatus(9), 0, null_mut());
    let (mut nodes, mut edges, mut count) = (null(), null(), 0);
    ok(call!(
        machine,
        cuStreamGetCaptureInfo(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut edges,
            &mut count
        )
    ));
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_ne!(id, 0);
    // SAFETY: the driver's list has as many nodes, and stays until the stream is used again.
    (graph, unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec())
}

/// A capture across two partitions: as recorded, each node stays on its own.
#[test]
fn a_capture_forks_and_joins() {
    let (machine, _) = Machine::with_primary();
    let units = machine.units();
    let greens = [0, 1].map(|unit| machine.green(&[units.groups[unit]]));
    let [origin, other] = greens.map(|green| machine.green_stream(green));
    let [fork, join] = [(); 2].map(|()| machine.event());
    let kernel = machine.kernel("nothing");
    ok(call!(machine, cuStreamBeginCapture(origin, RELAXED)));
    ok(machine.launch(kernel, 100, origin, &[]));
    ok(call!(machine, cuEventRecord(fork, origin)));
    ok(call!(machine, cuStreamWaitEvent(other, fork, 0)));
    ok(machine.launch(kernel, 101, other, &[]));
    ok(machine.launch(kernel, 102, origin, &[]));
    ok(call!(machine, cuEventRecord(join, other)));
    ok(call!(machine, cuStreamWaitEvent(origin, join, 0)));
    assert_eq!(info(&machine, origin).1.len(), 2);
    ok(machine.launch(kernel, 103, origin, &[]));
    let graph = end(&machine, origin);
    assert_eq!(machine.dependencies(graph), [vec![], vec![0], vec![0], vec![2, 1]]);
    machine.launch_graph(machine.instantiate(graph), machine.stream(NON_BLOCKING));
    assert!(machine.ordered(100, 101) && machine.ordered(101, 103) && machine.ordered(102, 103));
    assert!(!machine.ordered(101, 102));
    let launches = machine.sim.launches();
    let first_sm: Vec<u32> = launches.iter().map(|launch| launch.sms[0]).collect();
    assert_eq!((first_sm[0], first_sm[0], first_sm[0]), (first_sm[2], first_sm[0], first_sm[3]));
    assert_ne!(first_sm[0], first_sm[1]);
}

#[test]
fn a_capture_adds_to_a_graph() {
    let (machine, _) = Machine::with_primary();
    let (graph, stream) = (machine.graph(), machine.stream(NON_BLOCKING));
    let [before, beside] = [(); 2].map(|()| machine.empty_node(graph, &[]));
    ok(call!(machine, cuStreamBeginCaptureToGraph(stream, graph, &before, PLAIN, 1, RELAXED)));
    assert_eq!(info(&machine, stream), (graph, vec![before]));
    ok(machine.launch(machine.kernel("nothing"), 1, stream, &[]));
    assert_eq!(call!(machine, cuGraphDestroy(graph)), INVALID_VALUE);
    assert_eq!(call!(machine, cuGraphDestroyNode(beside)), INVALID_VALUE);
    // What there is so far can be instantiated, as recorded for a capture in relaxed mode.
    machine.instantiate(graph);
    assert_eq!(end(&machine, stream), graph);
    assert_eq!(machine.dependencies(graph), [vec![], vec![], vec![0]]);
    machine.instantiate(graph);
    // As recorded, a graph of the program goes with a capture that failed.
    ok(call!(machine, cuStreamBeginCaptureToGraph(stream, graph, null(), PLAIN, 0, RELAXED)));
    assert_eq!(machine.sync(stream), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let (status, none) = ask!(machine, null_mut(), cuStreamEndCapture(stream;));
    assert_eq!((status, none), (CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, null_mut()));
    let mut count = 0;
    assert_eq!(call!(machine, cuGraphGetNodes(graph, null_mut(), &mut count)), INVALID_VALUE);
    assert_eq!(machine.sim.live().graphs, 0);
}

#[test]
fn a_failed_capture_leaves_no_graph() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    ok(call!(machine, cuStreamBeginCapture(stream, RELAXED)));
    let (graph, _) = info(&machine, stream);
    assert_eq!(machine.sync(stream), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let ended = ask!(machine, null_mut(), cuStreamEndCapture(stream;)).0;
    assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    let mut count = 0;
    assert_eq!(call!(machine, cuGraphGetNodes(graph, null_mut(), &mut count)), INVALID_VALUE);
    assert_eq!(machine.sim.live().graphs, 0);
}

/// What a stream's next node comes after can be set; what was left out needs no joining then.
#[test]
fn dependencies_are_set() {
    let (machine, _) = Machine::with_primary();
    let [origin, other] = [(); 2].map(|()| machine.stream(NON_BLOCKING));
    let (kernel, fork) = (machine.kernel("nothing"), machine.event());
    let update = |stream, nodes: &mut [CUgraphNode], flags| {
        let (nodes, count) = (nodes.as_mut_ptr(), nodes.len());
        call!(machine, cuStreamUpdateCaptureDependencies(stream, nodes, PLAIN, count, flags))
    };
    assert_eq!(update(origin, &mut [], 0), CUresult::CUDA_ERROR_ILLEGAL_STATE);
    for leave_out in [false, true] {
        ok(call!(machine, cuStreamBeginCapture(origin, RELAXED)));
        ok(machine.launch(kernel, 1, origin, &[]));
        ok(call!(machine, cuEventRecord(fork, origin)));
        ok(call!(machine, cuStreamWaitEvent(other, fork, 0)));
        ok(machine.launch(kernel, 1, other, &[]));
        if leave_out {
            ok(update(other, &mut [], 1));
        }
        let status = ask!(machine, null_mut(), cuStreamEndCapture(origin;)).0;
        let unjoined = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        assert_eq!(status, if leave_out { OK } else { unjoined });
    }
    ok(call!(machine, cuStreamBeginCapture(origin, RELAXED)));
    ok(machine.launch(kernel, 1, origin, &[]));
    let (graph, _) = info(&machine, origin);
    let mut by_hand = [machine.empty_node(graph, &[])];
    ok(update(origin, &mut by_hand, 0));
    assert_eq!(info(&machine, origin).1.len(), 2);
    assert_eq!(update(origin, &mut by_hand, 2), INVALID_VALUE);
    ok(update(origin, &mut by_hand, 1));
    ok(machine.launch(kernel, 1, origin, &[]));
    assert_eq!(machine.dependencies(end(&machine, origin)), [vec![], vec![], vec![1]]);
}

/// As recorded: an executable is not launched in a capture, and none is made while the thread has a
/// capture that forbids it.
#[test]
fn executables_and_captures_exclude_each_other() {
    let (machine, primary) = Machine::with_primary();
    let (graph, stream) = (machine.graph(), machine.stream(NON_BLOCKING));
    machine.nothing(graph, &[], primary, 10);
    let exec = machine.instantiate(graph);
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    ok(call!(machine, cuStreamBeginCapture(stream, RELAXED)));
    assert_eq!(call!(machine, cuGraphLaunch(exec, stream)), unsupported);
    assert_eq!(ask!(machine, null_mut(), cuStreamEndCapture(stream;)).0, invalidated);
    assert!(machine.sim.launches().is_empty());
    let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    for (mode, made, ended) in [(global, unsupported, invalidated), (RELAXED, OK, OK)] {
        ok(call!(machine, cuStreamBeginCapture(stream, mode)));
        let status = ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, 0)).0;
        assert_eq!(status, made);
        assert_eq!(ask!(machine, null_mut(), cuStreamEndCapture(stream;)).0, ended);
    }
}

/// Asking the legacy stream invalidates no capture that it cannot report.
#[test]
fn the_legacy_stream_cannot_report_a_capture() {
    let (machine, _) = Machine::with_primary();
    let blocking = machine.stream(0);
    ok(call!(machine, cuStreamBeginCapture(blocking, RELAXED)));
    let implicit = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    let mut status = CUstreamCaptureStatus(9);
    assert_eq!(call!(machine, cuStreamIsCapturing(null_mut(), &mut status)), implicit);
    end(&machine, blocking);
    ok(call!(machine, cuStreamIsCapturing(null_mut(), &mut status)));
}

/// Events that are recorded or waited for as external ones are nodes, which work at each launch.
#[test]
fn external_events_are_nodes() {
    let (machine, _) = Machine::with_primary();
    let [inside, outside] = [(); 2].map(|()| machine.stream(NON_BLOCKING));
    let [recorded, awaited] = [(); 2].map(|()| machine.event());
    let kernel = machine.kernel("nothing");
    ok(call!(machine, cuStreamBeginCapture(inside, RELAXED)));
    ok(call!(machine, cuStreamWaitEvent(inside, awaited, 1)));
    ok(machine.launch(kernel, 10, inside, &[]));
    ok(call!(machine, cuEventRecordWithFlags(recorded, inside, 1)));
    ok(machine.launch(kernel, 11, inside, &[]));
    let graph = end(&machine, inside);
    let kinds = machine.nodes(graph).into_iter().map(|node| {
        let (status, kind) = ask!(machine, CUgraphNodeType(99), cuGraphNodeGetType(node;));
        ok(status);
        kind.0
    });
    assert_eq!(kinds.collect::<Vec<_>>(), [6, 0, 7, 0]);
    assert_eq!(machine.dependencies(graph), [vec![], vec![0], vec![1], vec![2]]);
    let exec = machine.instantiate(graph);
    for _ in 0..2 {
        machine.sim.clear_trace();
        ok(machine.launch(kernel, 1, outside, &[]));
        ok(call!(machine, cuEventRecord(awaited, outside)));
        machine.launch_graph(exec, inside);
        ok(call!(machine, cuStreamWaitEvent(outside, recorded, 0)));
        ok(machine.launch(kernel, 2, outside, &[]));
        assert!(machine.ordered(1, 10) && machine.ordered(10, 2) && !machine.ordered(11, 2));
    }
}

/// A captured write of 32 or 64 bits writes all of them at each launch.
#[test]
fn captured_values_are_written() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 16));
    ok(status);
    ok(call!(machine, cuStreamBeginCapture(stream, RELAXED)));
    ok(call!(machine, cuStreamWriteValue64(stream, memory, 0x0807_0605_0403_0201, 0)));
    ok(call!(machine, cuStreamWriteValue32(stream, memory + 8, 0x0c0b_0a09, 0)));
    let graph = end(&machine, stream);
    machine.launch_graph(machine.instantiate(graph), stream);
    ok(machine.sync(stream));
    let mut bytes = [0_u8; 16];
    ok(call!(machine, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), memory, 16)));
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0]);
}

/// A stream that is destroyed leaves what it captured, which has to be joined as if it were there.
#[test]
fn a_joined_stream_can_be_destroyed() {
    let (machine, _) = Machine::with_primary();
    let origin = machine.stream(NON_BLOCKING);
    let (kernel, fork, join) = (machine.kernel("nothing"), machine.event(), machine.event());
    for joined in [true, false] {
        let other = machine.stream(NON_BLOCKING);
        ok(call!(machine, cuStreamBeginCapture(origin, RELAXED)));
        ok(call!(machine, cuEventRecord(fork, origin)));
        ok(call!(machine, cuStreamWaitEvent(other, fork, 0)));
        ok(machine.launch(kernel, 1, other, &[]));
        if joined {
            ok(call!(machine, cuEventRecord(join, other)));
            ok(call!(machine, cuStreamWaitEvent(origin, join, 0)));
        }
        ok(call!(machine, cuStreamDestroy(other)));
        ok(machine.launch(kernel, 2, origin, &[]));
        let (status, graph) = ask!(machine, null_mut(), cuStreamEndCapture(origin;));
        let unjoined = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        assert_eq!(status, if joined { OK } else { unjoined });
        if joined {
            assert_eq!(machine.dependencies(graph), [vec![], vec![0]]);
        }
    }
}

//! Nodes and edges.

use std::ptr::null_mut;

use green_ctx_sys::*;

use super::{Kernel, PLAIN, copy, fill};
use crate::machine::*;

#[test]
fn what_belongs_to_others_is_not_live() {
    let (machine, _) = Machine::with_primary();
    let live = || (machine.sim.live().graphs, machine.sim.live().graph_executables);
    let graph = machine.graph();
    let inner = machine.graph();
    assert_eq!(live(), (2, 0));
    let (none, stream) = (null_mut(), machine.stream(NON_BLOCKING));
    let (status, child) =
        ask!(machine, null_mut(), cuGraphAddChildGraphNode(; graph, none, 0, inner));
    ok(status);
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
    assert_eq!(live(), (2, 0), "a child and a capture's graph are nobody's to destroy");
    let (_, own) = ask!(machine, null_mut(), cuGraphChildGraphNodeGetGraph(child;));
    assert_eq!(call!(machine, cuGraphDestroy(own)), INVALID_VALUE);
    let exec = machine.instantiate(graph);
    ok(call!(machine, cuGraphDestroy(graph)));
    assert_eq!(live(), (1, 1));
    assert_eq!(call!(machine, cuGraphAddEmptyNode(&mut null_mut(), own, none, 0)), INVALID_VALUE);
    assert_eq!(ask!(machine, CUgraphNodeType(9), cuGraphNodeGetType(child;)).0, INVALID_VALUE);
    ok(call!(machine, cuGraphExecDestroy(exec)));
    assert_eq!(call!(machine, cuGraphLaunch(exec, stream)), INVALID_VALUE);
    let (status, captured) = ask!(machine, null_mut(), cuStreamEndCapture(stream;));
    ok(status);
    assert_eq!(live(), (2, 0));
    ok(call!(machine, cuGraphDestroy(captured)));
    ok(call!(machine, cuGraphDestroy(inner)));
    assert_eq!(live(), (0, 0));
}

#[test]
fn a_refused_list_of_edges_changes_nothing() {
    let (machine, _) = Machine::with_primary();
    let graph = machine.graph();
    let [a, b, c] = [(); 3].map(|()| machine.empty_node(graph, &[]));
    let foreign = machine.empty_node(machine.graph(), &[]);
    let add = |from: &[CUgraphNode], to: &[CUgraphNode]| {
        call!(machine, cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), PLAIN, from.len()))
    };
    ok(add(&[a], &[b]));
    let bad = [([a, a], [c, b]), ([a, a], [c, c]), ([a, foreign], [c, c]), ([a, c], [c, c])];
    for (from, to) in bad {
        assert_eq!(add(&from, &to), INVALID_VALUE);
    }
    assert_eq!(machine.dependencies(graph), [vec![], vec![0], vec![]]);
    let remove = |from: &[CUgraphNode], to: &[CUgraphNode]| {
        let count = from.len();
        call!(machine, cuGraphRemoveDependencies(graph, from.as_ptr(), to.as_ptr(), PLAIN, count))
    };
    assert_eq!(remove(&[a, a], &[b, c]), INVALID_VALUE);
    assert_eq!(machine.dependencies(graph)[1], [0]);
    ok(remove(&[a], &[b]));
    assert!(machine.dependencies(graph)[1].is_empty());
}

#[test]
fn clones_are_changed_by_themselves() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    let graph = machine.graph();
    let first = machine.nothing(graph, &[], primary, 200);
    machine.empty_node(graph, &[first]);
    let (status, clone) = ask!(machine, null_mut(), cuGraphClone(; graph));
    ok(status);
    assert_eq!(machine.dependencies(clone), machine.dependencies(graph));
    let (status, node) = ask!(machine, null_mut(), cuGraphNodeFindInClone(; first, clone));
    ok(status);
    let params = Kernel::new(&machine, "nothing", &[]).on(green, 200);
    ok(call!(machine, cuGraphKernelNodeSetParams(node, &params)));
    let stream = machine.stream(NON_BLOCKING);
    for (graph, sms) in [(graph, 132), (clone, 8)] {
        machine.launch_graph(machine.instantiate(graph), stream);
        assert_eq!(machine.sms().len(), sms);
    }
    ok(call!(machine, cuGraphDestroyNode(node)));
    assert_eq!(machine.dependencies(clone), [vec![]]);
    assert_eq!(machine.nodes(graph).len(), 2);
    // Child graphs are cloned with the graph that has them.
    let outer = machine.graph();
    let (status, child) =
        ask!(machine, null_mut(), cuGraphAddChildGraphNode(; outer, null_mut(), 0, graph));
    ok(status);
    let (_, clone) = ask!(machine, null_mut(), cuGraphClone(; outer));
    let (_, cloned) = ask!(machine, null_mut(), cuGraphNodeFindInClone(; child, clone));
    let [own, other] = [child, cloned]
        .map(|node| ask!(machine, null_mut(), cuGraphChildGraphNodeGetGraph(node;)).1);
    machine.empty_node(own, &[]);
    assert_eq!((machine.nodes(own).len(), machine.nodes(other).len()), (3, 2));
    ok(call!(machine, cuGraphDestroy(outer)));
    assert_eq!(machine.nodes(other).len(), 2);
}

/// What a node gives out stays until it is changed, and is a copy of what it was given.
#[test]
fn parameters_are_the_node_s_own() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let mut kernel = Kernel::new(&machine, "green_ctx_probe", &[7, 8]);
    let params = kernel.on(primary, 1);
    let node = machine.kernel_node(graph, &[], &params);
    kernel.values.fill(0);
    let read = || {
        let mut read = params;
        ok(call!(machine, cuGraphKernelNodeGetParams(node, &mut read)));
        read
    };
    let value = |params: &CUDA_KERNEL_NODE_PARAMS_v2, index| {
        // SAFETY: the kernel has two parameters, and so the list has two places.
        let place = unsafe { params.kernelParams.add(index) };
        // SAFETY: as above.
        let place = unsafe { place.read() };
        // SAFETY: both have eight bytes, and their memory lives as long as the node.
        unsafe { place.cast::<u64>().read() }
    };
    let first = read();
    assert_eq!([0, 1].map(|index| value(&first, index)), [7, 8]);
    assert_eq!(first.kernelParams, read().kernelParams);
    // A node's own memory is a place to set it from.
    ok(call!(machine, cuGraphKernelNodeSetParams(node, &first)));
    let again = read();
    assert_eq!([0, 1].map(|index| value(&again, index)), [7, 8]);
    let none = CUDA_KERNEL_NODE_PARAMS_v2 { gridDimX: 0, ..params };
    assert_eq!(call!(machine, cuGraphKernelNodeSetParams(node, &none)), INVALID_VALUE);
    assert_eq!(read().gridDimX, 1);
}

#[test]
fn a_context_is_where_the_kernel_s_device_is() {
    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
    ok(machine.push(contexts[0]));
    let graph = machine.graph();
    for (device, context) in (0..).zip(contexts) {
        machine.nothing(graph, &[], context, 1 + device);
    }
    machine.launch_graph(machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let launches = machine.sim.launches();
    let devices: Vec<usize> = launches.iter().map(|launch| launch.device).collect();
    assert_eq!(devices, [0, 1]);
    assert!(launches.iter().all(|launch| launch.graph_launch == Some(1)));
    ok(machine.launch(machine.kernel("nothing"), 1, null_mut(), &[]));
    assert_eq!(machine.sim.launches().last().map(|launch| launch.graph_launch), Some(None));
}

#[test]
fn boxes_of_memory_are_bounded() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let memory = machine.alloc(1024);
    let mut host = [1_u8; 256];
    let add = |params: &CUDA_MEMCPY3D_v2| {
        ask!(machine, null_mut(), cuGraphAddMemcpyNode(; graph, null_mut(), 0, params, primary)).0
    };
    let plain = copy(host.as_mut_ptr().cast(), memory, 16, false);
    let rows = CUDA_MEMCPY3D_v2 { Height: 4, srcPitch: 64, dstPitch: 256, ..plain };
    ok(add(&rows));
    for bad in [
        CUDA_MEMCPY3D_v2 { dstPitch: 512, ..rows },
        CUDA_MEMCPY3D_v2 { dstXInBytes: 241, ..rows },
        CUDA_MEMCPY3D_v2 { dstY: 1, ..rows },
        CUDA_MEMCPY3D_v2 { Depth: 2, ..rows },
        CUDA_MEMCPY3D_v2 { Depth: usize::MAX, dstHeight: usize::MAX, ..rows },
        CUDA_MEMCPY3D_v2 { dstZ: usize::MAX, ..plain },
        CUDA_MEMCPY3D_v2 { WidthInBytes: usize::MAX, ..plain },
    ] {
        assert_eq!(add(&bad), INVALID_VALUE);
    }
    let set = |params: &CUDA_MEMSET_NODE_PARAMS_v1| {
        ask!(machine, null_mut(), cuGraphAddMemsetNode(; graph, null_mut(), 0, params, primary)).0
    };
    let rows = CUDA_MEMSET_NODE_PARAMS_v1 { height: 4, pitch: 256, ..fill(memory, 1, 256) };
    ok(set(&rows));
    for bad in [
        CUDA_MEMSET_NODE_PARAMS_v1 { height: 5, ..rows },
        CUDA_MEMSET_NODE_PARAMS_v1 { height: usize::MAX, ..rows },
        CUDA_MEMSET_NODE_PARAMS_v1 { width: usize::MAX, elementSize: 4, ..rows },
    ] {
        assert_eq!(set(&bad), INVALID_VALUE);
    }
    assert_eq!(machine.nodes(graph).len(), 2);
}

#[test]
fn a_graph_is_written_down() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let node = machine.nothing(graph, &[], primary, 1);
    machine.empty_node(graph, &[node]);
    let path = std::env::temp_dir().join(format!("green-ctx-sim-{}.dot", std::process::id()));
    let name = std::ffi::CString::new(path.to_str().expect("text")).expect("text");
    ok(call!(machine, cuGraphDebugDotPrint(graph, name.as_ptr(), 0)));
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::remove_file(&path).expect("it is there");
    assert!(text.contains("KERNEL nothing") && text.contains("EMPTY") && text.contains("->"));
    let nowhere = c"/no/such/folder/graph.dot";
    let status = call!(machine, cuGraphDebugDotPrint(graph, nowhere.as_ptr(), 0));
    assert_eq!(status, CUresult::CUDA_ERROR_OPERATING_SYSTEM);
}

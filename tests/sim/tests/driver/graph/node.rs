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

/// A list of edges is worked through up to the first mistake: recorded where they are added.
#[test]
fn edges_before_a_mistake_are_changed() {
    let (machine, _) = Machine::with_primary();
    let graph = machine.graph();
    let [a, b, c, d] = [(); 4].map(|()| machine.empty_node(graph, &[]));
    let foreign = machine.empty_node(machine.graph(), &[]);
    let add = |from: &[CUgraphNode], to: &[CUgraphNode]| {
        call!(machine, cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), PLAIN, from.len()))
    };
    ok(add(&[a], &[b]));
    let bad = [([a, a], [b, c]), ([a, a], [c, c]), ([b, foreign], [c, c]), ([a, c], [d, c])];
    for (from, to) in bad {
        assert_eq!(add(&from, &to), INVALID_VALUE);
    }
    assert_eq!(machine.dependencies(graph), [vec![], vec![0], vec![0, 1], vec![0]]);
    let remove = |from: &[CUgraphNode], to: &[CUgraphNode]| {
        let count = from.len();
        call!(machine, cuGraphRemoveDependencies(graph, from.as_ptr(), to.as_ptr(), PLAIN, count))
    };
    assert_eq!(remove(&[a, c], &[b, b]), INVALID_VALUE);
    assert_eq!(machine.dependencies(graph), [vec![], vec![], vec![0, 1], vec![0]]);
    ok(remove(&[a], &[d]));
    assert!(machine.dependencies(graph)[3].is_empty());
}

/// As recorded, no data removes an edge with any; other data than its own does not (header).
#[test]
fn an_edge_is_removed_without_its_data() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let [first, second] = [1, 2].map(|blocks| machine.nothing(graph, &[], primary, blocks));
    let data =
        |from_port, type_| CUgraphEdgeData { from_port, to_port: 0, type_, reserved: [0; 5] };
    ok(call!(machine, cuGraphAddDependencies(graph, &first, &second, &data(1, 1), 1)));
    let remove = |data| call!(machine, cuGraphRemoveDependencies(graph, &first, &second, data, 1));
    assert_eq!(remove(&data(2, 1)), INVALID_VALUE);
    ok(remove(PLAIN));
    assert_eq!(remove(PLAIN), INVALID_VALUE);
}

#[test]
fn a_place_without_room_is_refused() {
    let (machine, _) = Machine::with_primary();
    let (graph, mut count) = (machine.graph(), 0);
    let node = machine.empty_node(graph, &[]);
    let mut out = null_mut();
    assert_eq!(call!(machine, cuGraphGetNodes(graph, &mut out, &mut count)), INVALID_VALUE);
    assert_eq!(call!(machine, cuGraphGetRootNodes(graph, &mut out, &mut count)), INVALID_VALUE);
    count = 1;
    ok(call!(machine, cuGraphGetNodes(graph, &mut out, &mut count)));
    assert_eq!(out, node);
}

/// As recorded: a function goes before kernel and context, brings its kernel with it, and runs in the
/// current context.
#[test]
fn a_function_goes_before_kernel_and_context() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    let (graph, stream) = (machine.graph(), machine.stream(NON_BLOCKING));
    let mut kernel = Kernel::new(&machine, "nothing", &[]);
    let (status, func) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel.kernel));
    ok(status);
    let by_kernel = kernel.on(green, 200);
    let by_function = CUDA_KERNEL_NODE_PARAMS_v2 { func, kern: null_mut(), ..by_kernel };
    let read = |node| {
        let mut read = by_kernel;
        ok(call!(machine, cuGraphKernelNodeGetParams(node, &mut read)));
        (read.func, read.kern, read.ctx)
    };
    let node = machine.kernel_node(graph, &[], &by_function);
    assert_eq!(read(node), (func, kernel.kernel, primary));
    ok(machine.push(green));
    ok(call!(machine, cuGraphKernelNodeSetParams(node, &by_function)));
    assert_eq!(read(node), (func, kernel.kernel, green));
    machine.launch_graph(machine.instantiate(graph), stream);
    assert_eq!(machine.sms().len(), 8);
    ok(machine.pop());
    let cast = CUDA_KERNEL_NODE_PARAMS_v2 { func: kernel.kernel.cast(), ..by_function };
    let neither = CUDA_KERNEL_NODE_PARAMS_v2 { func: null_mut(), ..by_function };
    for params in [cast, neither] {
        let set = call!(machine, cuGraphKernelNodeSetParams(node, &params));
        assert_eq!(set, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
    ok(machine.launch(func.cast(), 1, stream, &[]));
    let (status, captured) = ask!(machine, null_mut(), cuStreamEndCapture(stream;));
    ok(status);
    assert_eq!(read(machine.nodes(captured)[0]), (func, kernel.kernel, primary));
}

#[test]
fn attributes_are_made_to_fit() {
    let (machine, primary) = Machine::with_primary();
    let node = machine.nothing(machine.graph(), &[], primary, 8);
    let priority = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    for (given, kept) in [(-99, -5), (99, 0), (-2, -2)] {
        value.priority = given;
        ok(call!(machine, cuGraphKernelNodeSetAttribute(node, priority, &value)));
        ok(call!(machine, cuGraphKernelNodeGetAttribute(node, priority, &mut value)));
        // SAFETY: the attribute is a number.
        assert_eq!(unsafe { value.priority }, kept);
    }
    let cluster = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    for (x, status) in [(3, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE), (4, OK)] {
        value.clusterDim = CUlaunchAttributeValue_union__bindgen_ty_1 { x, y: 1, z: 1 };
        assert_eq!(call!(machine, cuGraphKernelNodeSetAttribute(node, cluster, &value)), status);
    }
}

/// A value is kept as it was given, and filled in as far as an element goes; no context is the
/// current one.
#[test]
fn a_fill_keeps_its_value() {
    let (machine, _) = Machine::with_primary();
    let (graph, memory) = (machine.graph(), machine.alloc(64));
    let params = CUDA_MEMSET_NODE_PARAMS_v1 { elementSize: 2, ..fill(memory, 0x0102_0304, 2) };
    let node = machine.memset_node(graph, &[], &params, null_mut());
    let mut read = fill(0, 0, 0);
    ok(call!(machine, cuGraphMemsetNodeGetParams(node, &mut read)));
    assert_eq!((read.value, read.elementSize, read.width), (0x0102_0304, 2, 2));
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    machine.launch_graph(exec, stream);
    ok(machine.sync(stream));
    assert_eq!(machine.read(memory, 4), [4, 3, 4, 3]);
    // The size of elements can change in an executable, as recorded.
    let words = CUDA_MEMSET_NODE_PARAMS_v1 { elementSize: 4, width: 1, ..params };
    ok(call!(machine, cuGraphExecMemsetNodeSetParams(exec, node, &words, null_mut())));
    machine.launch_graph(exec, stream);
    ok(machine.sync(stream));
    assert_eq!(machine.read(memory, 4), [4, 3, 2, 1]);
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

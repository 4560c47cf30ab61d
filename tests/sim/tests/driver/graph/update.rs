//! Changing executables.

use std::ptr::null_mut;

use green_ctx_sys::*;

use super::{Kernel, fill};
use crate::machine::*;

fn update(machine: &Machine, exec: CUgraphExec, graph: CUgraph) -> (CUresult, u32, CUgraphNode) {
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: null_mut(),
        errorFromNode: null_mut(),
    };
    let status = call!(machine, cuGraphExecUpdate(exec, graph, &mut info));
    (status, info.result.0, info.errorNode)
}

/// As recorded: the context of an executable's kernel cannot be changed. A function beside it means
/// the current one.
#[test]
fn an_executable_stays_in_its_contexts() {
    let (machine, _) = Machine::with_primary();
    let units = machine.units();
    let [here, there] = [0, 1].map(|unit| machine.context(machine.green(&[units.groups[unit]])));
    let graph = machine.graph();
    let node = machine.nothing(graph, &[], here, 100);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    machine.launch_graph(exec, stream);
    let sms = machine.sms();
    let moved = Kernel::new(&machine, "nothing", &[]).on(there, 100);
    assert_eq!(call!(machine, cuGraphExecKernelNodeSetParams(exec, node, &moved)), INVALID_VALUE);
    let mut read = moved;
    ok(call!(machine, cuGraphKernelNodeGetParams(node, &mut read)));
    for (current, status) in [(there, INVALID_VALUE), (here, OK)] {
        ok(machine.push(current));
        read.ctx = there;
        assert_eq!(call!(machine, cuGraphExecKernelNodeSetParams(exec, node, &read)), status);
        ok(machine.pop());
    }
    ok(call!(machine, cuGraphKernelNodeSetParams(node, &moved)));
    let failure = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    assert_eq!(update(&machine, exec, graph), (failure, 7, node));
    machine.launch_graph(exec, stream);
    assert_eq!(machine.sms(), sms);
    machine.launch_graph(machine.instantiate(graph), stream);
    assert_ne!(machine.sms(), sms);
}

/// An update is done whole or not at all.
#[test]
fn a_refused_update_changes_nothing() {
    let (machine, primary) = Machine::with_primary();
    let memory = machine.alloc(64);
    let make = |value, blocks, extra| {
        let graph = machine.graph();
        let first = machine.memset_node(graph, &[], &fill(memory, value, 64), primary);
        let second = machine.nothing(graph, &[first], primary, blocks);
        machine.empty_node(graph, if extra { &[] } else { std::slice::from_ref(&second) });
        (graph, second)
    };
    let (graph, _) = make(1, 1, false);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let (other, first_exit) = make(2, 2, true);
    let failure = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    assert_eq!(update(&machine, exec, other), (failure, 2, first_exit));
    machine.launch_graph(exec, stream);
    ok(machine.sync(stream));
    assert_eq!(machine.read(memory, 1), [1]);
    let (same, _) = make(3, 3, false);
    assert_eq!(update(&machine, exec, same), (OK, 0, null_mut()));
    machine.launch_graph(exec, stream);
    ok(machine.sync(stream));
    assert_eq!(machine.read(memory, 1), [3]);
    assert_eq!(machine.sim.launches().last().map(|launch| launch.grid[0]), Some(3));
}

/// Nodes are paired along the edges, not by when they were added.
#[test]
fn an_update_pairs_by_edges() {
    let (machine, primary) = Machine::with_primary();
    let memory = machine.alloc(64);
    let graph = machine.graph();
    let first = machine.memset_node(graph, &[], &fill(memory, 1, 64), primary);
    machine.nothing(graph, &[first], primary, 1);
    let exec = machine.instantiate(graph);
    let other = machine.graph();
    let last = machine.nothing(other, &[], primary, 2);
    let first = machine.memset_node(other, &[], &fill(memory, 2, 64), primary);
    ok(call!(machine, cuGraphAddDependencies(other, &first, &last, super::PLAIN, 1)));
    assert_eq!(update(&machine, exec, other), (OK, 0, null_mut()));
    let crossed = |edges: [usize; 2]| {
        let graph = machine.graph();
        let roots = [(); 2].map(|()| machine.empty_node(graph, &[]));
        machine.empty_node(graph, &roots);
        machine.empty_node(graph, &edges.map(|root| roots[root]));
        graph
    };
    let straight = machine.instantiate(crossed([0, 1]));
    assert_eq!(update(&machine, straight, crossed([0, 1])).0, OK);
    let (status, result, _) = update(&machine, straight, crossed([1, 0]));
    assert_eq!((status, result), (CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 2));
    let swapped = machine.graph();
    let first = machine.nothing(swapped, &[], primary, 1);
    machine.memset_node(swapped, &[first], &fill(memory, 1, 64), primary);
    let (status, result, node) = update(&machine, exec, swapped);
    assert_eq!((status, result), (CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 3));
    assert!(!node.is_null());
}

/// A graph, an executable of it, and the graph as it is now: each is changed by itself.
#[test]
fn changes_of_an_executable_are_its_own() {
    let (machine, primary) = Machine::with_primary();
    let (graph, inner) = (machine.graph(), machine.graph());
    let node = machine.nothing(inner, &[], primary, 1);
    let none: CUgraphNode = null_mut();
    let (status, child) =
        ask!(machine, none, cuGraphAddChildGraphNode(; graph, null_mut(), 0, inner));
    ok(status);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let params = Kernel::new(&machine, "nothing", &[]).on(primary, 2);
    ok(call!(machine, cuGraphKernelNodeSetParams(node, &params)));
    ok(call!(machine, cuGraphExecChildGraphNodeSetParams(exec, child, inner)));
    machine.launch_graph(exec, stream);
    assert_eq!(machine.sim.launches().last().map(|launch| launch.grid[0]), Some(2));
    machine.launch_graph(machine.instantiate(graph), stream);
    assert_eq!(machine.sim.launches().last().map(|launch| launch.grid[0]), Some(1));
    // A node of the child graph is changed through the executable of the whole.
    let (_, own) = ask!(machine, null_mut(), cuGraphChildGraphNodeGetGraph(child;));
    let within = machine.nodes(own)[0];
    let params = Kernel::new(&machine, "nothing", &[]).on(primary, 3);
    ok(call!(machine, cuGraphExecKernelNodeSetParams(exec, within, &params)));
    machine.launch_graph(exec, stream);
    assert_eq!(machine.sim.launches().last().map(|launch| launch.grid[0]), Some(3));
}

/// What instantiation needs, and what it says of itself, as recorded.
#[test]
fn instantiation_reports_what_came_of_it() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    machine.nothing(graph, &[], primary, 1);
    let with_flags = |flags| ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, flags));
    for (given, reported) in [(1, 1), (4, 4), (8, 0)] {
        let (status, exec) = with_flags(given);
        ok(status);
        let (status, flags) = ask!(machine, 99, cuGraphExecGetFlags(exec;));
        assert_eq!((status, flags), (OK, reported));
    }
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 16,
        hUploadStream: null_mut(),
        hErrNode_out: null_mut(),
        result_out: CUgraphInstantiateResult(99),
    };
    let status = ask!(machine, null_mut(), cuGraphInstantiateWithParams(; graph, &mut params)).0;
    assert_eq!((status, params.result_out.0), (INVALID_VALUE, 1));
    ok(machine.pop());
    assert_eq!(with_flags(0).0, CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

/// Of a chain that moved the last kernel is named, and a child of another shape fails as an update.
#[test]
fn updates_begin_at_the_exits() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    let chain = |context| {
        let graph = machine.graph();
        let first = machine.nothing(graph, &[], context, 1);
        (graph, machine.nothing(graph, &[first], context, 2))
    };
    let exec = machine.instantiate(chain(primary).0);
    let (moved, last) = chain(green);
    let failure = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    assert_eq!(update(&machine, exec, moved), (failure, 7, last));
    let (outer, inner) = (machine.graph(), machine.graph());
    let (_, child) =
        ask!(machine, null_mut(), cuGraphAddChildGraphNode(; outer, null_mut(), 0, inner));
    let exec = machine.instantiate(outer);
    machine.empty_node(inner, &[]);
    let set = call!(machine, cuGraphExecChildGraphNodeSetParams(exec, child, inner));
    assert_eq!(set, failure);
}

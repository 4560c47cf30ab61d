//! The order of what graphs do, among themselves and with streams.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

/// Kernels are distinguished by the numbers of their blocks.
const BEFORE: u32 = 1;
const AFTER: u32 = 2;

#[test]
fn edges_order_and_nothing_else_does() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let top = machine.nothing(graph, &[], primary, 10);
    let left = machine.nothing(graph, &[top], primary, 11);
    let right = machine.nothing(graph, &[top], primary, 12);
    machine.nothing(graph, &[left, right], primary, 13);
    machine.nothing(graph, &[], primary, 14);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let kernel = machine.kernel("nothing");
    ok(machine.launch(kernel, BEFORE, stream, &[]));
    machine.launch_graph(exec, stream);
    ok(machine.launch(kernel, AFTER, stream, &[]));
    for node in 10..=14 {
        assert!(machine.ordered(BEFORE, node) && machine.ordered(node, AFTER));
    }
    assert!(machine.ordered(10, 11) && machine.ordered(10, 12) && machine.ordered(10, 13));
    assert!(machine.ordered(11, 13) && machine.ordered(12, 13));
    assert!(!machine.ordered(11, 12));
    assert!((10..14).all(|node| !machine.ordered(14, node)));
    let launches = machine.sim.launches();
    let [left, right] = [11, 12].map(|blocks| {
        launches.iter().find(|launch| launch.grid[0] == blocks).expect("it was launched")
    });
    assert!(left.overlaps(right));
}

#[test]
fn a_graph_orders_nothing_beside_its_stream() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    machine.nothing(graph, &[], primary, 10);
    machine.nothing(graph, &[], primary, 11);
    let [one, other] = [(); 2].map(|()| machine.stream(NON_BLOCKING));
    let (exec, kernel) = (machine.instantiate(graph), machine.kernel("nothing"));
    ok(machine.launch(kernel, BEFORE, other, &[]));
    machine.launch_graph(exec, one);
    ok(machine.launch(kernel, AFTER, other, &[]));
    for node in [10, 11] {
        assert!(!machine.ordered(BEFORE, node) && !machine.ordered(node, AFTER));
    }
    ok(machine.sync(one));
    ok(machine.launch(kernel, AFTER, other, &[]));
    assert!(machine.ordered(10, AFTER) && machine.ordered(11, AFTER));
}

/// Launches of one executable come after each other in whatever streams (cuda.h, `cuGraphLaunch`);
/// those of two executables do not.
#[test]
fn an_executable_runs_once_at_a_time() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    machine.nothing(graph, &[], primary, 10);
    let exec = machine.instantiate(graph);
    let [one, other] = [(); 2].map(|()| machine.stream(NON_BLOCKING));
    machine.launch_graph(exec, one);
    machine.launch_graph(exec, other);
    machine.launch_graph(machine.instantiate(graph), one);
    let launches = machine.sim.launches();
    assert!(launches[0].happens_before(&launches[1]));
    assert!(launches[0].end_ns <= launches[1].start_ns);
    assert!(!launches[1].happens_before(&launches[2]));
    let numbers: Vec<_> = launches.iter().map(|launch| launch.graph_launch).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
}

/// An event of a graph stands for the nodes before it, not for the whole graph.
#[test]
fn events_in_graphs_order_streams() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let [recorded, awaited] = [(); 2].map(|()| machine.event());
    let none: CUgraphNode = null_mut();
    let first = machine.nothing(graph, &[], primary, 10);
    let (status, record) =
        ask!(machine, none, cuGraphAddEventRecordNode(; graph, &first, 1, recorded));
    ok(status);
    machine.nothing(graph, &[record], primary, 11);
    let (status, wait) =
        ask!(machine, none, cuGraphAddEventWaitNode(; graph, null_mut(), 0, awaited));
    ok(status);
    machine.nothing(graph, &[wait], primary, 12);
    let [one, other] = [(); 2].map(|()| machine.stream(NON_BLOCKING));
    let kernel = machine.kernel("nothing");
    ok(machine.launch(kernel, BEFORE, other, &[]));
    ok(call!(machine, cuEventRecord(awaited, other)));
    machine.launch_graph(machine.instantiate(graph), one);
    ok(call!(machine, cuStreamWaitEvent(other, recorded, 0)));
    ok(machine.launch(kernel, AFTER, other, &[]));
    assert!(machine.ordered(10, AFTER) && machine.ordered(BEFORE, 12));
    assert!(!machine.ordered(11, AFTER) && !machine.ordered(12, AFTER));
    assert!(!machine.ordered(BEFORE, 10));
}

/// A child graph is one node: what comes after it comes after all of it.
#[test]
fn child_graphs_are_nodes() {
    let (machine, primary) = Machine::with_primary();
    let (graph, inner) = (machine.graph(), machine.graph());
    machine.nothing(inner, &[], primary, 20);
    machine.nothing(inner, &[], primary, 21);
    let first = machine.nothing(graph, &[], primary, 10);
    let none: CUgraphNode = null_mut();
    let (status, child) = ask!(machine, none, cuGraphAddChildGraphNode(; graph, &first, 1, inner));
    ok(status);
    machine.nothing(graph, &[child], primary, 11);
    machine.launch_graph(machine.instantiate(graph), machine.stream(NON_BLOCKING));
    for inside in [20, 21] {
        assert!(machine.ordered(10, inside) && machine.ordered(inside, 11));
    }
    assert!(!machine.ordered(20, 21));
}

/// A node that is disabled orders as an empty one.
#[test]
fn disabled_nodes_order() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let first = machine.nothing(graph, &[], primary, 10);
    let middle = machine.nothing(graph, &[first], primary, 11);
    machine.nothing(graph, &[middle], primary, 12);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    ok(call!(machine, cuGraphNodeSetEnabled(exec, middle, 0)));
    machine.launch_graph(exec, stream);
    assert_eq!(machine.sim.launches().len(), 2);
    assert!(machine.ordered(10, 12));
}

/// Launching a wide graph again and again, between other work of its stream, keeps the order, and
/// makes no more branches than the graph is wide.
#[test]
fn wide_graphs_can_be_launched_for_ever() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    for blocks in 10..18 {
        machine.nothing(graph, &[], primary, blocks);
    }
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let kernel = machine.kernel("nothing");
    for _ in 0..200 {
        machine.launch_graph(exec, stream);
        ok(machine.launch(kernel, AFTER, stream, &[]));
    }
    assert!((10..18).all(|node| machine.ordered(node, AFTER)));
    assert!(!machine.ordered(10, 17));
    let launches = machine.sim.launches();
    let (first, last) = (&launches[0], &launches[launches.len() - 1]);
    assert!(first.happens_before(last));
    let text = format!("{last:?}");
    let actors = text.split("clock").nth(1).map_or(0, |clock| clock.matches(", ").count());
    assert!(actors < 40, "the clock of the last launch grew: {text}");
}

/// Nodes that touch the same memory need an edge, as streams need an event.
#[test]
fn nodes_without_an_edge_race() {
    for edge in [false, true] {
        let (machine, primary) = Machine::with_primary();
        let (graph, memory) = (machine.graph(), machine.alloc(64));
        let [first, second] = [1, 2]
            .map(|value| machine.memset_node(graph, &[], &super::fill(memory, value, 64), primary));
        if edge {
            ok(call!(machine, cuGraphAddDependencies(graph, &first, &second, super::PLAIN, 1)));
        }
        let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
        ok(call!(machine, cuMemsetD8Async(memory, 3, 64, stream)));
        machine.launch_graph(exec, stream);
        machine.launch_graph(exec, stream);
        ok(call!(machine, cuMemsetD8Async(memory, 4, 64, stream)));
        let races = machine.sim.races();
        // Launches of one executable are ordered, so that each has the one race within it.
        assert_eq!(races.len(), if edge { 0 } else { 2 }, "{races:?}");
        let other = machine.stream(NON_BLOCKING);
        machine.sim.clear_races();
        machine.launch_graph(exec, other);
        assert!(!machine.sim.races().is_empty(), "the last fill was not waited for");
    }
}

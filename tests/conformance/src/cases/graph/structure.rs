//! Nodes, edges and copies of graphs, with nodes that do nothing.

use core::ptr::{null, null_mut};

use green_ctx_sys::*;
use serde_json::json;

use super::{Case, name};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::Gpu;

/// Four nodes: two beside each other after the first, and one after both.
struct Diamond {
    graph: CUgraph,
    nodes: [CUgraphNode; 4],
}

impl Diamond {
    fn new(gpu: &Gpu) -> Result<Diamond, Failure> {
        let graph = gpu.graph()?;
        let top = gpu.empty_node(graph, &[])?;
        let left = gpu.empty_node(graph, &[top])?;
        let right = gpu.empty_node(graph, &[top])?;
        let bottom = gpu.empty_node(graph, &[left, right])?;
        Ok(Diamond { graph, nodes: [top, left, right, bottom] })
    }

    fn names(&self) -> [(&'static str, CUgraphNode); 4] {
        let [top, left, right, bottom] = self.nodes;
        [("top", top), ("left", left), ("right", right), ("bottom", bottom)]
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [0, 1, 2].map(create).into();
    cases.extend([0, 2, 4, 6].map(lists));
    cases.extend([
        Case::new("graph/empty", |gpu, answer| {
            let graph = gpu.graph()?;
            let mut count = 99;
            answer.add("nodes", gpu.cuGraphGetNodes(graph, null_mut(), &raw mut count)?);
            answer.add("node_count", count);
            count = 99;
            answer.add("roots", gpu.cuGraphGetRootNodes(graph, null_mut(), &raw mut count)?);
            answer.add("root_count", count);
            count = 99;
            let edges =
                gpu.cuGraphGetEdges(graph, null_mut(), null_mut(), null_mut(), &raw mut count)?;
            answer.add("edges", edges);
            answer.add("edge_count", count);
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
            answer.add("instantiate", exec);
            let stream = gpu.stream()?;
            answer.add("launch", gpu.cuGraphLaunch(exec.must()?, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("destroy_exec", gpu.cuGraphExecDestroy(exec.out)?);
            answer.add("destroy", gpu.cuGraphDestroy(graph)?);
            Ok(())
        }),
        Case::new("graph/null-handles", |gpu, answer| {
            let mut count = 99;
            answer.add("destroy", gpu.cuGraphDestroy(null_mut())?);
            answer.add("clone", gpu.cuGraphClone(null_mut())?);
            answer.add("nodes", gpu.cuGraphGetNodes(null_mut(), null_mut(), &raw mut count)?);
            answer.add("type", gpu.cuGraphNodeGetType(null_mut())?);
            answer.add("destroy_node", gpu.cuGraphDestroyNode(null_mut())?);
            answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(null_mut(), 0)?);
            answer.add("launch", gpu.cuGraphLaunch(null_mut(), null_mut())?);
            answer.add("upload", gpu.cuGraphUpload(null_mut(), null_mut())?);
            answer.add("destroy_exec", gpu.cuGraphExecDestroy(null_mut())?);
            answer.add("flags", gpu.cuGraphExecGetFlags(null_mut())?);
            answer.add("add_empty", gpu.cuGraphAddEmptyNode(null_mut(), &[])?);
            Ok(())
        })
        .alone(),
        Case::new("graph/edges", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            answer.add("edges", gpu.edges(diamond.graph, &diamond.names())?);
            for (which, node) in diamond.names() {
                let mut nodes = [null_mut(); 4];
                let mut count = 4;
                let status = gpu.cuGraphNodeGetDependencies(
                    node,
                    nodes.as_mut_ptr(),
                    null_mut(),
                    &raw mut count,
                )?;
                answer
                    .add(format!("{which}_dependencies"), listed(status, count, &nodes, &diamond));
                let (mut nodes, mut count) = ([null_mut(); 4], 4);
                let status = gpu.cuGraphNodeGetDependentNodes(
                    node,
                    nodes.as_mut_ptr(),
                    null_mut(),
                    &raw mut count,
                )?;
                answer.add(format!("{which}_dependents"), listed(status, count, &nodes, &diamond));
            }
            Ok(())
        }),
        Case::new("graph/edges-with-half-of-the-places", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            let (mut nodes, mut count) = ([null_mut(); 4], 4);
            let from = nodes.as_mut_ptr();
            let (graph, none) = (diamond.graph, null_mut());
            answer
                .add("from", gpu.cuGraphGetEdges(graph, from, none, none.cast(), &raw mut count)?);
            count = 4;
            answer.add("to", gpu.cuGraphGetEdges(graph, none, from, none.cast(), &raw mut count)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/dependencies-of-a-new-node", |gpu, answer| {
            let (diamond, other) = (Diamond::new(gpu)?, Diamond::new(gpu)?);
            let [top, left, ..] = diamond.nodes;
            let graph = diamond.graph;
            answer.add("twice_the_same", gpu.cuGraphAddEmptyNode(graph, &[top, top])?);
            answer.add("of_another_graph", gpu.cuGraphAddEmptyNode(graph, &[other.nodes[0]])?);
            answer.add("both", gpu.cuGraphAddEmptyNode(graph, &[top, left])?);
            answer.add("nodes", gpu.nodes(graph)?.len());
            Ok(())
        }),
        Case::new("graph/null-dependency", |gpu, answer| {
            let graph = gpu.graph()?;
            answer.add("null", gpu.cuGraphAddEmptyNode(graph, &[null_mut()])?);
            answer.add("nodes", gpu.nodes(graph)?.len());
            Ok(())
        })
        .alone(),
        Case::new("graph/add-dependencies", |gpu, answer| {
            let (diamond, other) = (Diamond::new(gpu)?, Diamond::new(gpu)?);
            let [top, left, right, bottom] = diamond.nodes;
            let add = |from: CUgraphNode, to: CUgraphNode| {
                gpu.cuGraphAddDependencies(diamond.graph, &[from], &[to], null())
            };
            answer.add("none", gpu.cuGraphAddDependencies(diamond.graph, &[], &[], null())?);
            answer.add("new", add(left, right)?);
            answer.add("existing", add(top, left)?);
            answer.add("to_itself", add(top, top)?);
            answer.add("shortcut", add(top, bottom)?);
            answer.add("from_another_graph", add(other.nodes[0], left)?);
            let (from, to) = ([left, left], [top, top]);
            answer.add(
                "twice_in_one_call",
                gpu.cuGraphAddDependencies(diamond.graph, &from, &to, null())?,
            );
            answer.add("edges", gpu.edges(diamond.graph, &diamond.names())?);
            Ok(())
        }),
        Case::new("graph/cycle", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            let [top, .., bottom] = diamond.nodes;
            let add = gpu.cuGraphAddDependencies(diamond.graph, &[bottom], &[top], null())?;
            answer.add("add", add);
            answer.add("edges", gpu.edges(diamond.graph, &diamond.names())?.len());
            answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(diamond.graph, 0)?);
            let mut params = super::exec::instantiation(0);
            let reply = gpu.cuGraphInstantiateWithParams(diamond.graph, &mut params)?;
            answer.add("with_params", reply);
            answer.add("result", params.result_out.0);
            answer.add("names_a_node", !params.hErrNode_out.is_null());
            Ok(())
        }),
        Case::new("graph/remove-dependencies", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            let [top, left, right, bottom] = diamond.nodes;
            let remove = |from: CUgraphNode, to: CUgraphNode| {
                gpu.cuGraphRemoveDependencies(diamond.graph, &[from], &[to], null())
            };
            answer.add("missing", remove(left, right)?);
            answer.add("backwards", remove(left, top)?);
            answer.add("there", remove(left, bottom)?);
            answer.add("again", remove(left, bottom)?);
            answer.add("edges", gpu.edges(diamond.graph, &diamond.names())?);
            Ok(())
        }),
        Case::new("graph/destroy-node", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            answer.add("destroy", gpu.cuGraphDestroyNode(diamond.nodes[1])?);
            answer.add("nodes", gpu.nodes(diamond.graph)?.len());
            answer.add("edges", gpu.edges(diamond.graph, &diamond.names())?);
            answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(diamond.graph, 0)?);
            Ok(())
        }),
        Case::new("graph/clone", clone),
        Case::new("graph/clone-of-a-clone", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            let first = gpu.cuGraphClone(diamond.graph)?.must()?;
            let second = gpu.cuGraphClone(first)?;
            answer.add("clone", second);
            let node = gpu.cuGraphNodeFindInClone(diamond.nodes[0], first)?.must()?;
            answer.add("from_the_first", gpu.cuGraphNodeFindInClone(node, second.out)?);
            let original = gpu.cuGraphNodeFindInClone(diamond.nodes[0], second.out)?;
            answer.add("from_the_original", original);
            Ok(())
        }),
        Case::new("graph/edge-data", edge_data),
    ]);
    cases
}

fn create(flags: u32) -> Case {
    Case::new(format!("graph/create-flags={flags}"), move |gpu, answer| {
        answer.add("create", gpu.cuGraphCreate(flags)?);
        Ok(())
    })
}

/// Asking for the nodes of a graph of four with this much room.
fn lists(room: usize) -> Case {
    Case::new(format!("graph/nodes-room={room}"), move |gpu, answer| {
        let diamond = Diamond::new(gpu)?;
        let mut nodes = [core::ptr::dangling_mut(); 6];
        let mut count = room;
        let status = gpu.cuGraphGetNodes(diamond.graph, nodes.as_mut_ptr(), &raw mut count)?;
        answer.add("nodes", listed(status, count, &nodes[..room], &diamond));
        let mut roots = [core::ptr::dangling_mut(); 6];
        let mut count = room;
        let status = gpu.cuGraphGetRootNodes(diamond.graph, roots.as_mut_ptr(), &raw mut count)?;
        answer.add("roots", listed(status, count, &roots[..room], &diamond));
        Ok(())
    })
}

/// A list that the driver wrote.
fn listed(
    status: impl Fact,
    count: usize,
    nodes: &[CUgraphNode],
    diamond: &Diamond,
) -> serde_json::Value {
    let names: Vec<String> = nodes.iter().map(|node| name(*node, &diamond.names())).collect();
    json!({ "status": status.value(), "count": count, "nodes": names })
}

fn clone(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let diamond = Diamond::new(gpu)?;
    let clone = gpu.cuGraphClone(diamond.graph)?;
    answer.add("clone", clone);
    let clone = clone.must()?;
    answer.add("nodes", gpu.nodes(clone)?.len());
    let mut names = Vec::new();
    for (which, node) in diamond.names() {
        let found = gpu.cuGraphNodeFindInClone(node, clone)?;
        answer.add(format!("find_{which}"), found);
        answer.add(format!("{which}_is_another"), found.out != node);
        names.push((which, found.out));
    }
    answer.add("edges", gpu.edges(clone, &names)?);
    let late = gpu.empty_node(diamond.graph, &[])?;
    answer.add("find_a_later_node", gpu.cuGraphNodeFindInClone(late, clone)?);
    answer.add("nodes_after_that", gpu.nodes(clone)?.len());
    answer.add("find_in_the_original", gpu.cuGraphNodeFindInClone(late, diamond.graph)?);
    gpu.cuGraphDestroyNode(names[3].1)?.must()?;
    answer.add("find_a_removed_one", gpu.cuGraphNodeFindInClone(diamond.nodes[3], clone)?);
    Ok(())
}

/// Programmatic edges leave kernels only, and are not left out in silence.
fn edge_data(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let graph = gpu.graph()?;
    let mut probe = super::ProbeNode::new(gpu, 1, crate::gpu::SHORT)?;
    let params = probe.on(gpu, gpu.primary()?)?;
    let first = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    let second = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    let empty = gpu.empty_node(graph, &[])?;
    let data = |from_port, to_port, type_, reserved| CUgraphEdgeData {
        from_port,
        to_port,
        type_,
        reserved: [reserved, 0, 0, 0, 0],
    };
    for (which, from, data) in [
        ("to_port", first, data(0, 1, 0, 0)),
        ("reserved", first, data(0, 0, 0, 1)),
        ("port_without_type", first, data(1, 0, 0, 0)),
        ("type_without_port", first, data(0, 0, 1, 0)),
        ("unknown_port", first, data(3, 0, 1, 0)),
        ("unknown_type", first, data(0, 0, 2, 0)),
        ("from_an_empty_node", empty, data(1, 0, 1, 0)),
        ("programmatic", first, data(1, 0, 1, 0)),
    ] {
        answer.add(which, gpu.cuGraphAddDependencies(graph, &[from], &[second], &data)?);
    }
    let (mut from, mut to, mut count) = ([null_mut(); 1], [null_mut(); 1], 1);
    let (from, to) = (from.as_mut_ptr(), to.as_mut_ptr());
    answer.add("lossy", gpu.cuGraphGetEdges(graph, from, to, null_mut(), &raw mut count)?);
    let lossy = gpu.cuGraphNodeGetDependencies(second, from, null_mut(), &raw mut count)?;
    answer.add("lossy_dependencies", lossy);
    let mut read = data(9, 9, 9, 9);
    answer.add("whole", gpu.cuGraphGetEdges(graph, from, to, &raw mut read, &raw mut count)?);
    answer.add("data", json!([read.from_port, read.to_port, read.type_]));
    let remove = |data| gpu.cuGraphRemoveDependencies(graph, &[first], &[second], data);
    answer.add("remove_another", remove(null())?);
    answer.add("remove", remove(&raw const read)?);
    Ok(())
}

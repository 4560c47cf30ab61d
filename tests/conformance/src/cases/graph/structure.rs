//! Nodes, edges and clones of graphs, with empty nodes.

use core::ptr::null_mut;

use green_ctx_sys::*;
use serde_json::json;

use super::{Case, name};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::Gpu;

/// Four nodes: two in parallel after the first, and one after both.
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
            answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(null_mut(), 0)?);
            answer.add("launch", gpu.cuGraphLaunch(null_mut(), null_mut())?);
            answer.add("upload", gpu.cuGraphUpload(null_mut(), null_mut())?);
            answer.add("destroy_exec", gpu.cuGraphExecDestroy(null_mut())?);
            answer.add("add_empty", gpu.cuGraphAddEmptyNode(null_mut(), &[])?);
            Ok(())
        })
        .alone(),
        Case::new("graph/edges", |gpu, answer| {
            let diamond = Diamond::new(gpu)?;
            answer.add("edges", gpu.edges(diamond.graph, &diamond.names())?);
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
        Case::new("graph/clone", clone),
    ]);
    cases
}

fn create(flags: u32) -> Case {
    Case::new(format!("graph/create-flags={flags}"), move |gpu, answer| {
        answer.add("create", gpu.cuGraphCreate(flags)?);
        Ok(())
    })
}

/// A case that lists the nodes of a graph of four, with this much room.
fn lists(room: usize) -> Case {
    Case::new(format!("graph/nodes-room={room}"), move |gpu, answer| {
        let diamond = Diamond::new(gpu)?;
        let mut nodes = [core::ptr::dangling_mut(); 6];
        let mut count = room;
        let status = gpu.cuGraphGetNodes(diamond.graph, nodes.as_mut_ptr(), &raw mut count)?;
        answer.add("nodes", listed(status, count, &nodes[..room], &diamond));
        Ok(())
    })
}

/// Returns a list of nodes that the driver wrote.
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
    for ((which, node), cloned) in diamond.names().into_iter().zip(gpu.nodes(clone)?) {
        answer.add(format!("{which}_is_another"), cloned != node);
        names.push((which, cloned));
    }
    answer.add("edges", gpu.edges(clone, &names)?);
    gpu.empty_node(diamond.graph, &[])?;
    answer.add("nodes_after_that", gpu.nodes(clone)?.len());
    Ok(())
}

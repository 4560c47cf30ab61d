//! Graphs: nodes that do work, and edges that say which comes after which.
//!
//! A handle that is none of a graph, a node or an executable is answered with
//! `CUDA_ERROR_INVALID_VALUE` (cuda.h names no other error for them).

pub(crate) mod allocation;
pub(crate) mod child;
pub(crate) mod conditional;
pub(crate) mod dot;
pub(crate) mod edge;
pub(crate) mod event;
pub(crate) mod exec;
pub(crate) mod generic;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod kind;
pub(crate) mod launch;
pub(crate) mod memcpy;
pub(crate) mod memset;
pub(crate) mod node;
pub(crate) mod update;
pub(crate) mod user_object;

use std::cmp::Reverse;

use green_ctx_sys::{CUgraph_st, CUgraphNode_st, CUresult};

use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::state::State;

use edge::Edge;
pub(crate) use node::{Action, Node};
use user_object::Held;

/// A graph. Its nodes are in [`State::nodes`].
pub(crate) struct Graph {
    /// The handles of its nodes, in the order in which they were added.
    pub(crate) nodes: Vec<usize>,
    /// How many nodes were ever added, to it or to the graph that it was cloned from.
    added: usize,
    pub(crate) owner: Owner,
    /// The handle of the graph that it was cloned from, 0 where it was not.
    original: usize,
    /// Whether a node was to allocate or free memory in it, be it that the driver refused to free.
    pub(crate) of_memory: bool,
    /// The user objects that it holds.
    objects: Held,
}

/// Who destroys a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Program,
    /// The capture that makes it.
    Capture,
    /// The node that it is the child of.
    Node,
}

impl Graph {
    /// Whether the program has to destroy it.
    pub(crate) fn is_of_program(&self) -> bool {
        self.owner == Owner::Program
    }
}

impl State {
    /// A new graph without nodes.
    pub(crate) fn add_graph(&mut self, owner: Owner) -> usize {
        let handle = handle::next();
        let (nodes, objects) = (Vec::new(), Held::default());
        let graph = Graph { nodes, added: 0, owner, original: 0, of_memory: false, objects };
        self.graphs.insert(handle, graph);
        handle
    }

    /// The graph with this handle.
    pub(crate) fn graph(&self, handle: usize) -> Answer<&Graph> {
        valid(self.graphs.get(&handle))
    }

    /// Removes a graph with its nodes, and theirs.
    pub(crate) fn remove_graph(&mut self, handle: usize) {
        let Some(graph) = self.graphs.remove(&handle) else { return };
        for node in graph.nodes {
            self.remove_node(node);
        }
        self.conditions.retain(|_, condition| condition.graph() != handle);
    }

    /// Whether a graph is the only one of its kind: with a conditional handle, or with nodes that
    /// decide, allocate or free in it or in a child.
    pub(super) fn is_single(&self, handle: usize) -> bool {
        let Some(graph) = self.graphs.get(&handle) else { return false };
        let single = |node: &usize| match self.nodes[node].action {
            Action::Child(child) => self.is_single(child),
            Action::Conditional(_) => true,
            _ => false,
        };
        graph.of_memory
            || self.conditions.values().any(|condition| condition.graph() == handle)
            || graph.nodes.iter().any(single)
    }

    /// A copy of a graph, with copies of the graphs of its child nodes: nodes first, then the edges
    /// to each of them, which decides the order in which both are listed, as recorded. There is none
    /// of a graph with a conditional handle, or with nodes that decide, allocate or free.
    pub(crate) fn clone_graph(&mut self, original: usize, owner: Owner) -> Answer<usize> {
        refuse_if(self.is_single(original), CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let Graph { nodes, objects, added, .. } = self.graph(original)?;
        let (nodes, objects, added) = (nodes.clone(), objects.clone(), *added);
        let clone = self.add_graph(owner);
        let mut clones = handle::Table::default();
        for &original in &nodes {
            let Node { mut action, context, .. } = self.node(original)?.clone();
            if let Action::Child(child) = action {
                action = Action::Child(self.clone_graph(child, Owner::Node)?);
            }
            clones.insert(original, self.add_node(clone, action, context, Vec::new(), original));
        }
        for node in nodes {
            for edge in self.node(node)?.after.clone() {
                self.connect(Edge { node: clones[&edge.node], ..edge }, clones[&node]);
            }
        }
        if let Some(graph) = self.graphs.get_mut(&clone) {
            graph.original = original;
            graph.added = added;
            graph.objects = objects;
        }
        Ok(clone)
    }

    /// Refuses what would destroy a graph while a capture goes on in it (cuda.h,
    /// `cuStreamGetCaptureInfo`: all operations other than destroy and node removal are permitted;
    /// the error is not recorded).
    pub(crate) fn not_captured_into(&self, graph: usize) -> Answer {
        invalid_if(self.captures.values().any(|capture| capture.graph == graph))
    }
}

/// Writes a list of handles as the functions of graphs do: where no place is given, only the number
/// of them; otherwise as many as there is room for, null after the last, and how many were written.
/// A place without room is refused, as recorded of nodes and roots.
pub(crate) fn write_list<T>(items: &[usize], out: Ptr<*mut T>, count: Ptr<usize>) -> Answer {
    if out.is_null() {
        return count.write(items.len());
    }
    let room = count.read()?;
    invalid_if(room == 0)?;
    fill(items, out, room)?;
    count.write(room.min(items.len()))
}

/// Writes as many handles as there is room for, and null after the last.
fn fill<T>(items: &[usize], out: Ptr<*mut T>, room: usize) -> Answer {
    (0..room).try_for_each(|index| {
        let item = items.get(index).map_or(std::ptr::null_mut(), |item| handle::pointer(*item));
        out.element(index).write(item)
    })
}

/// Reads `count` handles.
pub(crate) fn read_list<T>(list: Ptr<*mut T>, count: usize) -> Answer<Vec<usize>> {
    (0..count).map(|index| Ok(list.given()?.element(index).read()?.addr())).collect()
}

pub(crate) fn create(driver: &Driver, out: Ptr<*mut CUgraph_st>, flags: u32) -> Answer {
    let mut state = driver.state();
    out.given()?;
    invalid_if(flags != 0)?;
    let graph = state.add_graph(Owner::Program);
    out.write(handle::pointer(graph))
}

pub(crate) fn destroy(driver: &Driver, graph: Ptr<CUgraph_st>) -> Answer {
    let mut state = driver.state();
    let graph = graph.address();
    invalid_if(state.graph(graph)?.owner != Owner::Program)?;
    state.not_captured_into(graph)?;
    state.remove_graph(graph);
    state.drop_unused_addresses();
    Ok(())
}

pub(crate) fn clone(
    driver: &Driver,
    out: Ptr<*mut CUgraph_st>,
    original: Ptr<CUgraph_st>,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let clone = state.clone_graph(original.address(), Owner::Program)?;
    out.write(handle::pointer(clone))
}

pub(crate) fn find_in_clone(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    original: Ptr<CUgraphNode_st>,
    clone: Ptr<CUgraph_st>,
) -> Answer {
    let state = driver.state();
    out.given()?;
    let graph = state.node(original.address())?.graph;
    let clone = state.graph(clone.address())?;
    invalid_if(clone.original != graph)?;
    let is_clone = |node: &&usize| {
        state.nodes.get(node).is_some_and(|node| node.original == original.address())
    };
    let found = clone.nodes.iter().find(is_clone);
    out.write(handle::pointer(*valid(found)?))
}

pub(crate) fn get_nodes(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    out: Ptr<*mut CUgraphNode_st>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    write_list(&state.graph(graph.address())?.nodes, out, count)
}

/// The nodes without edges to them, the one first that came to be so last, as recorded.
pub(crate) fn get_root_nodes(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    out: Ptr<*mut CUgraphNode_st>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    let nodes = state.graph(graph.address())?.nodes.iter().copied();
    let mut roots: Vec<usize> = nodes.filter(|node| state.nodes[node].after.is_empty()).collect();
    roots.sort_by_key(|root| Reverse(state.nodes[root].rooted));
    write_list(&roots, out, count)
}

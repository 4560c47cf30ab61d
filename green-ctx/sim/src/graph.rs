//! Graphs. The nodes of a graph do work, and the edges order the nodes.
//!
//! A call with an invalid handle of a graph, node or executable graph returns `CUDA_ERROR_INVALID_VALUE`;
//! cuda.h names no other error for this case.

pub(crate) mod allocation;
pub(crate) mod child;
pub(crate) mod edge;
pub(crate) mod exec;
pub(crate) mod generic;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod kind;
pub(crate) mod launch;
pub(crate) mod memcpy;
pub(crate) mod memset;
pub(crate) mod node;
pub(crate) mod user_object;

use green_ctx_sys::{CUgraph_st, CUgraphNode_st, CUresult};

use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::state::State;

pub(crate) use node::{Action, Node};
use user_object::Held;

/// A graph. The nodes of all graphs are in [`State::nodes`].
pub(crate) struct Graph {
    /// The handles of the graph's nodes, in the order in which they were added.
    pub(crate) nodes: Vec<usize>,
    pub(crate) owner: Owner,
    /// Whether the graph has a node that allocates or frees memory. A free node that the driver refused to
    /// add counts too.
    pub(crate) of_memory: bool,
    /// The user objects that the graph references.
    objects: Held,
}

/// The owner of a graph, which has to destroy the graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Program,
    /// The stream capture that builds the graph.
    Capture,
    /// The node that has this graph as its child graph.
    Node,
}

impl Graph {
    /// Returns whether the program has to destroy the graph.
    pub(crate) fn is_of_program(&self) -> bool {
        self.owner == Owner::Program
    }
}

impl State {
    /// Creates a graph without nodes.
    pub(crate) fn add_graph(&mut self, owner: Owner) -> usize {
        let handle = handle::next();
        let (nodes, objects) = (Vec::new(), Held::default());
        let graph = Graph { nodes, owner, of_memory: false, objects };
        self.graphs.insert(handle, graph);
        handle
    }

    /// Returns the graph with this handle.
    pub(crate) fn graph(&self, handle: usize) -> Answer<&Graph> {
        valid(self.graphs.get(&handle))
    }

    /// Removes a graph with its nodes and their child graphs.
    pub(crate) fn remove_graph(&mut self, handle: usize) {
        let Some(graph) = self.graphs.remove(&handle) else { return };
        for node in graph.nodes {
            self.remove_node(node);
        }
    }

    /// Returns whether the graph or a child graph has nodes that allocate or free memory. Such a graph can
    /// have only one executable graph and no clone.
    pub(super) fn is_single(&self, handle: usize) -> bool {
        let Some(graph) = self.graphs.get(&handle) else { return false };
        let single = |node: &usize| match self.nodes[node].action {
            Action::Child(child) => self.is_single(child),
            _ => false,
        };
        graph.of_memory || graph.nodes.iter().any(single)
    }

    /// Clones a graph, including child graphs. The clone gets all nodes first, and then the edges that lead
    /// to each node. This sequence determines the order in which queries list nodes and edges (recorded on hardware). A
    /// graph with nodes that allocate or free memory cannot be cloned.
    pub(crate) fn clone_graph(&mut self, original: usize, owner: Owner) -> Answer<usize> {
        refuse_if(self.is_single(original), CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let Graph { nodes, objects, .. } = self.graph(original)?;
        let (nodes, objects) = (nodes.clone(), objects.clone());
        let clone = self.add_graph(owner);
        let mut clones = handle::Table::default();
        for &original in &nodes {
            let Node { mut action, context, .. } = self.node(original)?.clone();
            if let Action::Child(child) = action {
                action = Action::Child(self.clone_graph(child, Owner::Node)?);
            }
            clones.insert(original, self.add_node(clone, action, context, Vec::new()));
        }
        for node in nodes {
            for before in self.node(node)?.after.clone() {
                self.connect(clones[&before], clones[&node]);
            }
        }
        if let Some(graph) = self.graphs.get_mut(&clone) {
            graph.objects = objects;
        }
        Ok(clone)
    }
}

/// Writes a list of handles, as the query functions of graphs do. If `out` is null, writes only the number
/// of handles. Otherwise fills the array, with null after the last handle, and writes the number of handles
/// in the array. An array of size 0 is refused (recorded for nodes and root nodes).
pub(crate) fn write_list<T>(items: &[usize], out: Ptr<*mut T>, count: Ptr<usize>) -> Answer {
    if out.is_null() {
        return count.write(items.len());
    }
    let room = count.read()?;
    invalid_if(room == 0)?;
    fill(items, out, room)?;
    count.write(room.min(items.len()))
}

/// Fills an array with handles, and with null after the last handle.
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

pub(crate) fn get_nodes(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    out: Ptr<*mut CUgraphNode_st>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    write_list(&state.graph(graph.address())?.nodes, out, count)
}

//! Edges: which node comes after which, and with which data.

use green_ctx_sys::{CUgraph_st, CUgraphEdgeData, CUgraphNode_st, CUresult};

use super::node::Action;
use super::{fill, read_list, write_list};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;

/// An edge as a node at one end has it: the node at the other, and the bytes of `CUgraphEdgeData`:
/// ports, type and five that are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) node: usize,
    pub(crate) data: [u8; 8],
}

/// `CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER`, the last port of a kernel node.
const LAST_PORT: u8 = 2;
/// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`, which goes with the ports other than 0.
const PROGRAMMATIC: u8 = 1;

impl Edge {
    /// An ordinary dependency.
    pub(crate) fn plain(node: usize) -> Edge {
        Edge { node, data: [0; 8] }
    }

    pub(super) fn is_plain(self) -> bool {
        self.data == [0; 8]
    }

    /// Edges from these nodes, with their data where there is any.
    pub(crate) fn read_all(from: &[usize], data: Ptr<[u8; 8]>) -> Answer<Vec<Edge>> {
        let edge = |(index, from): (usize, &usize)| {
            let data = if data.is_null() { [0; 8] } else { data.element(index).read()? };
            Ok(Edge { node: *from, data })
        };
        from.iter().enumerate().map(edge).collect()
    }

    /// Refuses data that cuda.h does not allow (`CUgraphEdgeData`) of an edge from a node: only
    /// kernels have ports, and the reserved bytes are zero. A programmatic dependency orders here as
    /// every other does.
    pub(super) fn check(self, state: &State) -> Answer {
        let [from_port, to_port, kind, reserved @ ..] = self.data;
        let is_kernel = matches!(state.node(self.node)?.action, Action::Kernel(_));
        let known = from_port <= LAST_PORT && (from_port == 0 || is_kernel);
        let typed = kind <= PROGRAMMATIC && (kind == PROGRAMMATIC) == (from_port != 0);
        invalid_if(!known || !typed || to_port != 0 || reserved != [0; 5])
    }
}

impl State {
    /// Adds an edge to a node, the last at both of its ends.
    pub(super) fn connect(&mut self, edge: Edge, to: usize) {
        if let Some(node) = self.nodes.get_mut(&to) {
            node.after.push(edge);
        }
        if let Some(node) = self.nodes.get_mut(&edge.node) {
            node.before.push(Edge { node: to, ..edge });
        }
    }

    /// Removes an edge, whose place the last from the same node takes, as recorded.
    pub(super) fn disconnect(&mut self, from: usize, to: usize) {
        if let Some(node) = self.nodes.get_mut(&from)
            && let Some(place) = node.before.iter().position(|edge| edge.node == to)
        {
            node.before.swap_remove(place);
        }
        if let Some(node) = self.nodes.get_mut(&to) {
            node.after.retain(|edge| edge.node != from);
            node.rooted = handle::next();
        }
    }

    /// Refuses to take nodes or edges from a graph that allocates or frees memory, as recorded.
    pub(super) fn can_shrink(&self, graph: usize) -> Answer {
        refuse_if(self.graph(graph)?.of_memory, CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}

/// Refuses to leave out data that says something.
pub(crate) fn not_lossy(edges: &[Edge], data: Ptr<CUgraphEdgeData>) -> Answer {
    let lossy = data.is_null() && edges.iter().any(|edge| !edge.is_plain());
    refuse_if(lossy, CUresult::CUDA_ERROR_LOSSY_QUERY)
}

/// Writes edges as [`write_list`] does: the nodes at one end, and the data.
fn write_edges(
    edges: &[Edge],
    ends: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    count.given()?;
    invalid_if(ends.is_null() && !data.is_null())?;
    if !ends.is_null() {
        not_lossy(edges, data)?;
    }
    if !data.is_null() {
        for (index, edge) in edges.iter().enumerate().take(count.read()?) {
            data.cast::<[u8; 8]>().element(index).write(edge.data)?;
        }
    }
    let ends_of: Vec<usize> = edges.iter().map(|edge| edge.node).collect();
    write_list(&ends_of, ends, count)
}

/// The edges of a graph, in the order of the nodes that they are from, as recorded.
pub(crate) fn get_all(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    let graph = state.graph(graph.address())?;
    let room = count.read()?;
    invalid_if(from.is_null() != to.is_null())?;
    let edges_from = |&node: &usize| {
        let before = state.nodes[&node].before.iter();
        before.map(move |edge| (Edge { node, ..*edge }, edge.node))
    };
    let (edges, heads): (Vec<Edge>, Vec<usize>) = graph.nodes.iter().flat_map(edges_from).unzip();
    write_edges(&edges, from, data, count)?;
    if to.is_null() { Ok(()) } else { fill(&heads, to, room) }
}

/// The edges to a node, or those from it.
pub(crate) fn get_of_node<const TO_IT: bool>(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    let node = state.node(node.address())?;
    write_edges(if TO_IT { &node.after } else { &node.before }, out, data, count)
}

/// Changes the edges to nodes of a graph from others of it, one after the other. A mistake leaves
/// those before it changed, as recorded of edges that are added.
fn change_edges(
    state: &mut State,
    graph: usize,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: usize,
    change: impl Fn(&mut State, usize, Edge) -> Answer,
) -> Answer {
    state.graph(graph)?;
    let (from, to) = (read_list(from, count)?, read_list(to, count)?);
    for (to, edge) in to.into_iter().zip(Edge::read_all(&from, data.cast())?) {
        invalid_if(state.node(to)?.graph != graph || state.node(edge.node)?.graph != graph)?;
        change(state, to, edge)?;
        state.rewired(graph);
    }
    Ok(())
}

/// Adds edges. A cycle shows when the graph is instantiated; an edge that is there already, or from
/// a node to itself, is refused.
pub(crate) fn add(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    let state = &mut *driver.state();
    change_edges(state, graph.address(), from, to, data, count, |state, to, edge| {
        let here = state.node(to)?.after.iter().any(|other| other.node == edge.node);
        invalid_if(here || to == edge.node)?;
        edge.check(state)?;
        state.connect(edge, to);
        Ok(())
    })
}

/// Removes edges, which have to be there: with the same data where data is given, with any where
/// none is, as recorded.
pub(crate) fn remove(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    let state = &mut *driver.state();
    state.can_shrink(graph.address())?;
    change_edges(state, graph.address(), from, to, data, count, |state, to, edge| {
        let mut others = state.node(to)?.after.iter().filter(|other| other.node == edge.node);
        invalid_if(!others.any(|other| data.is_null() || *other == edge))?;
        state.disconnect(edge.node, to);
        Ok(())
    })
}

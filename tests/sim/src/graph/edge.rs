//! Edges: which node comes after which, and with which data.

use green_ctx_sys::{CUgraph_st, CUgraphEdgeData, CUgraphNode_st, CUresult};

use super::node::Action;
use super::{read_list, write_list};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::state::State;

/// What a node comes after, with the bytes of `CUgraphEdgeData`: ports, type and five that are
/// reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) data: [u8; 8],
}

/// `CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER`, the last port of a kernel node.
const LAST_PORT: u8 = 2;
/// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`, which goes with the ports other than 0.
const PROGRAMMATIC: u8 = 1;

impl Edge {
    /// An ordinary dependency.
    pub(crate) fn plain(from: usize) -> Edge {
        Edge { from, data: [0; 8] }
    }

    pub(super) fn is_plain(self) -> bool {
        self.data == [0; 8]
    }

    /// Edges from these nodes, with their data where there is any.
    pub(crate) fn read_all(from: &[usize], data: Ptr<[u8; 8]>) -> Answer<Vec<Edge>> {
        let edge = |(index, from): (usize, &usize)| {
            let data = if data.is_null() { [0; 8] } else { data.element(index).read()? };
            Ok(Edge { from: *from, data })
        };
        from.iter().enumerate().map(edge).collect()
    }

    /// Refuses data that cuda.h does not allow (`CUgraphEdgeData`): only kernels have ports, and
    /// the reserved bytes are zero. A programmatic dependency orders here as every other does.
    pub(super) fn check(self, state: &State) -> Answer {
        let [from_port, to_port, kind, reserved @ ..] = self.data;
        let is_kernel = matches!(state.node(self.from)?.action, Action::Kernel(_));
        let known = from_port <= LAST_PORT && (from_port == 0 || is_kernel);
        let typed = kind <= PROGRAMMATIC && (kind == PROGRAMMATIC) == (from_port != 0);
        invalid_if(!known || !typed || to_port != 0 || reserved != [0; 5])
    }
}

/// Refuses to leave out data that says something.
pub(crate) fn not_lossy(edges: &[Edge], data: Ptr<CUgraphEdgeData>) -> Answer {
    if data.is_null() && edges.iter().any(|edge| !edge.is_plain()) {
        return Err(CUresult::CUDA_ERROR_LOSSY_QUERY);
    }
    Ok(())
}

/// Writes edges as [`write_list`] does: the nodes at one end, and the data.
fn write_edges(
    edges: &[Edge],
    ends: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    count.given()?;
    if ends.is_null() {
        return if data.is_null() {
            count.write(edges.len())
        } else {
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        };
    }
    not_lossy(edges, data)?;
    write_data(edges, data, count.read()?);
    let ends_of: Vec<usize> = edges.iter().map(|edge| edge.from).collect();
    write_list(&ends_of, ends, count)
}

fn write_data(edges: &[Edge], data: Ptr<CUgraphEdgeData>, room: usize) {
    let data = data.cast::<[u8; 8]>();
    if !data.is_null() {
        for (index, edge) in edges.iter().enumerate().take(room) {
            data.element(index).write_if_given(edge.data);
        }
    }
}

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
    count.given()?;
    invalid_if(from.is_null() != to.is_null())?;
    let (mut edges, mut heads) = (Vec::new(), Vec::new());
    for node in &graph.nodes {
        let after = &state.nodes[node].after;
        edges.extend_from_slice(after);
        heads.extend(after.iter().map(|_| *node));
    }
    if !to.is_null() {
        not_lossy(&edges, data)?;
        let room = count.read()?;
        for index in 0..room {
            let head = heads.get(index).map_or(std::ptr::null_mut(), |node| handle::pointer(*node));
            to.element(index).write(head)?;
        }
    }
    write_edges(&edges, from, data, count)
}

pub(crate) fn get_dependencies(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    write_edges(&state.node(node.address())?.after, out, data, count)
}

pub(crate) fn get_dependents(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    let handle = node.address();
    let graph = state.graph(state.node(handle)?.graph)?;
    let mut edges = Vec::new();
    for other in &graph.nodes {
        let after = state.nodes[other].after.iter().find(|edge| edge.from == handle);
        edges.extend(after.map(|edge| Edge { from: *other, data: edge.data }));
    }
    write_edges(&edges, out, data, count)
}

/// Reads edges between nodes of a graph, as pairs of the later node and the edge to it.
fn read_pairs(
    state: &State,
    graph: Ptr<CUgraph_st>,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: usize,
) -> Answer<Vec<(usize, Edge)>> {
    let graph = graph.address();
    state.graph(graph)?;
    let (from, to) = (read_list(from, count)?, read_list(to, count)?);
    let edges = Edge::read_all(&from, data.cast())?;
    Ok(to.into_iter().zip(edges).collect())
}

/// Refuses an edge to or from a node of another graph.
fn is_within(state: &State, graph: usize, to: usize, edge: Edge) -> Answer {
    invalid_if(state.node(to)?.graph != graph || state.node(edge.from)?.graph != graph)
}

/// Adds edges. A cycle shows when the graph is instantiated; an edge that is there already, or from
/// a node to itself, is refused. Those before it in the list are added nevertheless, as recorded.
pub(crate) fn add(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    let mut state = driver.state();
    let pairs = read_pairs(&state, graph, from, to, data, count)?;
    let graph = graph.address();
    for (to, edge) in pairs {
        is_within(&state, graph, to, edge)?;
        let here = state.node(to)?.after.iter().any(|other| other.from == edge.from);
        invalid_if(here || to == edge.from)?;
        edge.check(&state)?;
        if let Some(node) = state.nodes.get_mut(&to) {
            node.after.push(edge);
        }
        state.rewired(graph);
    }
    Ok(())
}

/// Removes edges, which have to be there: with the same data where data is given, with any where
/// none is, as recorded. A mistake leaves those before it removed, as it does where edges are added
/// (not recorded of this function). A graph with nodes that allocate or free keeps its edges (cuda.h,
/// `cuGraphRemoveDependencies`; the error is the one that such nodes are kept with).
pub(crate) fn remove(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    from: Ptr<*mut CUgraphNode_st>,
    to: Ptr<*mut CUgraphNode_st>,
    data: Ptr<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    let mut state = driver.state();
    let pairs = read_pairs(&state, graph, from, to, data, count)?;
    let graph = graph.address();
    let actions = state.graph(graph)?.nodes.iter().map(|node| &state.nodes[node].action);
    if actions.into_iter().any(|action| matches!(action, Action::Allocate(_) | Action::Free(_))) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    for (to, edge) in pairs {
        is_within(&state, graph, to, edge)?;
        let is_meant =
            |other: &Edge| other.from == edge.from && (data.is_null() || other.data == edge.data);
        let place = state.node(to)?.after.iter().position(is_meant);
        let place = place.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if let Some(node) = state.nodes.get_mut(&to) {
            node.after.remove(place);
        }
        state.rewired(graph);
    }
    Ok(())
}

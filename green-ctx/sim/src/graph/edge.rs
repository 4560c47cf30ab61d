//! Edges between nodes. No simulated function sets the data of an edge.

use green_ctx_sys::{CUgraph_st, CUgraphEdgeData, CUgraphNode_st};

use super::{fill, write_list};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::state::State;

impl State {
    /// Adds an edge between two nodes, after the existing edges of both nodes.
    pub(super) fn connect(&mut self, from: usize, to: usize) {
        if let Some(node) = self.nodes.get_mut(&to) {
            node.after.push(from);
        }
        if let Some(node) = self.nodes.get_mut(&from) {
            node.before.push(to);
        }
    }
}

/// Writes all edges of a graph, ordered by source node (recorded on hardware).
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
    invalid_if(from.is_null() != to.is_null() || from.is_null() && !data.is_null())?;
    let edges_from = |&node: &usize| state.nodes[&node].before.iter().map(move |to| (node, *to));
    let (tails, heads): (Vec<usize>, Vec<usize>) = graph.nodes.iter().flat_map(edges_from).unzip();
    if !data.is_null() {
        let mut places = (0..tails.len().min(room)).map(|index| data.cast().element(index));
        places.try_for_each(|place| place.write([0_u8; 8]))?;
    }
    write_list(&tails, from, count)?;
    if to.is_null() { Ok(()) } else { fill(&heads, to, room) }
}

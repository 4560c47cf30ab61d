//! Nodes that are graphs.

use green_ctx_sys::{CUgraph_st, CUgraphNode_st, CUresult};

use super::Owner;
use super::node::{Action, OTHER_KIND, Place};
use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// Adds a node that launches a copy of a graph. A graph that is to be its own child ends the
/// process, as recorded.
pub(crate) fn add(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    child: Ptr<CUgraph_st>,
) -> Answer {
    Place::new(out, graph, after, count).add(driver, |state| {
        Ok((Action::Child(copy_of(state, child.address(), graph.address())?), 0))
    })
}

/// Copies a graph for a node of another.
pub(super) fn copy_of(state: &mut State, child: usize, parent: usize) -> Answer<usize> {
    if child == parent {
        crash::segmentation_fault();
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    state.clone_graph(child, Owner::Node)
}

/// The node's own graph, which it keeps.
pub(crate) fn get_graph(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUgraph_st>,
) -> Answer {
    let state = driver.state();
    match state.node(node.address())?.action {
        Action::Child(child) => out.write(handle::pointer(child)),
        _ => Err(OTHER_KIND),
    }
}

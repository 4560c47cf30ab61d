//! Nodes that are graphs.

use green_ctx_sys::{CUgraph_st, CUgraphNode_st};

use super::Owner;
use super::node::{Action, OTHER_KIND, Place};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};

/// Adds a node that launches a copy of a graph.
pub(crate) fn add(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    child: Ptr<CUgraph_st>,
) -> Answer {
    Place::new(out, graph, after, count).add(driver, |state| {
        let copy = state.clone_graph(child.address(), Owner::Node)?;
        Ok((Action::Child(copy), 0))
    })
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

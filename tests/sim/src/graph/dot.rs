//! Writing a graph down as a DOT file.

use std::ffi::c_char;
use std::fmt::Write as _;

use green_ctx_sys::{CUgraph_st, CUresult};

use super::node::Action;
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// Describes the nodes of a graph and of those in it, and their edges. The wording is the
/// simulator's own: no program can rely on the driver's.
fn describe(state: &State, graph: usize, text: &mut String) -> Answer {
    for handle in &state.graph(graph)?.nodes {
        let node = state.node(*handle)?;
        let label = match &node.action {
            Action::Kernel(kernel) => format!("KERNEL {}", kernel.work.info.name),
            action => action.kind().name().map_or_else(String::new, |name| {
                name.trim_start_matches("CU_GRAPH_NODE_TYPE_").to_owned()
            }),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "\"n{handle:x}\" [label=\"{label}\"];");
        for edge in &node.after {
            let _ = writeln!(text, "\"n{:x}\" -> \"n{handle:x}\";", edge.node);
        }
        for graph in node.action.graphs() {
            let _ = writeln!(text, "subgraph \"cluster_{graph:x}\" {{");
            describe(state, *graph, text)?;
            text.push_str("}\n");
        }
    }
    Ok(())
}

/// Writes the file, with the same detail whatever the flags.
pub(crate) fn print(
    driver: &Driver,
    graph: Ptr<CUgraph_st>,
    path: Ptr<c_char>,
    _flags: u32,
) -> Answer {
    let state = driver.state();
    let path = path.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mut text = format!("digraph \"graph_{:x}\" {{\n", graph.address());
    describe(&state, graph.address(), &mut text)?;
    text.push_str("}\n");
    drop(state);
    std::fs::write(path, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}

//! Functions for graph nodes that allocate and free memory.

use core::ptr::null_mut;

use green_ctx_sys::*;

use super::{Calls, Reply};

calls! {
    cuGraphAddMemAllocNode(
        graph: CUgraph, after: &[CUgraphNode], params: &mut CUDA_MEM_ALLOC_NODE_PARAMS)
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), params);
    cuGraphAddMemFreeNode(graph: CUgraph, after: &[CUgraphNode], address: CUdeviceptr)
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), address);
}

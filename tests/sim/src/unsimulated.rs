//! Functions that can be looked up and are not simulated yet: what they would do cannot be told
//! from the outside without doing it, so they refuse. The crate's documentation lists them.

use green_ctx_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUctx_st, CUgraph_st, CUgraphNode_st, CUresult, CUstream_st,
};

use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};

fn refuse(driver: &Driver, stream: Ptr<CUstream_st>) -> Answer {
    driver.state().stream(stream.address())?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// When memory gets a value is not known before somebody submits the write, and time is known when
/// work is submitted: a stream cannot wait for what may never be.
pub(crate) fn wait_value_32(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u32,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

pub(crate) fn wait_value_64(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u64,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

/// The first form of operations on memory in a stream, of CUDA 8 and 9. No driver of today has it
/// unless its kernel module is told so (`CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1`, which is 0).
pub(crate) fn first_value_32(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u32,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

/// See [`first_value_32`].
pub(crate) fn first_value_64(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    _address: u64,
    _value: u64,
    _flags: u32,
) -> Answer {
    refuse(driver, stream)
}

/// Nodes that allocate would need memory that is there in some launches and not in others.
pub(crate) fn add_mem_alloc_node(
    driver: &Driver,
    _out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    _after: Ptr<*mut CUgraphNode_st>,
    _count: usize,
    _params: Ptr<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Answer {
    refuse_in_graph(driver, graph)
}

pub(crate) fn add_mem_free_node(
    driver: &Driver,
    _out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    _after: Ptr<*mut CUgraphNode_st>,
    _count: usize,
    _address: u64,
) -> Answer {
    refuse_in_graph(driver, graph)
}

/// No node allocates.
pub(crate) fn mem_alloc_node_get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    _out: Ptr<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Answer {
    driver.state().node(node.address())?;
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// No node frees.
pub(crate) fn mem_free_node_get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    _out: Ptr<u64>,
) -> Answer {
    driver.state().node(node.address())?;
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Conditions are set by kernels, with a function of the device that no closure has.
pub(crate) fn conditional_handle_create(
    driver: &Driver,
    _out: Ptr<u64>,
    graph: Ptr<CUgraph_st>,
    _context: Ptr<CUctx_st>,
    _value: u32,
    _flags: u32,
) -> Answer {
    refuse_in_graph(driver, graph)
}

fn refuse_in_graph(driver: &Driver, graph: Ptr<CUgraph_st>) -> Answer {
    driver.state().graph(graph.address())?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

//! The nodes of a graph.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

use green_ctx_sys::{
    Api, CUDA_KERNEL_NODE_PARAMS_v2, CUctx_st, CUfunction, CUgraph, CUgraphNode, CUgraphNodeParams,
    CUgraphNodeType,
};

use crate::handle::error::call;
use crate::handle::error::{Result, check};
use crate::handle::listing::NodeKind;
use crate::handle::raw::Raw;

/// A node of a graph or of one of its child graphs. The node is valid until the graph is changed.
pub(super) struct Node {
    pub(super) raw: CUgraphNode,
    pub(super) kind: NodeKind,
    /// The node's position among the graph's nodes, in the driver's order. For a node of a child graph, the position
    /// of the child-graph node comes first.
    path: Vec<usize>,
}

impl Node {
    /// Returns the node's position as text, for example `3`, or `3.0` for a node of a child graph.
    pub(super) fn name(&self) -> String {
        let indices: Vec<String> = self.path.iter().map(ToString::to_string).collect();
        indices.join(".")
    }

    /// Returns the parameters of a kernel node. The node owns the arrays to which the parameters point.
    pub(super) fn kernel(&self, api: &Api) -> Result<CUDA_KERNEL_NODE_PARAMS_v2> {
        let mut params = MaybeUninit::zeroed();
        // SAFETY: the node is a live kernel node, and `params` has the type that this call writes.
        unsafe { call!(api, cuGraphKernelNodeGetParams(self.raw, params.as_mut_ptr())) }?;
        // SAFETY: all-zero bytes are valid for the integers and pointers in `params`, and the driver wrote the
        // parameters.
        Ok(unsafe { params.assume_init() })
    }

    /// Returns the context of a node that uses SMs. Returns `None` if the driver does not report the context: before
    /// CUDA 13.2, the driver reports the contexts of kernels only.
    pub(super) fn context(&self, api: &Api) -> Result<Option<Raw<CUctx_st>>> {
        if self.kind == NodeKind::Kernel {
            return Ok(Raw::new(self.kernel(api)?.ctx));
        }
        let (true, Ok(_)) = (self.kind.uses_sms(), api.cuGraphNodeGetParams()) else {
            return Ok(None);
        };
        let mut params = MaybeUninit::<CUgraphNodeParams>::zeroed();
        // SAFETY: the node is alive, and `params` has the type that this call writes.
        unsafe { call!(api, cuGraphNodeGetParams(self.raw, params.as_mut_ptr())) }?;
        // SAFETY: all-zero bytes are valid for the integers and pointers in `params`.
        let params = unsafe { params.assume_init() };
        let kinds = params.__bindgen_anon_1;
        Ok(Raw::new(match self.kind {
            // SAFETY: the node is a memcpy node, so the driver wrote this field of the union.
            NodeKind::Memcpy => unsafe { kinds.memcpy.copyCtx },
            // SAFETY: the node is a memset node, so the driver wrote this field of the union.
            NodeKind::Memset => unsafe { kinds.memset.ctx },
            // SAFETY: `uses_sms` leaves only conditional nodes, so the driver wrote this field of the union.
            _ => unsafe { kinds.conditional.ctx },
        }))
    }
}

/// Returns the name of a kernel. Returns `None` before CUDA 12.3, since older drivers do not report the name.
pub(super) fn kernel_name(api: &Api, function: CUfunction) -> Result<Option<String>> {
    let Ok(get) = api.cuFuncGetName() else { return Ok(None) };
    let mut name = ptr::null();
    // SAFETY: the function is alive, since a node of a live graph uses it. `name` is a live local.
    check("cuFuncGetName", unsafe { get(&raw mut name, function) })?;
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: the name ends with a NUL, and the driver keeps it in memory while the function is loaded.
    let name = unsafe { CStr::from_ptr(name) };
    Ok(Some(name.to_string_lossy().into_owned()))
}

/// Returns the number of nodes in a graph.
pub(super) fn count(api: &Api, graph: CUgraph) -> Result<usize> {
    let mut count = 0;
    // SAFETY: the graph is alive, and `count` is a live local. If the array is null, the driver writes only the
    // count.
    unsafe { call!(api, cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count)) }?;
    Ok(count)
}

/// Returns every node of a graph. The nodes of a child graph follow the node that contains the child graph.
pub(super) fn walk(api: &Api, graph: CUgraph) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    descend(api, graph, &[], &mut nodes)?;
    Ok(nodes)
}

fn descend(api: &Api, graph: CUgraph, above: &[usize], into: &mut Vec<Node>) -> Result<()> {
    let mut count = count(api, graph)?;
    if count == 0 {
        // The driver does not accept an empty array.
        return Ok(());
    }
    let mut handles = vec![ptr::null_mut(); count];
    // SAFETY: the graph is alive, and the array has room for `count` nodes.
    unsafe { call!(api, cuGraphGetNodes(graph, handles.as_mut_ptr(), &raw mut count)) }?;
    handles.truncate(count);
    for (index, raw) in handles.into_iter().enumerate() {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is alive, and `kind` is a live local.
        unsafe { call!(api, cuGraphNodeGetType(raw, &raw mut kind)) }?;
        let path = [above, &[index]].concat();
        let kind = NodeKind::from_raw(kind);
        into.push(Node { raw, kind, path: path.clone() });
        if kind == NodeKind::ChildGraph {
            let mut child = ptr::null_mut();
            // SAFETY: the node is a live child-graph node, and `child` is a live local.
            unsafe { call!(api, cuGraphChildGraphNodeGetGraph(raw, &raw mut child)) }?;
            descend(api, child, &path, into)?;
        }
    }
    Ok(())
}

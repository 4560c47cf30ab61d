//! What a graph is made of.
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

/// A node of a graph, or of a child graph in it. It is good for as long as nobody changes the graph.
pub(super) struct Node {
    pub(super) raw: CUgraphNode,
    pub(super) kind: NodeKind,
    /// Its position among the graph's nodes, in the driver's order; in a child graph after that of the
    /// child's node.
    path: Vec<usize>,
}

impl Node {
    /// The position as text: `3`, and `3.0` in a child graph.
    pub(super) fn name(&self) -> String {
        let indices: Vec<String> = self.path.iter().map(ToString::to_string).collect();
        indices.join(".")
    }

    /// What a kernel node launches. The arrays that it points to are the node's.
    pub(super) fn kernel(&self, api: &Api) -> Result<CUDA_KERNEL_NODE_PARAMS_v2> {
        let mut params = MaybeUninit::zeroed();
        // SAFETY: the node is alive and launches a kernel, the pointer is to a value of this type.
        unsafe { call!(api, cuGraphKernelNodeGetParams(self.raw, params.as_mut_ptr())) }?;
        // SAFETY: integers and pointers may be zero, and the driver has filled them in.
        Ok(unsafe { params.assume_init() })
    }

    /// The context of a node that uses SMs; `None` where the driver does not report it. Before CUDA 13.2
    /// it reports those of kernels only.
    pub(super) fn context(&self, api: &Api) -> Result<Option<Raw<CUctx_st>>> {
        if self.kind == NodeKind::Kernel {
            return Ok(Raw::new(self.kernel(api)?.ctx));
        }
        let (true, Ok(_)) = (self.kind.uses_sms(), api.cuGraphNodeGetParams()) else {
            return Ok(None);
        };
        let mut params = MaybeUninit::<CUgraphNodeParams>::zeroed();
        // SAFETY: the node is alive, the pointer is to a value of this type.
        unsafe { call!(api, cuGraphNodeGetParams(self.raw, params.as_mut_ptr())) }?;
        // SAFETY: integers and pointers may be zero.
        let params = unsafe { params.assume_init() };
        let kinds = params.__bindgen_anon_1;
        Ok(Raw::new(match self.kind {
            // SAFETY: the driver has filled in the parameters of the node's kind.
            NodeKind::Memcpy => unsafe { kinds.memcpy.copyCtx },
            // SAFETY: as above.
            NodeKind::Memset => unsafe { kinds.memset.ctx },
            // SAFETY: as above.
            _ => unsafe { kinds.conditional.ctx },
        }))
    }
}

/// The name of a kernel; `None` before CUDA 12.3, where the driver does not report it.
pub(super) fn kernel_name(api: &Api, function: CUfunction) -> Result<Option<String>> {
    let Ok(get) = api.cuFuncGetName() else { return Ok(None) };
    let mut name = ptr::null();
    // SAFETY: the function is alive, since a node has it; the pointer is to a live pointer.
    check("cuFuncGetName", unsafe { get(&raw mut name, function) })?;
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: the driver keeps a terminated name for as long as the function is loaded.
    let name = unsafe { CStr::from_ptr(name) };
    Ok(Some(name.to_string_lossy().into_owned()))
}

/// How many nodes a graph has.
pub(super) fn count(api: &Api, graph: CUgraph) -> Result<usize> {
    let mut count = 0;
    // SAFETY: the graph is alive, the pointer is to a live number; without an array it is filled in.
    unsafe { call!(api, cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count)) }?;
    Ok(count)
}

/// Every node of a graph, those of child graphs after the child's node.
pub(super) fn walk(api: &Api, graph: CUgraph) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    descend(api, graph, &[], &mut nodes)?;
    Ok(nodes)
}

fn descend(api: &Api, graph: CUgraph, above: &[usize], into: &mut Vec<Node>) -> Result<()> {
    let mut count = count(api, graph)?;
    if count == 0 {
        // The driver takes no array without room.
        return Ok(());
    }
    let mut handles = vec![ptr::null_mut(); count];
    // SAFETY: the graph is alive, and the array has room for so many nodes.
    unsafe { call!(api, cuGraphGetNodes(graph, handles.as_mut_ptr(), &raw mut count)) }?;
    handles.truncate(count);
    for (index, raw) in handles.into_iter().enumerate() {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is alive, the pointer is to a live value.
        unsafe { call!(api, cuGraphNodeGetType(raw, &raw mut kind)) }?;
        let path = [above, &[index]].concat();
        let kind = NodeKind::from_raw(kind);
        into.push(Node { raw, kind, path: path.clone() });
        if kind == NodeKind::ChildGraph {
            let mut child = ptr::null_mut();
            // SAFETY: the node is alive and a child graph's, the pointer is to a live handle.
            unsafe { call!(api, cuGraphChildGraphNodeGetGraph(raw, &raw mut child)) }?;
            descend(api, child, &path, into)?;
        }
    }
    Ok(())
}

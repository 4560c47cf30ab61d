//! Moving a graph to another partition.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem::MaybeUninit;
use std::ptr;

use green_ctx_sys::{
    Api, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D_v2, CUDA_MEMSET_NODE_PARAMS_v1,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};

use super::node::{self, Node, NodeKind};
use super::{Graph, Homes};
use crate::context::Context;
use crate::current::Scope;
use crate::error::{Error, Result, call};
use crate::trace;

/// Why a graph was not moved. The graph is what it was, and there is no copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetargetError {
    /// A node is of a kind that no copy of a graph can have.
    #[error(
        "node {node} ({kind}) cannot be moved: {reason}; capture the graph on a stream of the partition instead"
    )]
    Immovable {
        /// The node's place in the graph, as in [`NodeAudit::node`](super::NodeAudit::node).
        node: String,
        /// What the node does.
        kind: NodeKind,
        /// Why it cannot be moved.
        reason: &'static str,
    },
    /// The blocks of a cooperative kernel, or of one cluster, must be on SMs at the same time, and
    /// the partition has too few. On hardware such a graph would never end (recorded on an H200,
    /// driver 580.159.04).
    #[error(
        "node {node} ({}) needs {needed} {what} at the same time, and the partition's {sm_count} SMs \
         hold {fit}", kernel.as_deref().unwrap_or("a kernel")
    )]
    DoesNotFit {
        /// The node's place in the graph.
        node: String,
        /// The kernel's name, where the driver tells.
        kernel: Option<String>,
        /// What does not fit: `blocks`, or `clusters`.
        what: &'static str,
        /// How many of them must be there at once.
        needed: u64,
        /// How many the partition holds at once.
        fit: u64,
        /// The partition's SMs.
        sm_count: u32,
    },
    /// The driver took the new context without an error, and kept the old one.
    #[error("node {node} ({}) stayed in its context", kernel.as_deref().unwrap_or("a kernel"))]
    Stayed {
        /// The node's place in the graph.
        node: String,
        /// The kernel's name, where the driver tells.
        kernel: Option<String>,
    },
    /// The driver failed, or graph and context are of different devices.
    #[error(transparent)]
    Error(#[from] Error),
}

impl Graph {
    /// A copy of the graph whose kernels, copies and fills run on the SMs of another context, those
    /// in child graphs included. What uses no SMs (host functions, events, semaphores, batches of
    /// memory operations) is copied as it is.
    ///
    /// Functions of modules can be moved as well as kernels of libraries. Launch attributes stay
    /// (cluster, cooperative, priority). A copy of 500 kernels takes less than the instantiation that
    /// follows; keep what comes of it in a [`GraphCache`](super::GraphCache).
    ///
    /// # Errors
    ///
    /// [`RetargetError`], which names the node that cannot be moved: allocations and frees, whose
    /// address is the original's, and conditional nodes, since no driver so far copies a graph that
    /// has one of them (`CUDA_ERROR_NOT_SUPPORTED`, recorded on an H200, driver 580.159.04), and
    /// kernels that would not fit.
    #[doc(alias("cuGraphClone", "cuGraphKernelNodeSetParams"))]
    pub fn retarget(&self, context: &Context) -> Result<Graph, RetargetError> {
        trace::span!("retarget", device = self.device().ordinal(), context = context.label());
        let device = self.device();
        if context.device() != device {
            return Err(Error::DeviceMismatch { what: "the graph and the context" }.into());
        }
        device.driver().check_process()?;
        {
            let _alone = self.alone();
            let nodes = node::walk(device.api(), self.as_raw())?;
            nodes.iter().try_for_each(refuse)?;
        }
        let homes = Homes { ours: vec![context.clone()], others: false };
        let copy = self.copy(homes)?;
        let has_clusters = device.compute_capability()?.major >= 9;
        let sm_count = context.sm_count()?;
        let mover = Mover { api: device.api(), context, sm_count, has_clusters };
        {
            // The node goes to the context that is current, whatever context is given with it
            // (recorded on an H200, driver 580.159.04).
            let _scope = Scope::enter(device.driver(), context.as_raw())?;
            for node in node::walk(device.api(), copy.as_raw())? {
                mover.apply(&node)?;
            }
        }
        Ok(copy)
    }
}

/// Refuses a node that no copy can have.
fn refuse(node: &Node) -> Result<(), RetargetError> {
    let reason = match node.kind {
        NodeKind::MemAlloc | NodeKind::MemFree => "the memory's address is this graph's own",
        NodeKind::Conditional => "the driver copies no graph that has such nodes",
        NodeKind::Unknown(_) => "this version of the library does not know what it is",
        _ => return Ok(()),
    };
    Err(RetargetError::Immovable { node: node.name(), kind: node.kind, reason })
}

/// Moves nodes to a context, which is current.
struct Mover<'a> {
    api: &'a Api,
    context: &'a Context,
    sm_count: u32,
    /// Whether the device has clusters, and nodes that attribute.
    has_clusters: bool,
}

impl Mover<'_> {
    fn apply(&self, node: &Node) -> Result<(), RetargetError> {
        match node.kind {
            NodeKind::Kernel => self.kernel(node),
            NodeKind::Memcpy => Ok(self.memcpy(node)?),
            NodeKind::Memset => Ok(self.memset(node)?),
            _ => Ok(()),
        }
    }

    fn kernel(&self, node: &Node) -> Result<(), RetargetError> {
        let api = self.api;
        let params = node.kernel(api)?;
        self.check_fit(node, &params)?;
        self.set_kernel(node, &params)?;
        if node.kernel(api)?.ctx == self.context.as_raw() {
            return Ok(());
        }
        let (node, kernel) = (node.name(), node::kernel_name(api, params.func)?);
        Err(RetargetError::Stayed { node, kernel })
    }

    fn set_kernel(&self, node: &Node, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Result<()> {
        // SAFETY: the node is alive, and the parameters are its own, which the driver copies.
        unsafe { call!(self.api, cuGraphKernelNodeSetParams(node.raw, params)) }
    }

    fn memcpy(&self, node: &Node) -> Result<()> {
        let mut params = MaybeUninit::<CUDA_MEMCPY3D_v2>::zeroed();
        // SAFETY: the node is alive and copies, the pointer is to a value of this type.
        unsafe { call!(self.api, cuGraphMemcpyNodeGetParams(node.raw, params.as_mut_ptr())) }?;
        // SAFETY: the node is alive, and the parameters are its own.
        unsafe { call!(self.api, cuGraphMemcpyNodeSetParams(node.raw, params.as_ptr())) }
    }

    fn memset(&self, node: &Node) -> Result<()> {
        let mut params = MaybeUninit::<CUDA_MEMSET_NODE_PARAMS_v1>::zeroed();
        // SAFETY: the node is alive and fills, the pointer is to a value of this type.
        unsafe { call!(self.api, cuGraphMemsetNodeGetParams(node.raw, params.as_mut_ptr())) }?;
        // SAFETY: the node is alive, and the parameters are its own.
        unsafe { call!(self.api, cuGraphMemsetNodeSetParams(node.raw, params.as_ptr())) }
    }

    /// Refuses a kernel whose blocks wait for each other and do not all fit.
    fn check_fit(
        &self,
        node: &Node,
        params: &CUDA_KERNEL_NODE_PARAMS_v2,
    ) -> Result<(), RetargetError> {
        let refuse = |what, needed, fit| {
            let (node, kernel) = (node.name(), node::kernel_name(self.api, params.func)?);
            let sm_count = self.sm_count;
            Err(RetargetError::DoesNotFit { node, kernel, what, needed, fit, sm_count })
        };
        let cooperative = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        // SAFETY: the attribute is a number, which the driver has filled in.
        if unsafe { self.attribute(node, cooperative)?.cooperative } != 0 {
            let blocks = [params.gridDimX, params.gridDimY, params.gridDimZ];
            let blocks = blocks.into_iter().map(u64::from).product();
            let fit = self.resident_blocks(params)?;
            if blocks > fit {
                return refuse("blocks", blocks, fit);
            }
        }
        if !self.has_clusters {
            return Ok(());
        }
        let cluster = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let value = self.attribute(node, cluster)?;
        // SAFETY: the attribute is three numbers, which the driver has filled in.
        let sides = unsafe { value.clusterDim };
        if sides.x.max(sides.y).max(sides.z) > 1 && self.resident_clusters(params, value)? == 0 {
            return refuse("clusters", 1, 0);
        }
        Ok(())
    }

    fn attribute(&self, node: &Node, id: CUlaunchAttributeID) -> Result<CUlaunchAttributeValue> {
        let mut value = MaybeUninit::<CUlaunchAttributeValue>::zeroed();
        // SAFETY: the node is alive and launches a kernel, the pointer is to a value of this type.
        unsafe {
            call!(self.api, cuGraphKernelNodeGetAttribute(node.raw, id, value.as_mut_ptr()))
        }?;
        // SAFETY: bytes that may all be zero, and that the driver has filled in.
        Ok(unsafe { value.assume_init() })
    }

    /// How many of a kernel's blocks are on the context's SMs at the same time.
    fn resident_blocks(&self, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Result<u64> {
        let threads = params.blockDimX * params.blockDimY * params.blockDimZ;
        let (threads, shared) = (threads.cast_signed(), params.sharedMemBytes as usize);
        let mut blocks = 0;
        // SAFETY: the function is alive, since a node has it; the pointer is to a live number.
        unsafe {
            call!(
                self.api,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut blocks,
                    params.func,
                    threads,
                    shared
                )
            )
        }?;
        Ok(u64::from(blocks.unsigned_abs()) * u64::from(self.sm_count))
    }

    /// How many of a kernel's clusters are on the context's SMs at the same time.
    fn resident_clusters(
        &self,
        params: &CUDA_KERNEL_NODE_PARAMS_v2,
        value: CUlaunchAttributeValue,
    ) -> Result<u64> {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value };
        let config = CUlaunchConfig {
            gridDimX: params.gridDimX,
            gridDimY: params.gridDimY,
            gridDimZ: params.gridDimZ,
            blockDimX: params.blockDimX,
            blockDimY: params.blockDimY,
            blockDimZ: params.blockDimZ,
            sharedMemBytes: params.sharedMemBytes,
            // The default stream of the current context.
            hStream: ptr::null_mut(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let mut clusters = 0;
        // SAFETY: the function is alive, the configuration has one attribute, which lives on, and the
        // pointer is to a live number.
        unsafe {
            call!(
                self.api,
                cuOccupancyMaxActiveClusters(&raw mut clusters, params.func, &raw const config)
            )
        }?;
        Ok(u64::from(clusters.unsigned_abs()))
    }
}

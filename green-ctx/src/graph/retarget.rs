//! Retargeting: moving a graph to another partition.
//!
//! The driver puts a node in the context that is current when the node's parameters are set, whatever context the
//! parameters name (recorded on an H200, driver 580.159.04). So a move copies the graph, makes the partition's
//! context current, and sets the parameters of every node to the values that the node already has. A move works for
//! kernels of libraries, functions of modules, copies and memsets, including those in child graphs. Afterwards, the
//! move reads back the context of each kernel, to check it.
//!
//! Before copying a graph, a move refuses nodes that cannot be copied. A cooperative kernel is refused if its blocks
//! do not all fit in the partition at the same time. A clustered kernel is refused if not even one cluster fits. On
//! hardware, a graph with such a kernel would never end.
//!
//! A move also refuses a graph whose nodes are divided between contexts, since branches that wait for each other on the
//! device need the SMs of both contexts. The primary context does not count: no SMs are reserved for it, and some
//! libraries submit part of a partition's work to it (recorded for cuDNN on an H200, `docs/pytorch-libraries.md`). A
//! move brings that work back.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem::MaybeUninit;
use std::ptr;

use green_ctx_sys::{
    Api, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D_v2, CUDA_MEMSET_NODE_PARAMS_v1, CUctx_st,
    CUlaunchAttributeID, CUlaunchAttributeValue,
};

use super::Graph;
use super::node::{self, Node};
use crate::handle::context::Context;
use crate::handle::current::Scope;
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, ErrorKind, Result};
use crate::handle::listing::NodeKind;
use crate::handle::raw::Raw;
use crate::handle::trace;
use crate::work::fit::occupancy::Occupancy;
use crate::work::launch::{LaunchConfig, Shape};

/// The reason why a graph was not moved. The graph is unchanged, and there is no copy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RetargetError {
    /// The graph has a node of a kind that cannot be copied.
    #[error(
        "node {node} ({kind}) cannot be moved: {reason}; capture the graph on a stream of the partition instead"
    )]
    Immovable {
        /// The node's position in the graph, as in [`NodeAudit::node`](super::NodeAudit::node).
        node: String,
        /// The node's kind.
        kind: NodeKind,
        /// The reason why the node cannot be moved.
        reason: &'static str,
    },
    /// The graph's nodes belong to several contexts, such as two partitions. Nodes of different contexts may wait for
    /// each other on the device. In one context, there may be no SMs left for a node that another node waits for, and
    /// the graph would never end. [`Graph::retarget`] describes which contexts are counted.
    #[error(
        "the graph's nodes belong to several contexts ({}) and may wait for each other; capture the nodes of each \
         context as a separate graph, or launch this graph as it is", contexts.join(", ")
    )]
    SeveralContexts {
        /// The names of the contexts, sorted: the partition's name, or `a context of another library`.
        contexts: Vec<String>,
    },
    /// The partition is too small for blocks that must be resident at the same time: those of a cooperative kernel,
    /// or of one cluster. On hardware, a graph with such a kernel would never end (recorded on an H200, driver
    /// 580.159.04).
    #[error(
        "node {node} ({}) needs {needed} blocks at the same time, and the partition's {sm_count} SMs \
         hold {fit}; use a larger partition", kernel.as_deref().unwrap_or("a kernel")
    )]
    DoesNotFit {
        /// The node's position in the graph.
        node: String,
        /// The kernel's name, if the driver reports it.
        kernel: Option<String>,
        /// The number of blocks that must be resident at the same time.
        needed: u64,
        /// The number of blocks that the partition holds at the same time.
        fit: u32,
        /// The partition's SMs.
        sm_count: u32,
    },
    /// The driver reported no error, but the node stayed in its old context.
    #[error(
        "node {node} ({}) stayed in its context although the driver accepted the move; capture the \
         graph on a stream of the partition instead", kernel.as_deref().unwrap_or("a kernel")
    )]
    Stayed {
        /// The node's position in the graph.
        node: String,
        /// The kernel's name, if the driver reports it.
        kernel: Option<String>,
    },
    /// A driver call failed, or a node of the graph is on another device than the context.
    #[error(transparent)]
    Error(#[from] Error),
}

green_ctx_sys::debug_as_text!(RetargetError);

impl RetargetError {
    /// Returns the kind of the error, like [`Error::kind`]. A larger partition, or a capture of the
    /// graph in the partition, can succeed instead, so the kind is [`ErrorKind::InvalidRequest`] unless the driver failed.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            RetargetError::Error(error) => error.kind(),
            _ => ErrorKind::InvalidRequest,
        }
    }
}

impl From<RetargetError> for Error {
    /// Keeps the message and the kind.
    fn from(error: RetargetError) -> Error {
        match error {
            RetargetError::Error(error) => error,
            error => Error::refusal(error.kind(), &error),
        }
    }
}

impl Graph {
    /// Returns a copy of the graph whose kernels, copies and memsets run on the SMs of another context, including
    /// those in child graphs. Nodes that use no SMs (host functions, events, semaphores, batches of memory
    /// operations) are copied unchanged.
    ///
    /// Both kernels of libraries and functions of modules can be moved. Launch attributes are kept (cluster,
    /// cooperative, priority). Copying 500 kernels takes less time than instantiating the copy. To reuse the result,
    /// keep it in a [`GraphCache`](super::GraphCache).
    ///
    /// # Errors
    ///
    /// A [`RetargetError`] names what cannot be moved, and nothing is created. These nodes cannot be moved:
    ///
    /// - An allocation or a free, since the address of the memory belongs to the original graph.
    /// - A conditional node. Driver 580.159.04 cannot copy a graph with a conditional node
    ///   (`CUDA_ERROR_NOT_SUPPORTED`, recorded on an H200), and no newer driver is known to copy such a graph.
    /// - A cooperative or clustered kernel that does not fit in the partition.
    ///
    /// A graph with nodes in several contexts cannot be moved either ([`RetargetError::SeveralContexts`]). Launch such
    /// a graph as it is, or capture the nodes of each context as a separate graph. Nodes in the primary context are
    /// not counted: they move together with the nodes of one other context. If the driver does not report the context
    /// of a copy or a memset (before CUDA 13.2), all [`contexts`](Graph::contexts) of the graph are counted. A foreign
    /// graph has only the contexts that the driver reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, SplitRequest, StreamOptions, graph::CaptureMode, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// # let graph = stream.capture(CaptureMode::default(), || {
    /// #     // SAFETY: the kernel takes no parameters.
    /// #     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// # })?;
    /// let parts = device.partition(SplitRequest::new().group("decode", 16))?;
    /// let moved = graph.retarget(parts["decode"].context())?;
    /// assert_eq!(moved.audit()?.to_string(), "0  kernel step  16 SMs of decode (device 0)\n");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuGraphClone", "cuGraphKernelNodeSetParams"))]
    pub fn retarget(&self, context: &Context) -> Result<Graph, RetargetError> {
        trace::span!("retarget", device = self.device().ordinal(), context = context.label());
        let device = self.device();
        let is_elsewhere = |of_node: &Context| of_node.device() != context.device();
        if context.device() != device || self.contexts().iter().any(is_elsewhere) {
            return Err(Error::DeviceMismatch { what: "the graph's nodes and the context" }.into());
        }
        device.driver().check_process()?;
        let contexts = {
            let _alone = self.alone();
            let nodes = node::walk(device.functions()?, self.as_raw())?;
            nodes.iter().try_for_each(refuse)?;
            self.contexts_of(&nodes)?
        };
        if contexts.len() > 1 {
            // Outside the graph's lock: the look-up of a context may drop the context's last handle.
            let mut contexts: Vec<String> =
                contexts.into_iter().map(|raw| name(device.driver(), raw)).collect();
            contexts.sort_unstable();
            return Err(RetargetError::SeveralContexts { contexts });
        }
        let copy = self.copy(self.inner.needs.moved_to(context))?;
        let has_clusters = device.compute_capability()?.major >= 9;
        let sm_count = context.sm_count()?;
        let mover = Mover { api: device.functions()?, context, sm_count, has_clusters };
        {
            // Each node moves to the context that is current, whatever context its parameters name (recorded on an
            // H200, driver 580.159.04).
            let _scope = Scope::enter(device.driver(), context.raw())?;
            for node in node::walk(device.functions()?, copy.as_raw())? {
                mover.apply(&node)?;
            }
        }
        Ok(copy)
    }

    /// Returns the contexts of these nodes, without the primary context. If the driver does not report the context of
    /// a node, the contexts of all streams that took part in the capture are included.
    fn contexts_of(&self, nodes: &[Node]) -> Result<Vec<Raw<CUctx_st>>> {
        let mut found = Vec::new();
        let mut are_reported = true;
        for node in nodes.iter().filter(|node| node.kind.uses_sms()) {
            let context = node.context(self.device().functions()?)?;
            are_reported &= context.is_some();
            found.extend(context);
        }
        if !are_reported {
            found.extend(self.contexts().iter().filter_map(|context| Raw::new(context.raw())));
        }
        found.retain(|context| context.as_ptr() != self.inner.primary.raw());
        found.sort_unstable_by_key(|context| context.address());
        found.dedup_by_key(|context| context.address());
        Ok(found)
    }
}

/// Returns the name of a node's context in an error.
fn name(driver: &Driver, raw: Raw<CUctx_st>) -> String {
    let partition = driver.find_context(raw.as_ptr()).and_then(|known| known.partition_name());
    partition.map_or_else(|| "a context of another library".to_owned(), |name| (*name).to_owned())
}

/// Returns an error if the node cannot be copied.
fn refuse(node: &Node) -> Result<(), RetargetError> {
    let reason = match node.kind {
        NodeKind::MemAlloc | NodeKind::MemFree => "its address belongs to this graph",
        NodeKind::Conditional => "the driver cannot copy a graph that has one",
        NodeKind::Unknown(_) => "this version of green-ctx does not know this kind of node",
        _ => return Ok(()),
    };
    Err(RetargetError::Immovable { node: node.name(), kind: node.kind, reason })
}

/// Moves nodes to `context`, which must be current.
struct Mover<'a> {
    api: &'a Api,
    context: &'a Context,
    sm_count: u32,
    /// True if the device supports clusters, in which case kernel nodes have a cluster attribute.
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
        if node.kernel(api)?.ctx == self.context.raw() {
            return Ok(());
        }
        let (node, kernel) = (node.name(), node::kernel_name(api, params.func)?);
        Err(RetargetError::Stayed { node, kernel })
    }

    fn set_kernel(&self, node: &Node, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Result<()> {
        // SAFETY: the node is alive, and `params` contains the node's own parameters, which the driver copies.
        unsafe { call!(self.api, cuGraphKernelNodeSetParams(node.raw, params)) }
    }

    fn memcpy(&self, node: &Node) -> Result<()> {
        let mut params = MaybeUninit::<CUDA_MEMCPY3D_v2>::zeroed();
        // SAFETY: the node is a live memcpy node, and `params` has the type that this call writes.
        unsafe { call!(self.api, cuGraphMemcpyNodeGetParams(node.raw, params.as_mut_ptr())) }?;
        // SAFETY: the node is alive, and `params` contains the node's own parameters.
        unsafe { call!(self.api, cuGraphMemcpyNodeSetParams(node.raw, params.as_ptr())) }
    }

    fn memset(&self, node: &Node) -> Result<()> {
        let mut params = MaybeUninit::<CUDA_MEMSET_NODE_PARAMS_v1>::zeroed();
        // SAFETY: the node is a live memset node, and `params` has the type that this call writes.
        unsafe { call!(self.api, cuGraphMemsetNodeGetParams(node.raw, params.as_mut_ptr())) }?;
        // SAFETY: the node is alive, and `params` contains the node's own parameters.
        unsafe { call!(self.api, cuGraphMemsetNodeSetParams(node.raw, params.as_ptr())) }
    }

    /// Returns an error if blocks of the kernel must be resident at the same time and do not all fit.
    fn check_fit(
        &self,
        node: &Node,
        params: &CUDA_KERNEL_NODE_PARAMS_v2,
    ) -> Result<(), RetargetError> {
        let (grid, block) = (
            (params.gridDimX, params.gridDimY, params.gridDimZ),
            (params.blockDimX, params.blockDimY, params.blockDimZ),
        );
        let config = LaunchConfig::with_shape(grid, block).shared_bytes(params.sharedMemBytes);
        let (api, function) = (self.api, params.func);
        let occupancy = Occupancy { api, function, stream: ptr::null_mut(), config };
        let cluster = self.cluster(node)?;
        let cooperative = self.is_cooperative(node)?;
        if !cooperative && cluster.is_none() {
            return Ok(());
        }
        let (_, fit) = occupancy.room(cluster, self.sm_count)?;
        // All blocks of the grid, or those of one cluster.
        let (x, y, z) = if cooperative { grid } else { cluster.unwrap_or((1, 1, 1)) };
        let needed = u64::from(x) * u64::from(y) * u64::from(z);
        if needed <= u64::from(fit) {
            return Ok(());
        }
        let (node, kernel) = (node.name(), node::kernel_name(api, function)?);
        Err(RetargetError::DoesNotFit { node, kernel, needed, fit, sm_count: self.sm_count })
    }

    fn is_cooperative(&self, node: &Node) -> Result<bool> {
        let value = self.attribute(node, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?;
        // SAFETY: the value of this attribute is a number, and the driver wrote it.
        Ok(unsafe { value.cooperative } != 0)
    }

    fn cluster(&self, node: &Node) -> Result<Option<Shape>> {
        if !self.has_clusters {
            return Ok(None);
        }
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        // SAFETY: the value of this attribute is three numbers, and the driver wrote them.
        let sides = unsafe { self.attribute(node, id)?.clusterDim };
        Ok(Some((sides.x, sides.y, sides.z)).filter(|&(x, y, z)| x.max(y).max(z) > 1))
    }

    fn attribute(&self, node: &Node, id: CUlaunchAttributeID) -> Result<CUlaunchAttributeValue> {
        let mut value = MaybeUninit::<CUlaunchAttributeValue>::zeroed();
        // SAFETY: the node is a live kernel node, and `value` has the type that this call writes.
        unsafe {
            call!(self.api, cuGraphKernelNodeGetAttribute(node.raw, id, value.as_mut_ptr()))
        }?;
        // SAFETY: all-zero bytes are a valid value, and the driver wrote the attribute into them.
        Ok(unsafe { value.assume_init() })
    }
}

//! Descriptions of a graph's nodes and of where they run.

use std::fmt;

use green_ctx_sys::CUgraphNodeType;

use crate::handle::location::Location;

/// The location of each node of a graph, displayed with one line per node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Audit {
    /// The nodes in the driver's order. The nodes of a child graph follow the child graph's own node.
    pub nodes: Vec<NodeAudit>,
}

/// One node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeAudit {
    /// The node's position in the graph, such as `3`. `3.0` is the position of the first node of the child graph in
    /// node 3.
    pub node: String,
    /// The kind of node.
    pub kind: NodeKind,
    /// The kernel's name, if the node is a kernel and the driver reports names (CUDA 12.3 or newer).
    pub kernel: Option<String>,
    /// The location of the node. `None` if the node [uses no SMs](NodeKind::uses_sms), or if the driver does not report
    /// the location. Before CUDA 13.2, the driver reports only the contexts of kernels.
    pub location: Option<Location>,
}

/// The kinds of graph nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[doc(alias = "CUgraphNodeType")]
pub enum NodeKind {
    /// Launches a kernel.
    Kernel,
    /// Copies memory. Copies from and to device memory run on SMs (recorded on an H200, driver 580.159.04).
    Memcpy,
    /// Sets memory. Memset nodes run on SMs (recorded on an H200, driver 580.159.04).
    Memset,
    /// Calls a function on the host.
    Host,
    /// Runs a child graph.
    ChildGraph,
    /// Does nothing, but other nodes can depend on this node.
    Empty,
    /// Waits for an event.
    EventWait,
    /// Records an event.
    EventRecord,
    /// Signals a semaphore of another API.
    SemaphoreSignal,
    /// Waits for a semaphore of another API.
    SemaphoreWait,
    /// Allocates memory.
    MemAlloc,
    /// Frees memory.
    MemFree,
    /// Writes, compares and waits for values in memory.
    BatchMemOp,
    /// Decides on the device whether a body graph runs, and which one.
    Conditional,
    /// A kind that this crate does not support, with the kind's number in cuda.h.
    Unknown(u32),
}

impl NodeKind {
    pub(crate) fn from_raw(raw: CUgraphNodeType) -> NodeKind {
        match raw {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => NodeKind::Kernel,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => NodeKind::Memcpy,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => NodeKind::Memset,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => NodeKind::Host,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => NodeKind::ChildGraph,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => NodeKind::Empty,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => NodeKind::EventWait,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => NodeKind::EventRecord,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL => NodeKind::SemaphoreSignal,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT => NodeKind::SemaphoreWait,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => NodeKind::MemAlloc,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => NodeKind::MemFree,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => NodeKind::BatchMemOp,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL => NodeKind::Conditional,
            other => NodeKind::Unknown(other.0),
        }
    }

    /// Returns whether nodes of this kind run on the SMs of their context.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx::graph::NodeKind;
    ///
    /// assert!(NodeKind::Kernel.uses_sms());
    /// assert!(!NodeKind::Host.uses_sms());
    /// ```
    #[must_use]
    pub const fn uses_sms(self) -> bool {
        matches!(
            self,
            NodeKind::Kernel | NodeKind::Memcpy | NodeKind::Memset | NodeKind::Conditional
        )
    }
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeKind::Kernel => "kernel",
            NodeKind::Memcpy => "memcpy",
            NodeKind::Memset => "memset",
            NodeKind::Host => "host function",
            NodeKind::ChildGraph => "child graph",
            NodeKind::Empty => "empty",
            NodeKind::EventWait => "event wait",
            NodeKind::EventRecord => "event record",
            NodeKind::SemaphoreSignal => "semaphore signal",
            NodeKind::SemaphoreWait => "semaphore wait",
            NodeKind::MemAlloc => "memory allocation",
            NodeKind::MemFree => "memory free",
            NodeKind::BatchMemOp => "batch of memory operations",
            NodeKind::Conditional => "conditional",
            NodeKind::Unknown(number) => return write!(f, "kind {number}"),
        })
    }
}

impl fmt::Display for Audit {
    /// Writes one line per node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nodes.iter().try_for_each(|node| writeln!(f, "{node}"))
    }
}

impl fmt::Display for NodeAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeAudit { node, kind, kernel, location } = self;
        write!(f, "{node}  {kind}")?;
        if let Some(kernel) = kernel {
            write!(f, " {kernel}")?;
        }
        match location {
            Some(location) => write!(f, "  {location}"),
            None if kind.uses_sms() => write!(f, "  in a context that the driver does not report"),
            None => write!(f, "  no SMs"),
        }
    }
}

//! A graph's nodes, and where they run, in a form that can be written down.

use std::fmt;

use green_ctx_sys::CUgraphNodeType;

use crate::handle::location::Location;

/// Where each node of a graph runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Audit {
    /// The nodes in the driver's order, those of a child graph after the child's node.
    pub nodes: Vec<NodeAudit>,
}

/// One node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeAudit {
    /// The node's position in the graph: `3`, and `3.0` in the child graph that node 3 is.
    pub node: String,
    /// What it does.
    pub kind: NodeKind,
    /// The name of a kernel, where the driver reports it (from CUDA 12.3 on).
    pub kernel: Option<String>,
    /// Where it runs. `None` for what [uses no SMs](NodeKind::uses_sms), and where the driver does not
    /// report it: before CUDA 13.2 it reports the contexts of kernels only.
    pub location: Option<Location>,
}

/// What a node of a graph does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[doc(alias = "CUgraphNodeType")]
pub enum NodeKind {
    /// Launches a kernel.
    Kernel,
    /// Copies memory. From and to device memory it runs on SMs (recorded on an H200, driver
    /// 580.159.04).
    Memcpy,
    /// Sets memory, on SMs (recorded on an H200, driver 580.159.04).
    Memset,
    /// Calls a function on the host.
    Host,
    /// Is a graph itself.
    ChildGraph,
    /// Nothing: others wait for it.
    Empty,
    /// Waits for an event.
    EventWait,
    /// Records an event.
    EventRecord,
    /// Signals a semaphore of another interface.
    SemaphoreSignal,
    /// Waits for a semaphore of another interface.
    SemaphoreWait,
    /// Allocates memory.
    MemAlloc,
    /// Frees memory.
    MemFree,
    /// Writes, compares and waits for values in memory.
    BatchMemOp,
    /// Decides on the device what runs.
    Conditional,
    /// A kind that this version does not know, by its number in cuda.h.
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

    /// Whether such a node runs on the SMs of its context.
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
    /// A line a node.
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

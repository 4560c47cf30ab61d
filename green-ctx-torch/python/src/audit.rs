//! Audits of torch's graphs. An audit reports the context that each node of a graph runs in.

use green_ctx::graph as library;
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::device::device;
use crate::gil::blocking;
use crate::graph::{address, borrow};

/// The locations of a graph's nodes. `str()` of an audit has one line per node.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct Audit {
    audit: library::Audit,
}

impl Audit {
    fn found(&self) -> Vec<&green_ctx::watch::Location> {
        let mut found = Vec::new();
        for location in self.audit.nodes.iter().filter_map(|node| node.location.as_ref()) {
            if !found.contains(&location) {
                found.push(location);
            }
        }
        found
    }
}

#[pymethods]
impl Audit {
    /// The nodes, in the order in which the driver lists them. The nodes of a child graph come after the node that
    /// contains the child graph.
    #[getter]
    fn nodes(&self) -> Vec<NodeAudit> {
        self.audit.nodes.iter().map(|node| NodeAudit { node: node.clone() }).collect()
    }

    /// The locations of the nodes, each listed once. A graph whose nodes all run in one partition has one location.
    #[getter]
    fn locations(&self) -> Vec<Location> {
        self.found().into_iter().map(|location| Location { location: location.clone() }).collect()
    }

    fn __str__(&self) -> String {
        self.audit.to_string()
    }

    fn __repr__(&self) -> String {
        let count = |is_counted: &dyn Fn(&library::NodeAudit) -> bool| match self
            .audit
            .nodes
            .iter()
            .filter(|node| is_counted(node))
            .count()
        {
            1 => "1 node".to_owned(),
            count => format!("{count} nodes"),
        };
        let mut parts: Vec<String> = self
            .found()
            .into_iter()
            .map(|location| {
                format!("{} on {location}", count(&|node| node.location.as_ref() == Some(location)))
            })
            .collect();
        let is_unknown =
            |node: &library::NodeAudit| node.location.is_none() && node.kind.uses_sms();
        if self.audit.nodes.iter().any(is_unknown) {
            parts.push(format!(
                "{} in contexts that the driver does not report",
                count(&is_unknown)
            ));
        }
        let is_without =
            |node: &library::NodeAudit| node.location.is_none() && !node.kind.uses_sms();
        if self.audit.nodes.iter().any(is_without) || parts.is_empty() {
            parts.push(format!("{} without SMs", count(&is_without)));
        }
        format!("<Audit: {}>", parts.join(", "))
    }
}

/// One node of a graph. `str()` of a node is one line of text.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct NodeAudit {
    node: library::NodeAudit,
}

#[pymethods]
impl NodeAudit {
    /// The node's position in the graph, such as "3". The first node in the child graph of node 3 is "3.0".
    #[getter]
    fn node(&self) -> &str {
        &self.node.node
    }

    /// The kind of node: "kernel", "memcpy", "memset", "host function", "child graph" or another kind.
    #[getter]
    fn kind(&self) -> String {
        self.node.kind.to_string()
    }

    /// The name of the kernel, if the driver reports it.
    #[getter]
    fn kernel(&self) -> Option<&str> {
        self.node.kernel.as_deref()
    }

    /// The context that the node runs in. None if the node uses no SMs, or if the driver does not report the context.
    /// Before CUDA 13.2, the driver reports the contexts of kernel nodes only.
    #[getter]
    fn location(&self) -> Option<Location> {
        self.node.location.clone().map(|location| Location { location })
    }

    fn __str__(&self) -> String {
        self.node.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<NodeAudit {}>", self.node)
    }
}

/// The context that work runs in. The context determines the SMs that the work may use.
#[pyclass(frozen, eq, module = "green_ctx_torch")]
#[derive(PartialEq)]
pub(crate) struct Location {
    location: green_ctx::watch::Location,
}

#[pymethods]
impl Location {
    /// The device's ordinal.
    #[getter]
    fn device(&self) -> u32 {
        self.location.device
    }

    /// The name of the partition. "primary" means the primary context, which torch uses outside partitions.
    /// "borrowed" means a context that this library did not create.
    #[getter]
    fn context(&self) -> &str {
        &self.location.context
    }

    /// The ID of the context, as in `Partition.id` and `GreenContext.id`.
    #[getter]
    fn context_id(&self) -> u64 {
        self.location.context_id
    }

    /// The number of SMs of the context.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.location.sm_count
    }

    /// Whether this is a green context that this library did not create. The SMs of such a foreign context may belong
    /// to the floor of any partition.
    #[getter]
    fn foreign(&self) -> bool {
        self.location.foreign
    }

    fn __hash__(&self) -> u64 {
        self.location.context_id
    }

    fn __str__(&self) -> String {
        self.location.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Location: {}>", self.location)
    }
}

/// Asks the driver which partition each node of a captured graph runs in.
///
///     print(audit(graph))
///
/// `graph` is a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. The contexts of the graph's
/// nodes must be alive, so the partitions in which the graph was captured must stay open. The bodies of conditional
/// nodes are not included. If partitions of several plans have the same SMs, they share one context. To identify a
/// partition, compare `context_id` with `Partition.id`.
#[pyfunction]
#[pyo3(signature = (graph, device=DeviceId::Current), text_signature = "(graph, device=None)")]
pub(crate) fn audit(py: Python<'_>, graph: &Bound<'_, PyAny>, device: DeviceId) -> PyResult<Audit> {
    let (address, device) = (address(graph)?, device.ordinal(py)?);
    let audit = blocking(py, || Ok(borrow(&self::device(device)?, address)?.audit()?))?;
    Ok(Audit { audit })
}

//! Where the nodes of torch's graphs run.

use green_ctx::graph as library;
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::device::device;
use crate::gil::blocking;
use crate::graph::{address, borrow};

/// Where each node of a graph runs. As text a line for each node.
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
    /// The nodes in the driver's order, those of a child graph after the child's node.
    #[getter]
    fn nodes(&self) -> Vec<NodeAudit> {
        self.audit.nodes.iter().map(|node| NodeAudit { node: node.clone() }).collect()
    }

    /// Where nodes run, each place once: one for a graph that stays in one partition.
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

/// One node of a graph. As text a line.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct NodeAudit {
    node: library::NodeAudit,
}

#[pymethods]
impl NodeAudit {
    /// The node's position in the graph: "3", and "3.0" in the child graph that node 3 is.
    #[getter]
    fn node(&self) -> &str {
        &self.node.node
    }

    /// What it does: "kernel", "memcpy", "memset", "host function", "child graph", and others.
    #[getter]
    fn kind(&self) -> String {
        self.node.kind.to_string()
    }

    /// The name of a kernel, where the driver reports it.
    #[getter]
    fn kernel(&self) -> Option<&str> {
        self.node.kernel.as_deref()
    }

    /// Where it runs. None for what uses no SMs, and where the driver does not report it: before
    /// CUDA 13.2 it reports the contexts of kernels only.
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

/// The SMs that work may use: those of a context.
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

    /// The partition's name; "primary" for the primary context, where torch works outside of
    /// partitions, and "borrowed" for one that this library did not make.
    #[getter]
    fn context(&self) -> &str {
        &self.location.context
    }

    /// The context's number, as `Partition.id` and `GreenContext.id` give it.
    #[getter]
    fn context_id(&self) -> u64 {
        self.location.context_id
    }

    /// The context's SMs.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.location.sm_count
    }

    /// Whether it is a green context that this library did not make. Its SMs may be on any partition's floor.
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

/// Asks the driver where the nodes of a captured graph run: in which partition, or outside of all.
///
/// Takes a `torch.cuda.CUDAGraph(keep_graph=True)`, or the address of a CUgraph. The contexts of its nodes
/// must be alive: keep the partitions that it was captured in. What conditional nodes decide about is not
/// looked into. Plans of the same SMs have one context: `Partition.id` says which.
#[pyfunction]
#[pyo3(signature = (graph, device=DeviceId::Current), text_signature = "(graph, device=None)")]
pub(crate) fn audit(py: Python<'_>, graph: &Bound<'_, PyAny>, device: DeviceId) -> PyResult<Audit> {
    let (address, device) = (address(graph)?, device.ordinal(py)?);
    let audit = blocking(py, || Ok(borrow(&self::device(device)?, address)?.audit()?))?;
    Ok(Audit { audit })
}

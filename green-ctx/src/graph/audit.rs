//! The audit of a graph: where its nodes run.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::CUctx_st;

use super::Graph;
use super::needs::is_outside;
use super::node::{self, Node};
use crate::handle::context::Context;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::listing::{Audit, NodeAudit, NodeKind};
use crate::handle::location::Location;
use crate::handle::raw::Raw;

impl Graph {
    /// Lists the nodes, with the context in which each node runs and the number of SMs of that context.
    ///
    /// The bodies of conditional nodes are not listed, since the driver does not report them.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if a driver call fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim, graph::CaptureMode};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    /// // `stream` belongs to the primary context, which has all SMs.
    /// let graph = stream.capture(CaptureMode::default(), || {
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// })?;
    /// let audit = graph.audit()?;
    /// assert_eq!(audit.to_string(), "0  kernel step  132 SMs of primary (device 0)\n");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuGraphKernelNodeGetParams", "cuGraphNodeGetParams"))]
    pub fn audit(&self) -> Result<Audit> {
        let nodes = self.audit_where(|_| true)?;
        Ok(Audit { nodes })
    }

    /// Returns the nodes whose work escapes from `expected`. Nodes whose context the driver does not report are left out.
    pub(crate) fn outside(&self, expected: &Context) -> Result<Vec<NodeAudit>> {
        let inside = expected.without_escape()?;
        self.audit_where(|context| context.is_some_and(|raw| is_outside(raw, &inside)))
    }

    /// Returns the nodes whose contexts `is_chosen` accepts.
    fn audit_where(
        &self,
        is_chosen: impl Fn(Option<Raw<CUctx_st>>) -> bool,
    ) -> Result<Vec<NodeAudit>> {
        let mut nodes = self.chosen(is_chosen)?;
        // Outside the graph's lock: the look-up of a context may drop the context's last handle.
        let mut last: Option<(Raw<CUctx_st>, Location)> = None;
        for (node, context) in &mut nodes {
            let Some(raw) = *context else { continue };
            if last.as_ref().is_none_or(|(known, _)| known.address() != raw.address()) {
                last = Some((raw, self.location(raw)?));
            }
            node.location = last.as_ref().map(|(_, location)| location.clone());
        }
        Ok(nodes.into_iter().map(|(node, _)| node).collect())
    }

    /// Returns the nodes whose contexts `is_chosen` accepts, without their locations.
    fn chosen(
        &self,
        is_chosen: impl Fn(Option<Raw<CUctx_st>>) -> bool,
    ) -> Result<Vec<(NodeAudit, Option<Raw<CUctx_st>>)>> {
        let driver = self.device().driver();
        driver.check_process()?;
        let _alone = self.alone();
        let mut chosen = Vec::new();
        for node in node::walk(driver.functions()?, self.as_raw())? {
            let context = node.context(driver.functions()?)?;
            if is_chosen(context) {
                chosen.push((NodeAudit::new(driver, &node)?, context));
            }
        }
        Ok(chosen)
    }

    /// Returns the location of a node, given the raw handle of the node's context.
    fn location(&self, raw: Raw<CUctx_st>) -> Result<Location> {
        // SAFETY: the graph keeps its nodes' contexts alive. For a foreign graph, the caller of `from_raw_owned` or
        // `from_raw_borrowed` guarantees that they are alive.
        unsafe { Location::of_raw(self.device().driver(), raw.as_ptr()) }
    }
}

impl NodeAudit {
    /// Creates the entry of a node, without the node's location.
    fn new(driver: &Driver, node: &Node) -> Result<NodeAudit> {
        let kernel = match node.kind {
            NodeKind::Kernel => {
                node::kernel_name(driver.functions()?, node.kernel(driver.functions()?)?.func)?
            }
            _ => None,
        };
        Ok(NodeAudit { node: node.name(), kind: node.kind, kernel, location: None })
    }
}

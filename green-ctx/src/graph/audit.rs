//! Asking where the nodes of a graph run.
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
    /// Lists the nodes, with the context and the SMs that each one has.
    ///
    /// What conditional nodes decide about is not looked into: the driver does not report it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, StreamOptions, sim::Sim, graph::CaptureMode};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
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

    /// The nodes that run in another context than the one expected, as far as the driver reports it.
    pub(crate) fn outside(&self, expected: &Context) -> Result<Vec<NodeAudit>> {
        self.audit_where(|context| context.is_some_and(|raw| is_outside(raw, expected)))
    }

    /// The nodes that are chosen by their contexts.
    fn audit_where(
        &self,
        is_chosen: impl Fn(Option<Raw<CUctx_st>>) -> bool,
    ) -> Result<Vec<NodeAudit>> {
        let mut nodes = self.chosen(is_chosen)?;
        // Outside of the lock: to look a context up may give its last handle.
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

    /// The nodes that are chosen by their contexts, without their locations.
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

    /// The location of one of its nodes.
    fn location(&self, raw: Raw<CUctx_st>) -> Result<Location> {
        // SAFETY: the graph keeps the contexts of its nodes; of foreign ones whoever made it a graph of
        // this crate sees to that.
        unsafe { Location::of_raw(self.device().driver(), raw.as_ptr()) }
    }
}

impl NodeAudit {
    /// The node, of which it is not said yet where it runs.
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

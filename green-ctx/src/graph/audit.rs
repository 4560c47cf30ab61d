//! Asking where the nodes of a graph run.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::CUcontext;

use super::Graph;
use super::listing::{Audit, NodeAudit, NodeKind};
use super::node::{self, Node};
use crate::driver::Driver;
use crate::error::Result;
use crate::place::Place;

impl Graph {
    /// Lists the nodes, with the context and the SMs that each one has.
    ///
    /// What conditional nodes decide about is not looked into: the driver does not tell.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{CaptureMode, Driver, LaunchConfig, Library, StreamOptions, sim::Sim};
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
    /// assert_eq!(audit.to_string(), "0  kernel step  132 SMs of primary\n");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuGraphKernelNodeGetParams", "cuGraphNodeGetParams"))]
    pub fn audit(&self) -> Result<Audit> {
        let driver = self.device().driver();
        let _alone = self.alone();
        let mut nodes = Vec::new();
        let mut last: Option<(CUcontext, Place)> = None;
        for node in node::walk(driver.api(), self.as_raw())? {
            let place = match node.context(driver.api())? {
                None => None,
                Some(raw) => match &last {
                    Some((known, place)) if *known == raw => Some(place.clone()),
                    _ => Some(last.insert((raw, self.place(raw)?)).1.clone()),
                },
            };
            nodes.push(NodeAudit::new(driver, &node, place)?);
        }
        Ok(Audit { nodes })
    }

    /// The place of one of its nodes.
    fn place(&self, raw: CUcontext) -> Result<Place> {
        // SAFETY: whoever has a graph sees to it that the contexts of its nodes are alive.
        unsafe { Place::of_raw(self.device().driver(), raw) }
    }
}

impl NodeAudit {
    fn new(driver: &Driver, node: &Node, place: Option<Place>) -> Result<NodeAudit> {
        let kernel = match node.kind {
            NodeKind::Kernel => node::kernel_name(driver.api(), node.kernel(driver.api())?.func)?,
            _ => None,
        };
        Ok(NodeAudit { node: node.name(), kind: node.kind, kernel, place })
    }
}

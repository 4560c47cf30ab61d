//! The needs of a graph's nodes: the contexts and libraries that must stay alive. Memory is not included.
//!
//! A graph keeps its needs alive, and so do its copies and its executables. A copy that was moved needs its new
//! context instead of the old ones. The needs come from a capture's notes (`open_captures.rs`), from the streams that
//! took part in the capture, and from the contexts that the driver reports for the nodes. A borrowed graph also keeps
//! its owner alive.
//!
//! The raw handle of each context that the driver reports is stored as well, since this crate may create its object
//! for the context later. Every check of where nodes run compares these handles.

use std::mem;

use green_ctx_sys::{CUcontext, CUctx_st};

use super::node::Node;
use crate::handle::context::Context;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;
use crate::work::library::Library;

/// The contexts and libraries that a graph's nodes need. Copies and executables of the graph have a `Needs` as well.
#[derive(Clone, Default)]
pub(crate) struct Needs {
    /// The contexts of the nodes, if this crate has objects for them, and the contexts of the streams that took part
    /// in the capture.
    contexts: Vec<Context>,
    /// The libraries whose kernels were captured.
    libraries: Vec<Library>,
    /// The owner of a borrowed graph, which keeps the memory of the graph's nodes alive.
    owner: Option<Owner>,
    /// The raw handles of the contexts that the driver reports, even if this crate has no object for a context yet.
    /// From CUDA 13.2 on, the driver reports the contexts of all nodes that use SMs. Older drivers report the
    /// contexts of kernels only.
    of_nodes: Vec<Raw<CUctx_st>>,
}

impl Needs {
    /// Adds the contexts of these nodes.
    pub(super) fn add_nodes(&mut self, driver: &Driver, nodes: &[Node]) -> Result<()> {
        for node in nodes {
            let Some(raw) = node.context(driver.functions()?)? else { continue };
            // Searched from the end: consecutive nodes mostly have the same context.
            if self.of_nodes.iter().rev().all(|known| known.address() != raw.address()) {
                self.of_nodes.push(raw);
                Context::known(driver, raw)?.into_iter().for_each(|known| self.add_context(known));
            }
        }
        Ok(())
    }

    pub(super) fn add_context(&mut self, context: Context) {
        if !self.contexts.contains(&context) {
            self.contexts.push(context);
        }
    }

    pub(super) fn add_library(&mut self, library: &Library) {
        if !self.libraries.contains(library) {
            self.libraries.push(library.clone());
        }
    }

    /// Adds the contexts and libraries that were noted during a capture.
    pub(super) fn add(&mut self, noted: Needs) {
        noted.contexts.into_iter().for_each(|context| self.add_context(context));
        noted.libraries.iter().for_each(|library| self.add_library(library));
    }

    pub(super) fn set_owner(&mut self, owner: Owner) {
        self.owner = Some(owner);
    }

    /// Returns the needs of a copy whose nodes have all been moved to `context`.
    pub(super) fn moved_to(&self, context: &Context) -> Needs {
        Needs {
            contexts: vec![context.clone()],
            libraries: self.libraries.clone(),
            owner: self.owner.clone(),
            of_nodes: Raw::new(context.raw()).into_iter().collect(),
        }
    }

    /// Returns the contexts that these needs keep alive.
    pub(super) fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// Returns the first of the nodes' contexts whose work escapes from `expected`.
    pub(crate) fn outside(&self, expected: &Context) -> Result<Option<Raw<CUctx_st>>> {
        let inside = expected.without_escape()?;
        Ok(self.of_nodes.iter().copied().find(|&raw| is_outside(raw, &inside)))
    }

    /// Leaks the owner in a forked child, since dropping the owner would act on the parent's state.
    pub(super) fn forget_owner(&mut self) {
        mem::forget(self.owner.take());
    }
}

/// Returns whether a node's context is not in `inside` ([`Context::without_escape`]). Comparing handles is enough, since
/// these contexts are alive and no two live contexts have the same handle. Every check of a node uses this function.
pub(super) fn is_outside(of_node: Raw<CUctx_st>, inside: &[CUcontext]) -> bool {
    !inside.contains(&of_node.as_ptr())
}

//! The needs of a graph's nodes apart from memory: contexts and libraries.
//!
//! A graph keeps these alive, and so do its copies and its executables. A copy that was moved needs its new
//! context instead of the old ones. The needs come from a capture's notes (`open_captures.rs`), from the
//! streams that took part, and from the contexts that the driver reports for the nodes. A borrowed graph also
//! keeps its owner alive.
//!
//! The contexts that the driver reports are noted by their raw handles too, since an object for a context may
//! be made later. Every check of where nodes run compares these handles.

use std::mem;

use green_ctx_sys::CUctx_st;

use super::node::Node;
use crate::handle::context::Context;
use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;
use crate::work::library::Library;

/// What the nodes of a graph need beside memory. The graph keeps it, and so do its copies and its
/// executables.
#[derive(Clone, Default)]
pub(crate) struct Needs {
    /// The contexts of the nodes that objects of this crate stand for, and those whose streams took part in
    /// the capture.
    contexts: Vec<Context>,
    /// The libraries whose kernels were captured.
    libraries: Vec<Library>,
    /// What keeps the memory that a borrowed graph uses.
    owner: Option<Owner>,
    /// The contexts that the driver reports. By their handles, since an object may be made for a context at
    /// any time: from CUDA 13.2 on of all nodes that use SMs, before of kernels.
    of_nodes: Vec<Raw<CUctx_st>>,
}

impl Needs {
    /// Adds the contexts of these nodes.
    pub(super) fn add_nodes(&mut self, driver: &Driver, nodes: &[Node]) -> Result<()> {
        for node in nodes {
            let Some(raw) = node.context(driver.functions()?)? else { continue };
            // Nodes of one context follow each other.
            if self.of_nodes.iter().rev().all(|known| known.address() != raw.address()) {
                self.of_nodes.push(raw);
                driver
                    .find_context(raw.as_ptr())
                    .into_iter()
                    .for_each(|known| self.add_context(known));
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

    /// Adds the contexts and libraries of a capture that were noted.
    pub(super) fn add(&mut self, noted: Needs) {
        noted.contexts.into_iter().for_each(|context| self.add_context(context));
        noted.libraries.iter().for_each(|library| self.add_library(library));
    }

    pub(super) fn set_owner(&mut self, owner: Owner) {
        self.owner = Some(owner);
    }

    /// What a copy needs whose nodes have all been moved to a context.
    pub(super) fn moved_to(&self, context: &Context) -> Needs {
        Needs {
            contexts: vec![context.clone()],
            libraries: self.libraries.clone(),
            owner: self.owner.clone(),
            of_nodes: Raw::new(context.raw()).into_iter().collect(),
        }
    }

    /// The contexts that are kept.
    pub(super) fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// The first context of a node that is another than the one expected.
    pub(crate) fn outside(&self, expected: &Context) -> Option<Raw<CUctx_st>> {
        self.of_nodes.iter().copied().find(|&raw| is_outside(raw, expected))
    }

    /// Leaves the owner alone in a forked child: what its end does was meant for the parent.
    pub(super) fn forget_owner(&mut self) {
        mem::forget(self.owner.take());
    }
}

/// Whether a node's context is another than the one expected, which is alive: only one living context has
/// a handle. This is how every check judges a node.
pub(super) fn is_outside(of_node: Raw<CUctx_st>, expected: &Context) -> bool {
    of_node.as_ptr() != expected.raw()
}

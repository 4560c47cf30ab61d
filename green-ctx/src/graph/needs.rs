//! The contexts that the nodes of a graph run in.

use green_ctx_sys::CUctx_st;

use super::node::Node;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::Result;
use crate::raw::Raw;

/// The contexts of a graph's nodes.
#[derive(Clone, Default)]
pub(crate) struct Contexts {
    /// Those that objects of this crate stand for, and those whose streams took part in the capture.
    kept: Vec<Context>,
    /// Those that the driver reports. By their handles, since an object may be made for a context at any
    /// time: from CUDA 13.2 on of all nodes that use SMs, before of kernels.
    of_nodes: Vec<Raw<CUctx_st>>,
}

impl Contexts {
    /// The contexts of these nodes.
    pub(super) fn of(driver: &Driver, nodes: &[Node]) -> Result<Contexts> {
        let mut contexts = Contexts::default();
        for node in nodes {
            let Some(raw) = node.context(driver.api())? else { continue };
            // Nodes of one context follow each other.
            if contexts.of_nodes.iter().rev().all(|known| known.address() != raw.address()) {
                contexts.of_nodes.push(raw);
                contexts.keep(driver.find_context(raw.as_ptr()));
            }
        }
        Ok(contexts)
    }

    /// The context of a graph whose nodes have all been moved there.
    pub(super) fn only(context: &Context) -> Contexts {
        let of_nodes = Raw::new(context.raw()).into_iter().collect();
        Contexts { kept: vec![context.clone()], of_nodes }
    }

    /// Keeps more contexts, each once.
    pub(super) fn keep(&mut self, contexts: impl IntoIterator<Item = Context>) {
        for context in contexts {
            if !self.kept.contains(&context) {
                self.kept.push(context);
            }
        }
    }

    /// The contexts that are kept.
    pub(super) fn kept(&self) -> &[Context] {
        &self.kept
    }

    /// The first that is another context than the one expected.
    pub(crate) fn outside(&self, expected: &Context) -> Option<Raw<CUctx_st>> {
        self.of_nodes.iter().copied().find(|&raw| is_outside(raw, expected))
    }
}

/// Whether a node's context is another than the one expected, which is alive: only one living context has
/// a handle. This is how every check judges a node.
pub(super) fn is_outside(of_node: Raw<CUctx_st>, expected: &Context) -> bool {
    of_node.as_ptr() != expected.raw()
}

//! The parameters of nodes of any kind, in the tagged union `CUgraphNodeParams`.

use green_ctx_sys::{CUctx_st, CUgraphNode_st, CUgraphNodeParams, CUgraphNodeType as Type};

use super::allocation::{Allocate, Free};
use super::child::Child;
use super::kernel::Kernel;
use super::kind::{Kind, write};
use super::memcpy::Memcpy;
use super::memset::Memset;
use super::node::Node;
use crate::callback::Callback;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, valid};

/// A pointer to a `CUgraphNodeParams`. The type of the node is at offset 0, and the union is at offset 16,
/// in bytes.
#[derive(Clone, Copy)]
struct Params(Ptr<CUgraphNodeParams>);

impl Params {
    /// Returns a pointer to the member of the union at offset `bytes`.
    fn at<T>(self, bytes: usize) -> Ptr<T> {
        self.0.cast::<u8>().element(16 + bytes).cast()
    }
}

fn write_as<K: Kind>(node: &mut Node, params: Params) -> Answer {
    if let Some(place) = K::CONTEXT {
        params.at(place).write(handle::pointer::<CUctx_st>(node.context))?;
    }
    write::<K>(node, params.at(K::PARAMS))
}

pub(crate) fn get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<CUgraphNodeParams>,
) -> Answer {
    let mut state = driver.state();
    let node = valid(state.nodes.get_mut(&node.address()))?;
    let kind = node.action.kind();
    out.cast::<[u8; 256]>().write([0; 256])?;
    out.cast().write(kind)?;
    let params = Params(out);
    match kind {
        Type::CU_GRAPH_NODE_TYPE_KERNEL => write_as::<Kernel>(node, params),
        Type::CU_GRAPH_NODE_TYPE_MEMCPY => write_as::<Memcpy>(node, params),
        Type::CU_GRAPH_NODE_TYPE_MEMSET => write_as::<Memset>(node, params),
        Type::CU_GRAPH_NODE_TYPE_HOST => write_as::<Callback>(node, params),
        Type::CU_GRAPH_NODE_TYPE_GRAPH => write_as::<Child>(node, params),
        Type::CU_GRAPH_NODE_TYPE_MEM_ALLOC => write_as::<Allocate>(node, params),
        Type::CU_GRAPH_NODE_TYPE_MEM_FREE => write_as::<Free>(node, params),
        // An empty node has no parameters.
        _ => Ok(()),
    }
}

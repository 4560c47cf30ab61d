//! The functions for nodes of every kind, with their parameters in a tagged union.

use green_ctx_sys::{
    CUctx_st, CUgraph_st, CUgraphEdgeData, CUgraphExec_st, CUgraphNode_st, CUgraphNodeParams,
    CUgraphNodeType, CUresult,
};

use super::allocation::{Allocate, Free};
use super::child::Child;
use super::conditional::Conditional;
use super::edge::Edge;
use super::event::{Record, Wait};
use super::kernel::Kernel;
use super::kind::{At, Given, Kind, change, replace, write};
use super::memcpy::Memcpy;
use super::memset::Memset;
use super::node::{Action, Node, OTHER_KIND, Place, Read};
use super::{Owner, exec};
use crate::callback::Callback;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;

/// The parameters behind a `CUgraphNodeParams`: the type at its start, the union 16 bytes on.
#[derive(Clone, Copy)]
struct Params(Ptr<CUgraphNodeParams>);

impl Params {
    fn kind(self) -> Answer<CUgraphNodeType> {
        self.0.cast().read()
    }

    /// A member of the union, `bytes` into it.
    fn at<T>(self, bytes: usize) -> Ptr<T> {
        self.0.cast::<u8>().element(16 + bytes).cast()
    }

    /// What is given of a kind, and the handle of the context that is named.
    fn given<K: Kind>(self) -> Answer<(K::Given, usize)> {
        let context = K::CONTEXT.map(|place| self.at::<*mut CUctx_st>(place).read()).transpose()?;
        Ok((K::Given::at(self.at(K::PARAMS))?, context.map_or(0, <*mut CUctx_st>::addr)))
    }

    /// The graph, and who is to own it.
    fn child(self) -> Answer<(usize, u32)> {
        Ok((self.at::<*mut CUgraph_st>(0).read()?.addr(), self.at(8).read()?))
    }
}

/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE` and `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`.
const CLONE: u32 = 0;
const MOVE: u32 = 1;

/// Calls a function with a kind of node: of those whose parameters can be replaced, or another one.
macro_rules! of_kind {
    ($kind:expr, $function:ident($($argument:expr),*), $($other:pat => $answer:expr),*) => {
        match $kind {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => $function::<Kernel>($($argument),*),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => $function::<Memcpy>($($argument),*),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => $function::<Memset>($($argument),*),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => $function::<Callback>($($argument),*),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => $function::<Wait>($($argument),*),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => $function::<Record>($($argument),*),
            $($other => $answer),*
        }
    };
}

fn read_as<K: Kind>(state: &mut State, params: Params, graph: usize, after: &[Edge]) -> Read {
    let (given, context) = params.given::<K>()?;
    K::read(state, given, At::New { graph, context, after }, None)
}

/// Reads what a new node of a graph does.
fn read(state: &mut State, params: Params, graph: usize, after: &[Edge]) -> Read {
    of_kind!(params.kind()?, read_as(state, params, graph, after),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok((Action::Empty, 0)),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => match params.child()? {
            (_, CLONE) => read_as::<Child>(state, params, graph, after),
            // A graph cannot be its own child, which moving it could make of it.
            (child, MOVE) if child != graph => Ok((Action::Child(take(state, child)?), 0)),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        },
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            read_as::<Conditional>(state, params, graph, after)
        },
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => read_as::<Allocate>(state, params, graph, after),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => read_as::<Free>(state, params, graph, after),
        // Semaphores and batches of operations on memory are not simulated. Without a first member
        // they are invalid, as recorded of batches, and so are numbers that no header knows.
        kind => {
            invalid_if(kind.name().is_none() || params.at::<usize>(0).read()? == 0)?;
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    )
}

/// Takes a graph from the program.
fn take(state: &mut State, handle: usize) -> Answer<usize> {
    state.not_captured_into(handle)?;
    let graph = state.graphs.get_mut(&handle).filter(|graph| graph.is_of_program());
    valid(graph)?.owner = Owner::Node;
    Ok(handle)
}

pub(crate) fn add(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    edges: Ptr<CUgraphEdgeData>,
    count: usize,
    params: Ptr<CUgraphNodeParams>,
) -> Answer {
    let place = Place { edges: edges.cast(), ..Place::new(out, graph, after, count) };
    place.add(driver, |state, after| read(state, Params(params), graph.address(), after))
}

/// Refuses parameters of another kind than a node's.
fn of_node(state: &State, node: usize, params: Params) -> Answer<CUgraphNodeType> {
    let kind = params.kind()?;
    if state.node(node)?.action.kind() == kind { Ok(kind) } else { Err(OTHER_KIND) }
}

fn set_as<K: Kind>(state: &mut State, node: usize, params: Params) -> Answer {
    let (given, context) = params.given::<K>()?;
    let context = K::CONTEXT.map(|_| state.or_current(context)).transpose()?;
    replace::<K>(state, node, given, context)
}

pub(crate) fn set_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    params: Ptr<CUgraphNodeParams>,
) -> Answer {
    let mut state = driver.state();
    let (state, node, params) = (&mut *state, node.address(), Params(params));
    of_kind!(of_node(state, node, params)?, set_as(state, node, params),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok(()),
        // The parameters of the other kinds stay.
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    )
}

fn set_exec_as<K: Kind>(state: &mut State, exec: usize, node: usize, params: Params) -> Answer {
    let (given, context) = params.given::<K>()?;
    change::<K>(state, exec, node, given, context)
}

pub(crate) fn set_exec_params(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    node: Ptr<CUgraphNode_st>,
    params: Ptr<CUgraphNodeParams>,
) -> Answer {
    let mut state = driver.state();
    let (state, node, params) = (&mut *state, node.address(), Params(params));
    let exec = exec.address();
    of_kind!(of_node(state, node, params)?, set_exec_as(state, exec, node, params),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
            exec::change_child(state, exec, node, params.child()?.0)
        },
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok(()),
        // The parameters of the other kinds stay.
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    )
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
    of_kind!(kind, write_as(node, params),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => write_as::<Child>(node, params),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL => write_as::<Conditional>(node, params),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => write_as::<Allocate>(node, params),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => write_as::<Free>(node, params),
        // An empty node has no parameters.
        _ => Ok(())
    )
}

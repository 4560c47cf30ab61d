//! The functions for nodes of every kind, with their parameters in a tagged union.

use green_ctx_sys::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUDA_HOST_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D_v2, CUDA_MEMSET_NODE_PARAMS_v1, CUctx_st, CUevent_st,
    CUgraph_st, CUgraphEdgeData, CUgraphExec_st, CUgraphNode_st, CUgraphNodeParams,
    CUgraphNodeType, CUresult,
};

use super::memcpy::Memcpy;
use super::memset::Memset;
use super::node::{Action, OTHER_KIND, Place};
use super::{Owner, allocation, child, conditional, event, exec, host, kernel, memcpy, memset};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};
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

    /// The kernel's parameters, which the newer struct has as the older one does.
    fn kernel(self) -> Ptr<CUDA_KERNEL_NODE_PARAMS_v2> {
        self.at(0)
    }

    /// Flags and a reserved number, the context, and then what a copy is.
    fn memcpy(self) -> Ptr<CUDA_MEMCPY3D_v2> {
        self.at(16)
    }

    fn memcpy_context(self) -> Ptr<*mut CUctx_st> {
        self.at(8)
    }

    /// What a fill is, and then the context.
    fn memset(self) -> Ptr<CUDA_MEMSET_NODE_PARAMS_v1> {
        self.at(0)
    }

    fn memset_context(self) -> Ptr<*mut CUctx_st> {
        self.at(40)
    }

    /// The function and what it is called with.
    fn host(self) -> Ptr<CUDA_HOST_NODE_PARAMS_v1> {
        self.at(0)
    }

    fn event(self) -> Answer<Ptr<CUevent_st>> {
        self.at::<*mut CUevent_st>(0).follow()
    }

    fn allocation(self) -> Ptr<CUDA_MEM_ALLOC_NODE_PARAMS> {
        self.at(0)
    }

    fn conditional(self) -> Ptr<CUDA_CONDITIONAL_NODE_PARAMS> {
        self.at(0)
    }

    /// The graph, and who is to own it.
    fn child(self) -> Answer<(usize, u32)> {
        Ok((self.at::<*mut CUgraph_st>(0).read()?.addr(), self.at(8).read()?))
    }
}

/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE` and `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`.
const CLONE: u32 = 0;
const MOVE: u32 = 1;

/// What the kinds answer that are not simulated, semaphores and batches of operations on memory, and
/// those whose parameters stay. Numbers that no header knows are invalid.
fn unsimulated(kind: CUgraphNodeType) -> CUresult {
    if kind.name().is_some() {
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    } else {
        CUresult::CUDA_ERROR_INVALID_VALUE
    }
}

/// Reads what a new node of a graph does.
fn read(state: &mut State, params: Params, parent: usize) -> Answer<(Action, usize)> {
    match params.kind()? {
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => {
            let (kernel, context) = kernel::read(state, params.kernel(), None)?;
            Ok((Action::Kernel(kernel), context))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
            let memcpy = Memcpy::read(state, params.memcpy())?;
            let context = state.or_current(params.memcpy_context().read()?.addr())?;
            Ok((Action::Memcpy(memcpy), context))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
            let memset = Memset::read(state, params.memset())?;
            let context = state.or_current(params.memset_context().read()?.addr())?;
            Ok((Action::Memset(memset), context))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => Ok((host::read(params.host())?, 0)),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok((Action::Empty, 0)),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            Ok((event::read(state, params.event()?, Action::WaitEvent)?, 0))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            Ok((event::read(state, params.event()?, Action::RecordEvent)?, 0))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
            let (graph, ownership) = params.child()?;
            let child = match ownership {
                CLONE => child::copy_of(state, graph, parent)?,
                // A graph cannot be its own child, which moving it could make of it.
                MOVE if graph != parent => take(state, graph)?,
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            };
            Ok((Action::Child(child), 0))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            conditional::read(state, params.conditional(), parent)
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            Ok((allocation::read(state, params.allocation())?, 0))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
            Ok((allocation::read_free(state, params.at(0).read()?, parent)?, 0))
        }
        kind => Err(unsimulated(kind)),
    }
}

/// Takes a graph from the program.
fn take(state: &mut State, handle: usize) -> Answer<usize> {
    state.not_captured_into(handle)?;
    let graph = state.graphs.get_mut(&handle).filter(|graph| graph.is_of_program());
    graph.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.owner = Owner::Node;
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
    place.add(driver, |state| read(state, Params(params), graph.address()))
}

pub(crate) fn add_plain(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    params: Ptr<CUgraphNodeParams>,
) -> Answer {
    add(driver, out, graph, after, Ptr::null(), count, params)
}

/// Refuses parameters of another kind than a node's.
fn of_kind(state: &State, node: usize, params: Params) -> Answer<CUgraphNodeType> {
    let kind = params.kind()?;
    if state.node(node)?.action.kind() == kind { Ok(kind) } else { Err(OTHER_KIND) }
}

pub(crate) fn set_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    params: Ptr<CUgraphNodeParams>,
) -> Answer {
    let mut state = driver.state();
    let (state, node, params) = (&mut *state, node.address(), Params(params));
    match of_kind(state, node, params)? {
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => kernel::set(state, node, params.kernel()),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
            let context = state.or_current(params.memcpy_context().read()?.addr())?;
            memcpy::set(state, node, params.memcpy(), Some(context))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
            let context = state.or_current(params.memset_context().read()?.addr())?;
            memset::set(state, node, params.memset(), Some(context))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => host::set(state, node, params.host()),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok(()),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            event::set(state, node, params.event()?, Action::WaitEvent)
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            event::set(state, node, params.event()?, Action::RecordEvent)
        }
        kind => Err(unsimulated(kind)),
    }
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
    match of_kind(state, node, params)? {
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => {
            exec::change_kernel(state, exec, node, params.kernel())
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
            let context = params.memcpy_context().read()?.addr();
            exec::change_memcpy(state, exec, node, params.memcpy(), context)
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
            let context = params.memset_context().read()?.addr();
            exec::change_memset(state, exec, node, params.memset(), context)
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => {
            exec::change_host(state, exec, node, params.host())
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
            exec::change_child(state, exec, node, params.child()?.0)
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok(()),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            exec::change_event(state, exec, node, params.event()?, Action::WaitEvent)
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            exec::change_event(state, exec, node, params.event()?, Action::RecordEvent)
        }
        kind => Err(unsimulated(kind)),
    }
}

pub(crate) fn get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<CUgraphNodeParams>,
) -> Answer {
    let mut state = driver.state();
    let node = node.address();
    let found = state.node(node)?;
    let (context, action) = (handle::pointer(found.context), found.action.clone());
    let params = Params(out);
    out.cast::<[u8; 256]>().write([0; 256])?;
    out.cast().write(action.kind())?;
    match action {
        Action::Kernel(_) => kernel::write(&mut state, node, params.kernel()),
        Action::Memcpy(memcpy) => {
            params.memcpy_context().write(context)?;
            memcpy.write(params.memcpy())
        }
        Action::Memset(memset) => {
            params.memset_context().write(context)?;
            memset.write(params.memset())
        }
        Action::Host(_) => host::write(&action, params.host()),
        Action::Child(child) => params.at(0).write(handle::pointer::<CUgraph_st>(child)),
        Action::WaitEvent(_) | Action::RecordEvent(_) => {
            let event = event::event_of(&action)?;
            params.at(0).write(handle::pointer::<CUevent_st>(event))
        }
        Action::Conditional(conditional) => conditional.write(context.addr(), params.conditional()),
        Action::Allocate(allocate) => allocate.write(params.allocation()),
        Action::Free(address) => params.at(0).write(address),
        Action::Empty => Ok(()),
    }
}

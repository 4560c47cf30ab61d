//! Nodes that call functions of the program.

use green_ctx_sys::{CUDA_HOST_NODE_PARAMS_v1, CUgraph_st, CUgraphNode_st, CUresult};

use super::node::{Action, OTHER_KIND, Place};
use crate::callback::Callback;
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

pub(super) fn read(params: Ptr<CUDA_HOST_NODE_PARAMS_v1>) -> Answer<Action> {
    let value = params.read()?;
    let function = value.fn_.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    Ok(Action::Host(Callback::host(function, params.held(value.userData))))
}

pub(super) fn write(action: &Action, out: Ptr<CUDA_HOST_NODE_PARAMS_v1>) -> Answer {
    let Action::Host(callback) = action else { return Err(OTHER_KIND) };
    let (function, user_data) = callback.as_host();
    out.write(CUDA_HOST_NODE_PARAMS_v1 { fn_: function, userData: user_data })
}

/// Replaces what a node calls.
pub(super) fn set(state: &mut State, node: usize, params: Ptr<CUDA_HOST_NODE_PARAMS_v1>) -> Answer {
    if !matches!(state.node(node)?.action, Action::Host(_)) {
        return Err(OTHER_KIND);
    }
    state.set_action(node, read(params)?, 0);
    Ok(())
}

pub(crate) fn add(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    params: Ptr<CUDA_HOST_NODE_PARAMS_v1>,
) -> Answer {
    Place::new(out, graph, after, count).add(driver, |_| Ok((read(params)?, 0)))
}

pub(crate) fn get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<CUDA_HOST_NODE_PARAMS_v1>,
) -> Answer {
    let state = driver.state();
    write(&state.node(node.address())?.action, out)
}

pub(crate) fn set_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    params: Ptr<CUDA_HOST_NODE_PARAMS_v1>,
) -> Answer {
    set(&mut driver.state(), node.address(), params)
}

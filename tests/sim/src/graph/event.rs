//! Nodes that record events and wait for them.

use green_ctx_sys::{CUevent_st, CUgraph_st, CUgraphNode_st, CUresult};

use super::node::{Action, OTHER_KIND, Place};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// Reads the event of a node. A null handle is an invalid value like every parameter of a node
/// (cuda.h); others are looked up as everywhere.
pub(super) fn read(
    state: &State,
    event: Ptr<CUevent_st>,
    action: fn(usize) -> Action,
) -> Answer<Action> {
    let event = event.given()?.address();
    state.event(event)?;
    Ok(action(event))
}

pub(super) fn event_of(action: &Action) -> Answer<usize> {
    match action {
        Action::WaitEvent(event) | Action::RecordEvent(event) => Ok(*event),
        _ => Err(OTHER_KIND),
    }
}

/// Replaces the event of a node of the kind that `action` makes.
pub(super) fn set(
    state: &mut State,
    node: usize,
    event: Ptr<CUevent_st>,
    action: fn(usize) -> Action,
) -> Answer {
    if state.node(node)?.action.kind() != action(0).kind() {
        return Err(OTHER_KIND);
    }
    let action = read(state, event, action)?;
    state.set_action(node, action, 0);
    Ok(())
}

fn get(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUevent_st>,
    action: fn(usize) -> Action,
) -> Answer {
    let state = driver.state();
    let found = &state.node(node.address())?.action;
    if found.kind() != action(0).kind() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    out.write(handle::pointer(event_of(found)?))
}

pub(crate) fn add_record(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    event: Ptr<CUevent_st>,
) -> Answer {
    let place = Place::new(out, graph, after, count);
    place.add(driver, |state| Ok((read(state, event, Action::RecordEvent)?, 0)))
}

pub(crate) fn add_wait(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    event: Ptr<CUevent_st>,
) -> Answer {
    let place = Place::new(out, graph, after, count);
    place.add(driver, |state| Ok((read(state, event, Action::WaitEvent)?, 0)))
}

pub(crate) fn get_record(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUevent_st>,
) -> Answer {
    get(driver, node, out, Action::RecordEvent)
}

pub(crate) fn get_wait(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<*mut CUevent_st>,
) -> Answer {
    get(driver, node, out, Action::WaitEvent)
}

pub(crate) fn set_record(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    event: Ptr<CUevent_st>,
) -> Answer {
    set(&mut driver.state(), node.address(), event, Action::RecordEvent)
}

pub(crate) fn set_wait(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    event: Ptr<CUevent_st>,
) -> Answer {
    set(&mut driver.state(), node.address(), event, Action::WaitEvent)
}

//! Updating an executable graph from a graph of the same shape.

use std::mem::replace;
use std::sync::Arc;

use green_ctx_sys::{
    CUgraph_st, CUgraphExec_st, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo,
    CUgraphNode_st, CUresult,
};

use super::allocation::Allocate;
use super::exec::{NODE_PRIORITY, Plan, Step};
use super::memset::Memset;
use super::node::Action;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, refuse_if};
use crate::state::State;

type Outcome = CUgraphExecUpdateResult;

/// Why an update is refused: which node of the graph, and which of those that it comes after.
pub(super) struct Mismatch {
    result: Outcome,
    node: usize,
    from: usize,
}

impl Mismatch {
    fn new(result: Outcome, node: usize) -> Mismatch {
        Mismatch { result, node, from: 0 }
    }

    fn topology(node: usize) -> Mismatch {
        Mismatch::new(Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node)
    }
}

/// Whether a node of an executable graph can do something else from now on (cuda.h,
/// `cuGraphExecUpdate`).
///
/// As recorded, the context of a kernel cannot change, be it alone, with a fill or one of 500, and
/// the size of a fill's elements can.
pub(super) fn allowed(
    state: &State,
    step: &Step,
    action: &Action,
    context: usize,
    flags: u64,
) -> Result<(), Outcome> {
    let require = |holds: bool, result: Outcome| if holds { Ok(()) } else { Err(result) };
    let parameters = Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    // As recorded, copies and fills do not leave their partition, but may go to a context of its own
    // memory.
    let device = |context| state.contexts.get(&context).map(|context| context.device);
    let same_context = step.context == context || device(step.context) != device(context);
    // Memory of the same context, as recorded. What was freed is not known any more.
    let stays = |present: Option<u64>, next: Option<u64>| {
        let device = |address| state.allocation(address).map(|(_, memory)| memory.device);
        let present = present.and_then(device);
        present.is_none_or(|present| next.and_then(device) == Some(present))
    };
    match (&step.action, action) {
        (Action::Kernel(present), Action::Kernel(next)) => {
            let function = Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
            require(step.context == context, function)?;
            let cooperative = present.work.shape.cooperative == next.work.shape.cooperative;
            let priority = flags & NODE_PRIORITY == 0
                || present.attributes.priority() == next.attributes.priority();
            let attributes = Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
            require(cooperative && priority, attributes)
        }
        (Action::Memcpy(present), Action::Memcpy(next)) => {
            let [from, to] = present.addresses();
            let [next_from, next_to] = next.addresses();
            let same_devices = stays(from, next_from) && stays(to, next_to);
            let same = present.kinds() == next.kinds() && same_devices && same_context;
            require(same && present.is_linear() == next.is_linear(), parameters)
        }
        (Action::Memset(present), Action::Memset(next)) => {
            let linear = present.height == 1 && next.height == 1;
            let shape = |fill: &Memset| (fill.width, fill.height, fill.pitch, fill.element());
            let same_shape = shape(present) == shape(next);
            let same_device = stays(Some(present.target()), Some(next.target()));
            require(same_device && same_context && (linear || same_shape), parameters)
        }
        (Action::Conditional(present), Action::Conditional(next)) => {
            require(same_context && present.is_like(next), parameters)
        }
        // Events of the same context, as recorded. One that was destroyed is not known any more.
        (Action::WaitEvent(present), Action::WaitEvent(next))
        | (Action::RecordEvent(present), Action::RecordEvent(next)) => {
            let device = |event| state.events.get(event).map(|event| event.device);
            let same = device(present).is_none_or(|present| device(next) == Some(present));
            require(same, parameters)
        }
        // Other memory is refused (not recorded).
        (Action::Allocate(Allocate { address, .. }), Action::Allocate(next)) => {
            require(*address == next.address, Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED)
        }
        (Action::Free(address), Action::Free(next)) => {
            require(address == next, Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED)
        }
        (present, next) => {
            let changed = Outcome::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
            require(present.kind() == next.kind(), changed)
        }
    }
}

/// Pairs the nodes of a graph with the steps of a plan, from those that none comes after and along
/// the edges, in their order (cuda.h, `cuGraphExecUpdate`). Returns steps and nodes in the order in
/// which they were paired.
fn pair(state: &State, plan: &Plan, graph: usize) -> Result<Vec<(usize, usize)>, Mismatch> {
    let nodes = state.graph(graph).map_or(&[][..], |graph| &graph.nodes);
    if nodes.len() != plan.steps.len() {
        return Err(Mismatch::topology(0));
    }
    let after = |node: usize| state.nodes.get(&node).map_or(&[][..], |node| &node.after[..]);
    let mut exits = nodes.to_vec();
    exits.retain(|node| state.nodes[node].before.is_empty());
    if exits.len() != plan.exits.len() {
        // Of too many exits the first is named, of too few none, as recorded.
        let first = exits.first().filter(|_| exits.len() > plan.exits.len());
        return Err(Mismatch::topology(first.copied().unwrap_or(0)));
    }
    let mut node_of = vec![0; plan.steps.len()];
    let mut step_of = handle::Table::default();
    let mut open: Vec<(usize, usize)> = plan.exits.iter().copied().zip(exits).collect();
    let mut pairs = Vec::with_capacity(nodes.len());
    for (step, node) in &open {
        node_of[*step] = *node;
        step_of.insert(*node, *step);
    }
    while let Some((step, node)) = open.pop() {
        pairs.push((step, node));
        let (steps, edges) = (&plan.steps[step].after, after(node));
        if steps.len() != edges.len() {
            return Err(Mismatch::topology(node));
        }
        for (step, edge) in steps.iter().zip(edges) {
            match (node_of[*step], step_of.get(&edge.node)) {
                (0, None) => {
                    node_of[*step] = edge.node;
                    step_of.insert(edge.node, *step);
                    open.push((*step, edge.node));
                }
                (_, Some(paired)) if paired == step => {}
                _ => return Err(Mismatch { from: edge.node, ..Mismatch::topology(node) }),
            }
        }
    }
    Ok(pairs)
}

/// The plan with the parameters of a graph's nodes.
pub(super) fn updated(
    state: &State,
    plan: &Plan,
    graph: usize,
    flags: u64,
) -> Result<Plan, Mismatch> {
    let pairs = pair(state, plan, graph)?;
    let mut updated = plan.clone();
    updated.objects = state.graph(graph).map(|graph| graph.objects.clone()).unwrap_or_default();
    // Of several mistakes the one next to the exits is reported: of a chain not the first node, as
    // recorded.
    for (step, handle) in pairs {
        let step = &mut updated.steps[step];
        let Ok(node) = state.node(handle) else { return Err(Mismatch::topology(0)) };
        allowed(state, step, &node.action, node.context, flags)
            .map_err(|result| Mismatch::new(result, handle))?;
        let graphs = step.children.iter().zip(node.action.graphs());
        step.children = graphs
            .map(|(plan, graph)| self::updated(state, plan, *graph, flags))
            .collect::<Result<_, _>>()?;
        step.action = node.action.clone();
        step.context = node.context;
    }
    Ok(updated)
}

/// Updates an executable graph where that is allowed, and returns what came of it.
fn try_update(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    graph: Ptr<CUgraph_st>,
    counts: bool,
) -> Answer<CUgraphExecUpdateResultInfo> {
    let mut state = driver.state();
    let found = state.executable(exec.address())?;
    state.can_take(graph.address(), exec.address())?;
    let updated = match state.graph(graph.address())?.added == found.plan.added || !counts {
        true => updated(&state, &found.plan, graph.address(), found.flags),
        false => Err(Mismatch::topology(0)),
    };
    let none = Mismatch::new(Outcome::CU_GRAPH_EXEC_UPDATE_SUCCESS, 0);
    let Mismatch { result, node, from } = match updated {
        Ok(plan) => {
            if let Some(exec) = state.executables.get_mut(&exec.address()) {
                let (plan, time) = (replace(&mut exec.plan, Arc::new(plan)), exec.done.time);
                state.let_go(plan, time);
            }
            none
        }
        Err(mismatch) => mismatch,
    };
    let (node, from) = (handle::pointer(node), handle::pointer(from));
    Ok(CUgraphExecUpdateResultInfo { result, errorNode: node, errorFromNode: from })
}

/// What the call answers beside what it wrote.
fn status(result: Outcome) -> Answer {
    let failed = result != Outcome::CU_GRAPH_EXEC_UPDATE_SUCCESS;
    refuse_if(failed, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
}

pub(crate) fn update(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    graph: Ptr<CUgraph_st>,
    out: Ptr<CUgraphExecUpdateResultInfo>,
) -> Answer {
    out.given()?;
    let info = try_update(driver, exec, graph, false)?;
    out.write(info)?;
    status(info.result)
}

/// The form of 10.2, which reports one node. As recorded, it counts nodes that were destroyed, too.
pub(crate) fn update_plain(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    graph: Ptr<CUgraph_st>,
    error_node: Ptr<*mut CUgraphNode_st>,
    result: Ptr<CUgraphExecUpdateResult>,
) -> Answer {
    let info = try_update(driver, exec, graph, true)?;
    result.write_if_given(info.result);
    error_node.write_if_given(info.errorNode);
    status(info.result)
}

//! Executable graphs: making them, and changing them one node at a time.

use std::sync::Arc;

use green_ctx_sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph_st, CUgraphExec_st, CUgraphInstantiate_flags as Flags,
    CUgraphInstantiateResult, CUgraphNode_st, CUresult, CUstream_st,
};

use super::allocation::Allocate;
use super::node::{Action, OTHER_KIND, Read};
use super::user_object::Held;
use super::{Graph, conditional, update};
use crate::clock::Moment;
use crate::context::KEEP_LOCAL_MEMORY;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::state::State;

/// The flags of instantiation (cuda.h, `CUgraphInstantiate_flags`).
pub(super) const AUTO_FREE: u64 = flag(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
const UPLOAD: u64 = flag(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
const DEVICE_LAUNCH: u64 = flag(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
pub(super) const NODE_PRIORITY: u64 = flag(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);

const fn flag(flag: Flags) -> u64 {
    flag.0 as u64
}

/// An executable graph.
pub(crate) struct Exec {
    /// Shared with a launch that is being made, which later changes do not concern.
    pub(super) plan: Arc<Plan>,
    pub(super) flags: u64,
    /// The graph that it was made of, if there is one executable of that at a time.
    single: Option<usize>,
    /// When its launches so far are over.
    pub(super) done: Moment,
}

/// The nodes of a graph as they were when it was instantiated.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    /// How many nodes were ever added to the graph.
    pub(super) added: usize,
    /// In an order in which each comes after those that it depends on.
    pub(super) steps: Vec<Step>,
    /// The steps that none depends on, in the order in which their nodes were added.
    pub(super) exits: Vec<usize>,
    /// The user objects of the graph.
    pub(super) objects: Held,
}

/// A node of an executable graph.
#[derive(Clone)]
pub(super) struct Step {
    /// The handle of the node in the graph that was instantiated.
    pub(super) node: usize,
    pub(super) action: Action,
    pub(super) context: usize,
    /// The numbers of the steps that it comes after, in the order of the node's edges.
    pub(super) after: Vec<usize>,
    /// What it launches: one of a child graph, one for each body of a conditional node.
    pub(super) children: Vec<Plan>,
    pub(super) enabled: bool,
}

/// Why a graph cannot be instantiated, and which of its nodes is at fault.
struct Refusal {
    status: CUresult,
    result: CUgraphInstantiateResult,
    node: usize,
}

impl Refusal {
    fn of(node: usize) -> impl Fn(CUresult) -> Refusal {
        let result = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR;
        move |status| Refusal { status, result, node }
    }

    fn invalid(node: usize, result: CUgraphInstantiateResult) -> Refusal {
        Refusal { status: CUresult::CUDA_ERROR_INVALID_VALUE, result, node }
    }
}

impl Plan {
    /// Whether it holds user objects, or a child does.
    pub(super) fn holds(&self) -> bool {
        let mut children = self.steps.iter().flat_map(|step| &step.children);
        !self.objects.is_empty() || children.any(Plan::holds)
    }

    /// The step of a node of the graph that was instantiated, or of a graph in it.
    pub(super) fn find(&self, node: usize) -> Option<&Step> {
        let children = || self.steps.iter().flat_map(|step| &step.children);
        self.steps
            .iter()
            .find(|step| step.node == node)
            .or_else(|| children().find_map(|child| child.find(node)))
    }

    fn find_mut(&mut self, node: usize) -> Option<&mut Step> {
        if let Some(index) = self.steps.iter().position(|step| step.node == node) {
            return self.steps.get_mut(index);
        }
        let mut children = self.steps.iter_mut().flat_map(|step| &mut step.children);
        children.find_map(|child| child.find_mut(node))
    }

    /// Every step, those of child graphs included.
    pub(super) fn all(&self) -> Vec<&Step> {
        let mut all = Vec::new();
        for step in &self.steps {
            all.push(step);
            all.extend(step.children.iter().flat_map(Plan::all));
        }
        all
    }
}

impl State {
    /// The executable graph with this handle.
    pub(super) fn executable(&self, handle: usize) -> Answer<&Exec> {
        valid(self.executables.get(&handle))
    }

    /// The step of a node in an executable graph. The node has to be there still, as recorded.
    fn step(&self, exec: usize, node: usize) -> Answer<&Step> {
        self.node(node)?;
        valid(self.executable(exec)?.plan.find(node))
    }

    /// Brings the nodes of a graph into an order that its edges allow.
    fn plan(&self, graph: usize) -> Result<Plan, Refusal> {
        let Graph { nodes, objects, added, .. } = self.graph(graph).map_err(Refusal::of(0))?;
        let mut plan = Plan { added: *added, objects: objects.clone(), ..Plan::default() };
        let mut places = crate::handle::Table::default();
        let mut left: Vec<usize> = nodes.clone();
        while !left.is_empty() {
            let before = left.len();
            let mut waiting = Vec::new();
            for handle in left {
                let node = self.node(handle).map_err(Refusal::of(handle))?;
                let after: Option<Vec<usize>> =
                    node.after.iter().map(|edge| places.get(&edge.node).copied()).collect();
                let Some(after) = after else {
                    waiting.push(handle);
                    continue;
                };
                let graphs = node.action.graphs().iter();
                let children: Vec<Plan> =
                    graphs.map(|graph| self.plan(*graph)).collect::<Result<_, _>>()?;
                if let Action::Conditional(_) = node.action {
                    conditional::check_bodies(&children, node.context)
                        .map_err(|(node, result)| Refusal::invalid(node, result))?;
                }
                self.can_run(node.context).map_err(Refusal::of(handle))?;
                places.insert(handle, plan.steps.len());
                plan.steps.push(Step {
                    node: handle,
                    action: node.action.clone(),
                    context: node.context,
                    after,
                    children,
                    enabled: true,
                });
            }
            left = waiting;
            if left.len() == before {
                let cycle = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
                return Err(Refusal::invalid(left[0], cycle));
            }
        }
        let exits = nodes.iter().filter(|node| self.nodes[node].before.is_empty());
        plan.exits = exits.map(|node| places[node]).collect();
        Ok(plan)
    }

    /// Refuses a context that is not there. That blocks which wait for each other fit into it is not
    /// asked, as recorded.
    fn can_run(&self, context: usize) -> Answer {
        if context == 0 { Ok(()) } else { self.context(context).map(drop) }
    }

    /// Instantiates with flags of which these are known. As recorded, it needs a current context,
    /// is one of the calls that captures forbid, and makes one executable at a time of a graph with
    /// conditional nodes or nodes that allocate.
    fn instantiate(&mut self, graph: usize, flags: u64, known: u64) -> Result<usize, Refusal> {
        self.graph(graph).map_err(Refusal::of(0))?;
        check_flags(flags, known).map_err(Refusal::of(0))?;
        self.current().map_err(Refusal::of(0))?;
        self.no_strict_capture().map_err(Refusal::of(0))?;
        if self.has_unused_condition(graph) {
            let result = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
            return Err(Refusal::invalid(0, result));
        }
        let plan = self.plan(graph)?;
        self.can_take(graph, 0).map_err(Refusal::of(0))?;
        if flags & DEVICE_LAUNCH != 0 {
            fits_the_device(&plan)?;
        }
        for step in plan.all() {
            if let Action::Allocate(Allocate { address, .. }) = step.action {
                self.note_free(address, None);
            }
            if let Some(device) = step.action.device_of_kernels(self, step.context) {
                self.devices[device].flags |= KEEP_LOCAL_MEMORY;
            }
        }
        let exec = handle::next();
        let (plan, flags, done) = (Arc::new(plan), flags & !UPLOAD, Moment::default());
        let single = self.is_single(graph).then_some(graph);
        self.executables.insert(exec, Exec { plan, flags, single, done });
        Ok(exec)
    }

    /// Refuses a graph of which there is one executable at a time, where there is another one.
    pub(super) fn can_take(&self, graph: usize, own: usize) -> Answer {
        self.graph(graph)?;
        let mut others = self.executables.iter().filter(|(exec, _)| **exec != own);
        let taken = others.any(|(_, other)| other.single == Some(graph));
        refuse_if(taken, CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    /// Replaces what a node of an executable graph does.
    pub(super) fn change(
        &mut self,
        exec: usize,
        node: usize,
        read: impl FnOnce(&mut State, &Step) -> Read,
    ) -> Answer {
        let flags = self.executable(exec)?.flags;
        let step = self.step(exec, node)?.clone();
        let (action, context) = read(self, &step)?;
        update::allowed(self, &step, &action, context, flags)
            .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.can_run(context)?;
        self.step_mut(exec, node, |step| (step.action, step.context) = (action, context));
        Ok(())
    }

    fn step_mut(&mut self, exec: usize, node: usize, change: impl FnOnce(&mut Step)) {
        let plan = self.executables.get_mut(&exec).map(|exec| Arc::make_mut(&mut exec.plan));
        if let Some(step) = plan.and_then(|plan| plan.find_mut(node)) {
            change(step);
        }
    }
}

/// Refuses what cannot be launched from a device (cuda.h, `cuGraphInstantiate`).
fn fits_the_device(plan: &Plan) -> Result<(), Refusal> {
    let steps = plan.all();
    let is_work = |step: &&&Step| {
        matches!(step.action, Action::Kernel(_) | Action::Memcpy(_) | Action::Memset(_))
    };
    let other = steps.iter().find(|step| !is_work(step) && step.children.is_empty());
    if let Some(other) = other {
        let result = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
        return Err(Refusal::invalid(other.node, result));
    }
    let mut work = steps.iter().filter(is_work);
    let Some(first) = work.next() else {
        let result = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        return Err(Refusal::invalid(0, result));
    };
    match work.find(|step| step.context != first.context) {
        Some(step) => {
            let result =
                CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
            Err(Refusal::invalid(step.node, result))
        }
        None => Ok(()),
    }
}

/// Refuses flags that are unknown or exclude each other.
fn check_flags(flags: u64, known: u64) -> Answer {
    let both = AUTO_FREE | DEVICE_LAUNCH;
    invalid_if(flags & !known != 0 || flags & both == both)
}

pub(crate) fn instantiate(
    driver: &Driver,
    out: Ptr<*mut CUgraphExec_st>,
    graph: Ptr<CUgraph_st>,
    flags: u64,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let known = AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY;
    let made = state.instantiate(graph.address(), flags, known);
    let exec = made.map_err(|refusal| refusal.status)?;
    out.write(handle::pointer(exec))
}

pub(crate) fn instantiate_with_params(
    driver: &Driver,
    out: Ptr<*mut CUgraphExec_st>,
    graph: Ptr<CUgraph_st>,
    params: Ptr<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let mut value = params.read()?;
    if value.flags & UPLOAD != 0 {
        state.stream(value.hUploadStream.addr())?;
    }
    let known = AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;
    let made = state.instantiate(graph.address(), value.flags, known);
    let (result, node) = match &made {
        Ok(_) => (CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS, 0),
        Err(refusal) => (refusal.result, refusal.node),
    };
    (value.result_out, value.hErrNode_out) = (result, handle::pointer(node));
    params.write(value)?;
    out.write(handle::pointer(made.map_err(|refusal| refusal.status)?))
}

/// Destroys an executable graph; a launch of it goes on.
pub(crate) fn destroy(driver: &Driver, exec: Ptr<CUgraphExec_st>) -> Answer {
    let mut state = driver.state();
    let Exec { plan, done, .. } = valid(state.executables.remove(&exec.address()))?;
    state.let_go(plan, done.time);
    state.drop_unused_addresses();
    Ok(())
}

/// The flags that it was made with, without the one of priorities, as recorded.
pub(crate) fn get_flags(driver: &Driver, exec: Ptr<CUgraphExec_st>, out: Ptr<u64>) -> Answer {
    let state = driver.state();
    out.write(state.executable(exec.address())?.flags & !NODE_PRIORITY)
}

/// Uploads, which takes no time: it is checked, and kept out of captures.
pub(crate) fn upload(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let mut state = driver.state();
    let stream = state.stream(stream.address())?;
    state.not_captured(stream)?;
    state.executable(exec.address()).map(drop)
}

/// Replaces the parameters of all nodes of a child graph. Unlike an update of the whole, it counts
/// nodes that were destroyed, as recorded.
pub(super) fn change_child(state: &mut State, exec: usize, node: usize, child: usize) -> Answer {
    let Step { action: Action::Child(_), children, .. } = state.step(exec, node)? else {
        return Err(OTHER_KIND);
    };
    let refused = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    refuse_if(state.graph(child)?.added != children[0].added, refused)?;
    let plan = update::updated(state, &children[0], child, state.executable(exec)?.flags)
        .map_err(|_| refused)?;
    state.step_mut(exec, node, |step| step.children = vec![plan]);
    Ok(())
}

pub(crate) fn set_child(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    node: Ptr<CUgraphNode_st>,
    child: Ptr<CUgraph_st>,
) -> Answer {
    change_child(&mut driver.state(), exec.address(), node.address(), child.address())
}

/// The step of a node that can be disabled: only kernels, fills and copies can (cuda.h).
fn switchable(state: &State, exec: usize, node: usize) -> Answer<&Step> {
    let step = state.step(exec, node)?;
    match step.action {
        Action::Kernel(_) | Action::Memcpy(_) | Action::Memset(_) => Ok(step),
        _ => Err(OTHER_KIND),
    }
}

pub(crate) fn set_enabled(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    node: Ptr<CUgraphNode_st>,
    enabled: u32,
) -> Answer {
    let mut state = driver.state();
    switchable(&state, exec.address(), node.address())?;
    state.step_mut(exec.address(), node.address(), |step| step.enabled = enabled != 0);
    Ok(())
}

pub(crate) fn get_enabled(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<u32>,
) -> Answer {
    let state = driver.state();
    out.write(u32::from(switchable(&state, exec.address(), node.address())?.enabled))
}

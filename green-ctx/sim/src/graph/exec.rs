//! Executable graphs.

use std::sync::Arc;

use green_ctx_sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph_st, CUgraphExec_st, CUgraphInstantiate_flags as Flags,
    CUgraphInstantiateResult, CUresult, CUstream_st,
};

use super::Graph;
use super::allocation::Allocate;
use super::node::Action;
use super::user_object::Held;
use crate::clock::Moment;
use crate::context::KEEP_LOCAL_MEMORY;
use crate::driver::Driver;
use crate::effects::Effect;
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
    /// The nodes of the graph. A launch in progress shares this plan.
    pub(super) plan: Arc<Plan>,
    pub(super) flags: u64,
    /// The source graph, if that graph may have only one executable graph at a time.
    single: Option<usize>,
    /// The moment at which all launches so far have ended.
    pub(super) done: Moment,
}

/// The nodes of a graph at its instantiation.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    /// The nodes, in an order in which each node comes after its dependencies.
    pub(super) steps: Vec<Step>,
    /// The user objects of the graph.
    pub(super) objects: Held,
}

/// A node of an executable graph.
#[derive(Clone)]
pub(super) struct Step {
    /// The handle of the node in the instantiated graph.
    node: usize,
    pub(super) action: Action,
    pub(super) context: usize,
    /// The indices of the steps that this step depends on, in the order of the node's edges.
    pub(super) after: Vec<usize>,
    /// The child graph that this step launches.
    pub(super) child: Option<Plan>,
}

/// The reason why a graph cannot be instantiated, and the node responsible.
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
    /// Returns whether the graph or a child graph references user objects.
    pub(super) fn holds(&self) -> bool {
        let mut children = self.steps.iter().filter_map(|step| step.child.as_ref());
        !self.objects.is_empty() || children.any(Plan::holds)
    }

    /// Returns every step, including those of child graphs.
    pub(super) fn all(&self) -> Vec<&Step> {
        let mut all = Vec::new();
        for step in &self.steps {
            all.push(step);
            all.extend(step.child.iter().flat_map(Plan::all));
        }
        all
    }
}

impl State {
    /// Returns the executable graph with this handle.
    pub(super) fn executable(&self, handle: usize) -> Answer<&Exec> {
        valid(self.executables.get(&handle))
    }

    /// Returns the nodes of a graph in the order of addition, in which each node comes after its
    /// dependencies.
    fn plan(&self, graph: usize) -> Result<Plan, Refusal> {
        let Graph { nodes, objects, .. } = self.graph(graph).map_err(Refusal::of(0))?;
        let mut plan = Plan { steps: Vec::with_capacity(nodes.len()), objects: objects.clone() };
        let mut places = handle::Table::default();
        for (place, &handle) in nodes.iter().enumerate() {
            let node = self.node(handle).map_err(Refusal::of(handle))?;
            let child = node.action.child().map(|child| self.plan(child)).transpose()?;
            self.can_run(node.context).map_err(Refusal::of(handle))?;
            places.insert(handle, place);
            plan.steps.push(Step {
                node: handle,
                action: node.action.clone(),
                context: node.context,
                after: node.after.iter().map(|before| places[before]).collect(),
                child,
            });
        }
        Ok(plan)
    }

    /// Returns an error if the context does not exist. Does not check whether the blocks of a cooperative
    /// kernel fit in the context (recorded on hardware).
    fn can_run(&self, context: usize) -> Answer {
        if context == 0 { Ok(()) } else { self.context(context).map(drop) }
    }

    /// Instantiates a graph with `flags`. `known` holds the flags that the C function accepts. The call
    /// needs a current context, and a capture in progress may forbid the call. A graph with allocation
    /// nodes can have only one executable graph at a time (recorded on hardware).
    fn instantiate(&mut self, graph: usize, flags: u64, known: u64) -> Result<usize, Refusal> {
        self.graph(graph).map_err(Refusal::of(0))?;
        check_flags(flags, known).map_err(Refusal::of(0))?;
        self.current().map_err(Refusal::of(0))?;
        self.no_strict_capture().map_err(Refusal::of(0))?;
        let plan = self.plan(graph)?;
        let taken = self.executables.values().any(|other| other.single == Some(graph));
        refuse_if(taken, CUresult::CUDA_ERROR_NOT_SUPPORTED).map_err(Refusal::of(0))?;
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
}

/// Refuses graphs that cannot be launched from a device (cuda.h, `cuGraphInstantiate`).
fn fits_the_device(plan: &Plan) -> Result<(), Refusal> {
    let steps = plan.all();
    let is_work = |step: &&&Step| {
        matches!(step.action, Action::Kernel(_) | Action::Memcpy(_) | Action::Memset(_))
    };
    let other = steps.iter().find(|step| !is_work(step) && step.child.is_none());
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

/// Destroys an executable graph. A running launch continues.
pub(crate) fn destroy(driver: &Driver, exec: Ptr<CUgraphExec_st>) -> Answer {
    let mut state = driver.state();
    let Exec { plan, done, .. } = valid(state.executables.remove(&exec.address()))?;
    state.let_go(plan, done.time);
    state.drop_unused_addresses();
    Ok(())
}

/// Checks the arguments of an upload, which takes no time in the simulator. An upload cannot be captured.
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

impl State {
    /// Releases the references of a destroyed executable graph when its launches have ended.
    fn let_go(&mut self, plan: Arc<Plan>, time: u64) {
        if plan.holds() && time > self.now {
            self.later(time, 0, Effect::LetGo(plan));
        }
    }
}

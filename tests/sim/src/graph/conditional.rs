//! Nodes that launch one of several graphs, or none, as a condition says.
//!
//! A kernel sets a condition with a function of the device that no closure has, so that a condition
//! keeps the value that each launch begins with.

use std::sync::Arc;

use green_ctx_sys::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUctx_st, CUgraph_st, CUgraphConditionalNodeType as Kind,
    CUgraphInstantiateResult as Refused, CUresult,
};

use super::Owner;
use super::exec::Plan;
use super::kind::At;
use super::node::{Action, Node, Read};
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`: each launch begins with the value that the handle was made with.
const ASSIGN_DEFAULT: u32 = 1;

/// The first version with `else` and `switch` (cuda.h of 12.3: the size must be 1).
const SEVERAL_BODIES: u32 = 12_080;

/// What a conditional handle stands for.
pub(crate) struct Condition {
    graph: usize,
    context: usize,
    /// What it is when a launch begins. Without a default nothing says what; here it is 0.
    value: u32,
    /// Whether a node has it.
    taken: bool,
}

impl Condition {
    /// The graph that it was made for.
    pub(super) fn graph(&self) -> usize {
        self.graph
    }
}

/// What a conditional node launches.
#[derive(Clone)]
pub(crate) struct Conditional {
    condition: usize,
    value: u32,
    kind: Kind,
    /// The handles of its graphs, in the array that the program was given.
    pub(super) bodies: Arc<[usize]>,
}

/// What a launch does at a conditional node.
pub(super) enum Choice {
    /// Runs the body of this number.
    Body(usize),
    Nothing,
    /// Runs its body for ever.
    Endless,
}

impl Conditional {
    /// What the condition's value means (cuda.h, `CUDA_CONDITIONAL_NODE_PARAMS`).
    pub(super) fn choice(&self) -> Choice {
        let value = self.value as usize;
        let body = match self.kind {
            Kind::CU_GRAPH_COND_TYPE_WHILE if value == 0 => return Choice::Nothing,
            Kind::CU_GRAPH_COND_TYPE_WHILE => return Choice::Endless,
            Kind::CU_GRAPH_COND_TYPE_IF => usize::from(value == 0),
            _ => value,
        };
        if body < self.bodies.len() { Choice::Body(body) } else { Choice::Nothing }
    }

    /// Whether it can become another one in an executable (cuda.h, `cuGraphExecUpdate`: the value
    /// may change, and what is in the bodies by the rules of its own).
    pub(super) fn is_like(&self, other: &Conditional) -> bool {
        self.kind == other.kind && self.bodies.len() == other.bodies.len()
    }

    /// The parameters of its node.
    fn write_to(&self, context: usize, out: Ptr<CUDA_CONDITIONAL_NODE_PARAMS>) -> Answer {
        out.write(CUDA_CONDITIONAL_NODE_PARAMS {
            handle: self.condition as u64,
            type_: self.kind,
            size: self.bodies.len() as u32,
            phGraph_out: self.bodies.as_ptr().cast_mut().cast::<*mut CUgraph_st>(),
            ctx: handle::pointer(context),
        })
    }
}

pub(crate) fn create_handle(
    driver: &Driver,
    out: Ptr<u64>,
    graph: Ptr<CUgraph_st>,
    context: Ptr<CUctx_st>,
    value: u32,
    flags: u32,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    state.graph(graph.address())?;
    invalid_if(flags & !ASSIGN_DEFAULT != 0)?;
    let context = context.address();
    state.context(context)?;
    let handle = handle::next();
    let value = if flags == ASSIGN_DEFAULT { value } else { 0 };
    let condition = Condition { graph: graph.address(), context, value, taken: false };
    state.conditions.insert(handle, condition);
    out.write(handle as u64)
}

/// Whether there may be so many bodies.
fn size_fits(state: &State, kind: Kind, size: u32) -> bool {
    let most = if state.version >= SEVERAL_BODIES { 2 } else { 1 };
    match kind {
        Kind::CU_GRAPH_COND_TYPE_IF => (1..=most).contains(&size),
        Kind::CU_GRAPH_COND_TYPE_WHILE => size == 1,
        Kind::CU_GRAPH_COND_TYPE_SWITCH => most > 1 && size > 0,
        _ => false,
    }
}

impl super::kind::Kind for Conditional {
    type Params = CUDA_CONDITIONAL_NODE_PARAMS;
    type Given = Ptr<CUDA_CONDITIONAL_NODE_PARAMS>;

    fn of(action: &Action) -> Option<Conditional> {
        if let Action::Conditional(conditional) = action { Some(conditional.clone()) } else { None }
    }

    /// Makes the bodies of a new node, too.
    fn read(state: &mut State, params: Self::Given, at: At<'_>, _: Option<&Self>) -> Read {
        let At::New { graph, .. } = at else { return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) };
        let given = params.read()?;
        let context = given.ctx.addr();
        state.context(context)?;
        invalid_if(!size_fits(state, given.type_, given.size))?;
        let condition = usize::try_from(given.handle).unwrap_or(0);
        let within = state.outermost(graph);
        let found = valid(state.conditions.get_mut(&condition))?;
        let here = [within, graph].contains(&found.graph) && found.context == context;
        invalid_if(found.taken || !here)?;
        found.taken = true;
        let value = found.value;
        let bodies: Arc<[usize]> = (0..given.size).map(|_| state.add_graph(Owner::Node)).collect();
        let node = Conditional { condition, value, kind: given.type_, bodies };
        node.write_to(context, params)?;
        Ok((Action::Conditional(node), context))
    }

    fn write(self, node: &mut Node, out: Ptr<Self::Params>) -> Answer {
        self.write_to(node.context, out)
    }
}

impl State {
    /// The graph that a body is in, of bodies in bodies the outermost; the graph itself otherwise.
    fn outermost(&self, graph: usize) -> usize {
        let node = self.nodes.values().find(|node| node.action.bodies().contains(&graph));
        node.map_or(graph, |node| self.outermost(node.graph))
    }

    /// Whether a graph has a handle that no node has.
    pub(super) fn has_unused_condition(&self, graph: usize) -> bool {
        self.conditions.values().any(|condition| condition.graph == graph && !condition.taken)
    }
}

/// Refuses bodies with work that is not in the node's context, as recorded, and with nodes that
/// cannot be there (cuda.h, `CUDA_CONDITIONAL_NODE_PARAMS`). Returns the node at fault.
pub(super) fn check_bodies(bodies: &[Plan], context: usize) -> Result<(), (usize, Refused)> {
    for step in bodies.iter().flat_map(Plan::all) {
        let (allowed, reason) = match step.action {
            Action::Kernel(_) | Action::Memcpy(_) | Action::Memset(_) | Action::Conditional(_) => {
                let reason = Refused::CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
                (step.context == context, reason)
            }
            Action::Empty | Action::Child(_) => continue,
            _ => (false, Refused::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED),
        };
        if !allowed {
            return Err((step.node, reason));
        }
    }
    Ok(())
}

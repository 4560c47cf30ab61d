//! The kinds of nodes: what the functions for one kind and those for every kind have in common.

use green_ctx_sys::{CUctx_st, CUgraph_st, CUgraphExec_st, CUgraphNode_st};

use super::edge::Edge;
use super::node::{Action, Node, OTHER_KIND, Place, Read};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, valid};
use crate::state::State;

/// What the functions for one kind alone are given for parameters of type `P`.
pub(crate) trait Given<P>: Copy {
    /// What is given where parameters are written.
    fn at(params: Ptr<P>) -> Answer<Self>;
}

/// A pointer to the parameters.
impl<P> Given<P> for Ptr<P> {
    fn at(params: Ptr<P>) -> Answer<Self> {
        Ok(params)
    }
}

/// A handle.
impl<T> Given<*mut T> for Ptr<T> {
    fn at(params: Ptr<*mut T>) -> Answer<Self> {
        params.follow()
    }
}

/// An address.
impl Given<u64> for u64 {
    fn at(params: Ptr<u64>) -> Answer<u64> {
        params.read()
    }
}

/// A kind of node: how its parameters are read and given out.
pub(crate) trait Kind: Sized {
    /// What the parameters are written as.
    type Params;
    type Given: Given<Self::Params>;
    /// Where the parameters are in the union of the functions for every kind, in bytes.
    const PARAMS: usize = 0;
    /// Where the union has a context of its own, if it has one.
    const CONTEXT: Option<usize> = None;

    /// What a node of this kind does; `None` for other kinds.
    fn of(action: &Action) -> Option<Self>;

    /// Reads what a node is to do and in which context, in place of what it does at `present`.
    fn read(state: &mut State, given: Self::Given, at: At<'_>, present: Option<&Self>) -> Read;

    /// Gives out the parameters of a node that does this.
    fn write(self, node: &mut Node, out: Ptr<Self::Params>) -> Answer;
}

/// What parameters are read for, with the handle of the context that is named, 0 for none.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// A new node of a graph, after others.
    New { graph: usize, context: usize, after: &'a [Edge] },
    /// A node that there is. Some functions cannot name a context.
    Node { context: Option<usize> },
    /// A node of an executable graph, in a context of its own.
    Step { own: usize, context: usize },
}

impl At<'_> {
    /// The context of a copy or a fill, which is `same` as the one that is there.
    ///
    /// Of a new node a null context is accepted, as recorded, and means the current one (which is not).
    /// Where no context is named a node moves to the current one, as recorded. Where none is current
    /// either it leaves the one that it had, as recorded, and has none of its own (which of the others it
    /// goes to is not recorded). As recorded, a step that does the same as before is accepted with every
    /// context, and stays where it is.
    pub(super) fn context(self, state: &mut State, same: bool) -> Answer<usize> {
        let (named, stays) = match self {
            At::New { context, .. } => return state.or_current(context),
            At::Node { context } => (context.or_else(|| state.current_handle()).unwrap_or(0), None),
            At::Step { own, context } => (context, (same || context == 0).then_some(own)),
        };
        if named != 0 {
            state.context(named)?;
        }
        Ok(stays.unwrap_or(named))
    }
}

/// Adds a node.
pub(crate) fn add<K: Kind>(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    given: K::Given,
) -> Answer {
    add_in::<K>(driver, out, graph, after, count, given, Ptr::null())
}

/// Adds a node to run in a context.
pub(crate) fn add_in<K: Kind>(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    given: K::Given,
    context: Ptr<CUctx_st>,
) -> Answer {
    let (place, context) = (Place::new(out, graph, after, count), context.address());
    place.add(driver, |state, after| {
        K::read(state, given, At::New { graph: graph.address(), context, after }, None)
    })
}

pub(crate) fn get<K: Kind>(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<K::Params>,
) -> Answer {
    let mut state = driver.state();
    write::<K>(valid(state.nodes.get_mut(&node.address()))?, out)
}

pub(super) fn write<K: Kind>(node: &mut Node, out: Ptr<K::Params>) -> Answer {
    K::of(&node.action).ok_or(OTHER_KIND)?.write(node, out)
}

pub(crate) fn set<K: Kind>(driver: &Driver, node: Ptr<CUgraphNode_st>, given: K::Given) -> Answer {
    replace::<K>(&mut driver.state(), node.address(), given, None)
}

/// Replaces what a node does.
pub(super) fn replace<K: Kind>(
    state: &mut State,
    node: usize,
    given: K::Given,
    context: Option<usize>,
) -> Answer {
    let present = K::of(&state.node(node)?.action).ok_or(OTHER_KIND)?;
    let (action, context) = K::read(state, given, At::Node { context }, Some(&present))?;
    state.set_action(node, action, context);
    Ok(())
}

pub(crate) fn set_exec<K: Kind>(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    node: Ptr<CUgraphNode_st>,
    given: K::Given,
) -> Answer {
    change::<K>(&mut driver.state(), exec.address(), node.address(), given, 0)
}

pub(crate) fn set_exec_in<K: Kind>(
    driver: &Driver,
    exec: Ptr<CUgraphExec_st>,
    node: Ptr<CUgraphNode_st>,
    given: K::Given,
    context: Ptr<CUctx_st>,
) -> Answer {
    let context = context.address();
    change::<K>(&mut driver.state(), exec.address(), node.address(), given, context)
}

/// Replaces what a node of an executable graph does.
pub(super) fn change<K: Kind>(
    state: &mut State,
    exec: usize,
    node: usize,
    given: K::Given,
    context: usize,
) -> Answer {
    state.change(exec, node, |state, step| {
        let present = K::of(&step.action).ok_or(OTHER_KIND)?;
        let at = At::Step { own: step.context, context };
        K::read(state, given, at, Some(&present))
    })
}

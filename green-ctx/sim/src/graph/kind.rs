//! The kinds of nodes: what the functions for one kind and those for every kind have in common.

use green_ctx_sys::{CUctx_st, CUgraph_st, CUgraphNode_st};

use super::node::{Action, Node, OTHER_KIND, Place, Read};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, valid};
use crate::state::State;

/// A kind of node: how its parameters are read and given out.
pub(crate) trait Kind: Sized {
    /// The type in which parameters are written.
    type Params;
    /// The type in which a function gets them.
    type Given: Copy;
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
    New { graph: usize, context: usize, after: &'a [usize] },
    /// A node that there is.
    Node,
}

impl At<'_> {
    /// The context of a copy or a fill.
    ///
    /// Of a new node a null context is accepted, as recorded, and means the current one (which is not).
    /// A node that there is moves to the current context, as recorded. If none is current it leaves the
    /// one that it had, as recorded, and has none of its own (which of the others it goes to is not
    /// recorded).
    pub(super) fn context(self, state: &mut State) -> Answer<usize> {
        if let At::New { context, .. } = self {
            return state.or_current(context);
        }
        let current = state.current_handle().unwrap_or(0);
        if current != 0 {
            state.context(current)?;
        }
        Ok(current)
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

/// Replaces what a node does.
pub(crate) fn set<K: Kind>(driver: &Driver, node: Ptr<CUgraphNode_st>, given: K::Given) -> Answer {
    let mut state = driver.state();
    let present = K::of(&state.node(node.address())?.action).ok_or(OTHER_KIND)?;
    let (action, context) = K::read(&mut state, given, At::Node, Some(&present))?;
    state.set_action(node.address(), action, context);
    Ok(())
}

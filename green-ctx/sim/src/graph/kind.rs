//! The common interface of node kinds, for functions of one kind and functions of every kind.

use green_ctx_sys::{CUctx_st, CUgraph_st, CUgraphNode_st};

use super::node::{Action, Node, OTHER_KIND, Place, Read};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, valid};
use crate::state::State;

/// A node kind: how its parameters are read and written.
pub(crate) trait Kind: Sized {
    /// The type in which parameters are written.
    type Params;
    /// The type in which a function receives parameters.
    type Given: Copy;
    /// The offset of the parameters in the union of the functions for every kind, in bytes.
    const PARAMS: usize = 0;
    /// The offset of the context in that union, in bytes, if the union has one for this kind.
    const CONTEXT: Option<usize> = None;

    /// Returns the contents of a node of this kind; `None` for other kinds.
    fn of(action: &Action) -> Option<Self>;

    /// Reads the action and the context of a node. `present` is the action that it replaces.
    fn read(state: &mut State, given: Self::Given, at: At<'_>, present: Option<&Self>) -> Read;

    /// Writes the parameters of a node with this action.
    fn write(self, node: &mut Node, out: Ptr<Self::Params>) -> Answer;
}

/// The node for which parameters are read.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// A new node of a graph, with its dependencies. `context` is the named context, or 0 if there is none.
    New { graph: usize, context: usize, after: &'a [usize] },
    /// An existing node.
    Node,
}

impl At<'_> {
    /// Returns the context of a copy or memset node.
    ///
    /// For a new node, a null context is accepted (recorded) and means the current one (not recorded). An
    /// existing node moves to the current context (recorded). Without a current context, it leaves its
    /// context (recorded) and gets none; which context it then runs in was not recorded.
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

/// Adds a node that runs in a context.
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

/// Replaces the action of a node.
pub(crate) fn set<K: Kind>(driver: &Driver, node: Ptr<CUgraphNode_st>, given: K::Given) -> Answer {
    let mut state = driver.state();
    let present = K::of(&state.node(node.address())?.action).ok_or(OTHER_KIND)?;
    let (action, context) = K::read(&mut state, given, At::Node, Some(&present))?;
    state.set_action(node.address(), action, context);
    Ok(())
}

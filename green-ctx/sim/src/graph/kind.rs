//! The common interface of node kinds. The C functions for one kind and the C functions for all kinds both
//! use this interface.

use green_ctx_sys::{CUctx_st, CUgraph_st, CUgraphNode_st};

use super::node::{Action, Node, OTHER_KIND, Place, Read};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, valid};
use crate::state::State;

/// A kind of node, with the functions that read and write the parameters of such a node.
pub(crate) trait Kind: Sized {
    /// The type in which parameters are written.
    type Params;
    /// The type in which a C function receives parameters.
    type Given: Copy;
    /// The offset of the parameters in the union of `CUgraphNodeParams`, in bytes.
    const PARAMS: usize = 0;
    /// The offset of the context in the union of `CUgraphNodeParams`, in bytes; `None` if this kind has no
    /// context there.
    const CONTEXT: Option<usize> = None;

    /// Returns the contents of a node of this kind; `None` for other kinds.
    fn of(action: &Action) -> Option<Self>;

    /// Reads the action and the context of a node. `present` is the current action of the node, which the
    /// new action replaces.
    fn read(state: &mut State, given: Self::Given, at: At<'_>, present: Option<&Self>) -> Read;

    /// Writes the parameters of a node with this action.
    fn write(self, node: &mut Node, out: Ptr<Self::Params>) -> Answer;
}

/// The node for which parameters are read.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// A new node of a graph, with its dependencies. `context` is the context that the caller named, or 0
    /// if the caller named none.
    New { graph: usize, context: usize, after: &'a [usize] },
    /// An existing node.
    Node,
}

impl At<'_> {
    /// Returns the context of a copy or memset node.
    ///
    /// For a new node, a null context is accepted (recorded) and means the current context (not recorded on hardware).
    /// An existing node moves to the current context (recorded on hardware). If no context is current, an existing node
    /// loses its context (recorded on hardware). Which context the node then runs in was not recorded.
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

/// Adds a node that runs in the context `context`.
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

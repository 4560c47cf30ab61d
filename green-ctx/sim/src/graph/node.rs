//! Nodes: their actions, and their addition and removal.

use green_ctx_sys::{CUgraph_st, CUgraphNode_st, CUgraphNodeType, CUresult};

use super::allocation::Allocate;
use super::kernel::Kernel;
use super::memcpy::Memcpy;
use super::memset::Memset;
use super::read_list;
use crate::callback::Callback;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;
use crate::work::Work;

/// A node of a graph.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) graph: usize,
    pub(crate) action: Action,
    /// The handle of the context that the node runs in; 0 if the node has no context.
    pub(crate) context: usize,
    /// The nodes that this node depends on.
    pub(crate) after: Vec<usize>,
    /// The nodes that depend on this node.
    pub(super) before: Vec<usize>,
    /// The parameters that a query returned to the program. These parameters keep their address until new
    /// parameters are set.
    pub(super) lent: Option<Box<[usize]>>,
}

/// The action of a node.
#[derive(Clone)]
pub(crate) enum Action {
    Kernel(Kernel),
    Memcpy(Memcpy),
    Memset(Memset),
    Host(Callback),
    /// Launches the graph with this handle.
    Child(usize),
    Allocate(Allocate),
    /// Frees the memory at an address.
    Free(u64),
    Empty,
}

/// The action of a node and the handle of its context, as read from parameters. The handle is 0 if the node
/// has no context.
pub(crate) type Read = Answer<(Action, usize)>;

impl Action {
    /// Returns the device whose context needs local memory for a kernel that the node launches. The driver
    /// launches its own kernels to copy within device memory and to set several rows. For these kernels,
    /// the device of the memory counts, not the device of the node's context (recorded on hardware).
    pub(super) fn device_of_kernels(&self, state: &State, context: usize) -> Option<usize> {
        let own = state.contexts.get(&context).map(|context| context.device);
        let of = |address| state.allocation(address).map(|(_, memory)| memory.device);
        match self {
            Action::Kernel(_) => own,
            Action::Memcpy(copy) => {
                let [from, to] = copy.device_ends()?.map(of);
                from.filter(|_| from == to)
            }
            Action::Memset(fill) => of(fill.target()).filter(|_| fill.height > 1),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> CUgraphNodeType {
        match self {
            Action::Kernel(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Action::Memcpy(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            Action::Memset(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Action::Host(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST,
            Action::Child(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
            Action::Allocate(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Action::Free(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Action::Empty => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
        }
    }

    /// Returns the work of the node; empty for child graphs, for allocation and free nodes, and for empty
    /// nodes.
    pub(super) fn works(&self) -> Vec<Work> {
        match self {
            Action::Kernel(kernel) => vec![Work::Kernel(kernel.work.clone())],
            Action::Memcpy(copy) => copy.rows().map(Work::Copy).collect(),
            Action::Memset(fill) => fill.rows().map(Work::Fill).collect(),
            Action::Host(callback) => vec![Work::Call(callback.clone())],
            Action::Child(_) | Action::Allocate(_) | Action::Free(_) | Action::Empty => Vec::new(),
        }
    }

    /// Returns the child graph that the node owns.
    pub(super) fn child(&self) -> Option<usize> {
        if let Action::Child(child) = self { Some(*child) } else { None }
    }
}

/// The error of a call that passes a node of one kind to a function for another kind.
pub(super) const OTHER_KIND: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

impl State {
    /// Returns the node with this handle.
    pub(crate) fn node(&self, handle: usize) -> Answer<&Node> {
        valid(self.nodes.get(&handle))
    }

    /// Adds a node to an existing graph.
    pub(crate) fn add_node(
        &mut self,
        graph: usize,
        action: Action,
        context: usize,
        after: Vec<usize>,
    ) -> usize {
        let handle = handle::next();
        if let Action::Free(address) = action {
            self.note_free(address, Some(graph));
        }
        let of_memory = matches!(action, Action::Allocate(_) | Action::Free(_));
        let (none, before) = (Vec::new(), Vec::new());
        let node = Node { graph, action, context, after: none, before, lent: None };
        self.nodes.insert(handle, node);
        after.into_iter().for_each(|before| self.connect(before, handle));
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.nodes.push(handle);
            graph.of_memory |= of_memory;
        }
        handle
    }

    /// Replaces the action of a node with one of the same kind.
    pub(super) fn set_action(&mut self, handle: usize, action: Action, context: usize) {
        if let Some(node) = self.nodes.get_mut(&handle) {
            node.action = action;
            node.context = context;
            node.lent = None;
        }
    }

    /// Removes a node and its child graph. Leaves the edges and the graph's list of nodes unchanged.
    pub(super) fn remove_node(&mut self, handle: usize) {
        if let Some(node) = self.nodes.remove(&handle) {
            node.action.child().into_iter().for_each(|child| self.remove_graph(child));
        }
    }

    /// Reads the dependencies of a new node, which must be different nodes of the same graph.
    pub(crate) fn dependencies(
        &self,
        graph: usize,
        list: Ptr<*mut CUgraphNode_st>,
        count: usize,
    ) -> Answer<Vec<usize>> {
        let nodes = read_list(list, count)?;
        for (index, node) in nodes.iter().enumerate() {
            let twice = nodes[..index].contains(node);
            invalid_if(twice || self.node(*node)?.graph != graph)?;
        }
        Ok(nodes)
    }
}

/// The arguments common to all functions that add a node.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(super) out: Ptr<*mut CUgraphNode_st>,
    pub(super) graph: Ptr<CUgraph_st>,
    pub(super) after: Ptr<*mut CUgraphNode_st>,
    pub(super) count: usize,
}

impl Place {
    pub(super) fn new(
        out: Ptr<*mut CUgraphNode_st>,
        graph: Ptr<CUgraph_st>,
        after: Ptr<*mut CUgraphNode_st>,
        count: usize,
    ) -> Place {
        Place { out, graph, after, count }
    }

    /// Adds a node. The closure `action` reads the action and the context of the node.
    pub(super) fn add(
        self,
        driver: &Driver,
        action: impl FnOnce(&mut State, &[usize]) -> Read,
    ) -> Answer {
        let mut state = driver.state();
        let graph = self.graph.address();
        state.graph(graph)?;
        self.out.given()?;
        let after = state.dependencies(graph, self.after, self.count)?;
        let (action, context) = action(&mut state, &after)?;
        let node = state.add_node(graph, action, context, after);
        self.out.write(handle::pointer(node))
    }
}

pub(crate) fn add_empty(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
) -> Answer {
    Place::new(out, graph, after, count).add(driver, |_, _| Ok((Action::Empty, 0)))
}

pub(crate) fn get_type(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<CUgraphNodeType>,
) -> Answer {
    let state = driver.state();
    out.write(state.node(node.address())?.action.kind())
}

//! Child graph nodes.

use green_ctx_sys::{CUgraph_st, CUresult};

use super::Owner;
use super::kind::{At, Kind};
use super::node::{Action, Node, Read};
use crate::crash;
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// A child graph node. The node owns the graph with this handle and launches that graph.
pub(crate) struct Child(usize);

impl Kind for Child {
    type Params = *mut CUgraph_st;
    type Given = Ptr<CUgraph_st>;

    fn of(action: &Action) -> Option<Child> {
        if let Action::Child(child) = action { Some(Child(*child)) } else { None }
    }

    /// Clones the graph that the caller gives as the child graph. Adding a graph to itself as a child ends
    /// the process (recorded on hardware).
    fn read(state: &mut State, child: Self::Given, at: At<'_>, _: Option<&Self>) -> Read {
        let At::New { graph, .. } = at else { return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) };
        if child.address() == graph {
            crash::segmentation_fault();
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Ok((Action::Child(state.clone_graph(child.address(), Owner::Node)?), 0))
    }

    fn write(self, _: &mut Node, out: Ptr<Self::Params>) -> Answer {
        out.write(handle::pointer(self.0))
    }
}

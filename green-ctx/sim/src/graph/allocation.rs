//! Nodes that allocate and free memory.
//!
//! An allocation node gets an address when the program adds the node. The node keeps the address until
//! neither the node nor an executable graph with the node exists. The memory exists from a launch of the
//! node until another node or the program frees it.

use green_ctx_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocation_st__bindgen_ty_1, CUmemLocationType, CUmemPoolProps, CUresult,
};

use super::kind::{At, Kind};
use super::node::{Action, Node, Read};
use crate::memory::pool::{check_kind, device_at};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;

/// The memory of an allocation node.
#[derive(Clone, Copy)]
pub(crate) struct Allocate {
    pub(crate) address: u64,
    bytes: usize,
    device: usize,
    /// Whether the node's own graph frees the memory; `None` while this is undecided. The node's own graph
    /// may free the memory only before the graph is instantiated and before another graph frees the memory.
    /// Other graphs may free the memory only if the node's own graph does not (recorded on hardware).
    freed_within: Option<bool>,
}

impl Allocate {
    /// Reserves an address for `bytes` bytes. Each launch checks again that enough device memory is free.
    pub(crate) fn new(
        state: &mut State,
        device: usize,
        bytes: usize,
        after: &[usize],
    ) -> Answer<Allocate> {
        invalid_if(bytes == 0)?;
        let address = match state.freed_before(after, bytes, device) {
            Some(address) => address,
            None => state.reserve(device, bytes)?,
        };
        Ok(Allocate { address, bytes, device, freed_within: None })
    }
}

/// Reads the parameters of a free node. `address` must belong to an allocation node in this graph or in
/// another graph. A graph may free the memory only once, and the free need not depend on the allocation
/// (recorded on hardware).
pub(crate) fn read_free(state: &State, address: u64, graph: usize) -> Answer<Action> {
    let owner = state.owner(address);
    let since = owner.map_or(0, |(node, ..)| node);
    let freed = |(node, of): (&usize, &Node)| {
        *node > since && of.graph == graph && matches!(of.action, Action::Free(it) if it == address)
    };
    let may = match owner {
        Some((_, here, allocate)) => {
            allocate.freed_within.is_none_or(|within| !within && here != graph)
        }
        None => state.executables.values().flat_map(|exec| exec.plan.all()).all(|step| {
            !matches!(step.action, Action::Allocate(Allocate { address: own, freed_within, .. })
                if own == address && freed_within == Some(true))
        }),
    };
    let known = state.is_reserved_memory_there(address).is_some();
    invalid_if(!may || !known || state.nodes.iter().any(freed))?;
    Ok(Action::Free(address))
}

impl State {
    /// Returns the allocation node that has an address, and the graph of the node. If several nodes got the
    /// address one after the other, returns the last of these nodes.
    fn owner(&self, address: u64) -> Option<(usize, usize, Allocate)> {
        let of = |(node, of): (&usize, &Node)| match of.action {
            Action::Allocate(it) if it.address == address => Some((*node, of.graph, it)),
            _ => None,
        };
        self.nodes.iter().filter_map(of).max_by_key(|(node, ..)| *node)
    }

    /// Returns an address that a new allocation node can reuse. The driver reuses memory of the same graph
    /// that the node's direct or indirect dependencies free, unless the memory is too small or another node
    /// already reuses it (recorded on hardware).
    fn freed_before(&self, after: &[usize], bytes: usize, device: usize) -> Option<u64> {
        let mut before = after.to_vec();
        let mut next = 0;
        while let Some(&handle) = before.get(next) {
            let node = self.nodes.get(&handle)?;
            if let Action::Free(address) = node.action
                && let Some((owner, graph, allocate)) = self.owner(address)
                && owner < handle
                && graph == node.graph
                && device == allocate.device
                && bytes <= allocate.bytes
            {
                return Some(address);
            }
            let further = node.after.iter().filter(|node| !before.contains(node));
            before.extend(further.collect::<Vec<_>>());
            next += 1;
        }
        None
    }

    /// Records that a graph frees the memory at an address. If `graph` is `None`, records that the node's
    /// own graph was instantiated, and so can no longer free the memory.
    pub(super) fn note_free(&mut self, address: u64, graph: Option<usize>) {
        for node in self.nodes.values_mut() {
            if let Action::Allocate(allocate) = &mut node.action
                && allocate.address == address
            {
                allocate.freed_within.get_or_insert(graph == Some(node.graph));
            }
        }
    }

    /// Returns whether a node allocates or frees the memory at an address, including nodes that exist only
    /// in an executable graph.
    pub(crate) fn is_of_node(&self, address: u64) -> bool {
        let is_its = |action: &Action| match *action {
            Action::Allocate(Allocate { address: own, .. }) | Action::Free(own) => own == address,
            _ => false,
        };
        let mut steps = self.executables.values().flat_map(|exec| exec.plan.all());
        self.nodes.values().any(|node| is_its(&node.action))
            || steps.any(|step| is_its(&step.action))
    }
}

impl Kind for Allocate {
    type Params = CUDA_MEM_ALLOC_NODE_PARAMS;
    type Given = Ptr<CUDA_MEM_ALLOC_NODE_PARAMS>;

    fn of(action: &Action) -> Option<Allocate> {
        if let Action::Allocate(allocate) = action { Some(*allocate) } else { None }
    }

    /// Reads the parameters of an allocation node, and writes the address of the node into them. Access by
    /// other devices is not simulated.
    fn read(state: &mut State, params: Self::Given, at: At<'_>, _: Option<&Self>) -> Read {
        let value = params.read()?;
        let CUmemPoolProps { allocType, handleTypes, .. } = value.poolProps;
        let location = params.cast::<u8>().element(std::mem::offset_of!(CUmemPoolProps, location));
        let device = device_at(state, location.cast())?;
        check_kind(state, allocType)?;
        invalid_if(handleTypes != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE)?;
        refuse_if(value.accessDescCount != 0, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let At::New { after, .. } = at else { return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) };
        let node = Allocate::new(state, device, value.bytesize, after)?;
        params.write(CUDA_MEM_ALLOC_NODE_PARAMS { dptr: node.address, ..value })?;
        Ok((Action::Allocate(node), 0))
    }

    fn write(self, _: &mut Node, out: Ptr<Self::Params>) -> Answer {
        out.write(CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
                location: CUmemLocation {
                    type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id: self.device as i32 },
                },
                win32SecurityAttributes: std::ptr::null_mut(),
                maxSize: 0,
                usage: 0,
                gpuDirectRDMACapable: 0,
                reserved: [0; 53],
            },
            accessDescs: std::ptr::null(),
            accessDescCount: 0,
            bytesize: self.bytes,
            dptr: self.address,
        })
    }
}

/// A node that frees the memory at an address.
pub(crate) struct Free(u64);

impl Kind for Free {
    type Params = u64;
    type Given = u64;

    fn of(action: &Action) -> Option<Free> {
        if let Action::Free(address) = action { Some(Free(*address)) } else { None }
    }

    fn read(state: &mut State, address: u64, at: At<'_>, _: Option<&Self>) -> Read {
        let At::New { graph, .. } = at else { return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) };
        let freed = read_free(state, address, graph);
        // The graph counts as one with memory nodes even if this node is refused (recorded on hardware).
        if let Some(graph) = state.graphs.get_mut(&graph) {
            graph.of_memory = true;
        }
        Ok((freed?, 0))
    }

    fn write(self, _: &mut Node, out: Ptr<u64>) -> Answer {
        out.write(self.0)
    }
}

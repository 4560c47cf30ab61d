//! Nodes that allocate and free memory.

use std::ptr::{null, null_mut};

use green_ctx_sim::Accessor;
use green_ctx_sys::*;

use super::fill;
use crate::machine::*;

const BYTES: usize = 1 << 20;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;

fn params(bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id: 0 },
            },
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            usage: 0,
            gpuDirectRDMACapable: 0,
            reserved: [0; 53],
        },
        accessDescs: null(),
        accessDescCount: 0,
        bytesize: bytes,
        dptr: 0,
    }
}

impl Machine {
    fn allocating(&self, graph: CUgraph) -> (CUgraphNode, CUdeviceptr) {
        let mut params = params(BYTES);
        let (status, node) =
            ask!(self, null_mut(), cuGraphAddMemAllocNode(; graph, null(), 0, &mut params));
        ok(status);
        (node, params.dptr)
    }

    fn freeing(&self, graph: CUgraph, after: &[CUgraphNode], address: u64) -> CUresult {
        let (after, count) = (after.as_ptr(), after.len());
        ask!(self, null_mut(), cuGraphAddMemFreeNode(; graph, after, count, address)).0
    }

    /// A graph that allocates and fills.
    fn filling(&self, context: CUcontext) -> (CUgraph, CUgraphNode, CUdeviceptr) {
        let graph = self.graph();
        let (node, address) = self.allocating(graph);
        (graph, self.memset_node(graph, &[node], &fill(address, 7, BYTES), context), address)
    }

    /// The bytes of the device that are taken.
    fn taken(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        ok(call!(self, cuMemGetInfo(&mut free, &mut total)));
        total - free
    }

    fn is_readable(&self, address: CUdeviceptr) -> bool {
        let mut byte = 0_u8;
        let status = call!(self, cuMemcpyDtoH((&raw mut byte).cast(), address, 1));
        assert!(status == OK || status == INVALID_VALUE, "{status}");
        status == OK && byte == 7
    }
}

#[test]
fn memory_is_there_from_a_launch_on_until_it_is_freed() {
    let (machine, primary) = Machine::with_primary();
    let before = machine.taken();
    let (graph, _, address) = machine.filling(primary);
    let exec = machine.instantiate(graph);
    let launch = || call!(machine, cuGraphLaunch(exec, null_mut()));
    assert_eq!(machine.taken(), before);
    assert!(!machine.is_readable(address));
    assert_eq!(call!(machine, cuMemFree(address)), INVALID_VALUE);
    let free_in_order = || call!(machine, cuMemFreeAsync(address, null_mut()));
    let free_at_once = || call!(machine, cuMemFree(address));
    for free in [&free_in_order as &dyn Fn() -> CUresult, &free_at_once] {
        ok(launch());
        assert_eq!(machine.taken(), before + BYTES);
        assert_eq!(machine.sim.live().allocations, 1);
        assert!(machine.is_readable(address));
        assert_eq!(launch(), INVALID_VALUE);
        ok(free());
        assert!(!machine.is_readable(address));
        assert_eq!(machine.taken(), before);
        assert_eq!(free(), INVALID_VALUE);
    }
    assert_eq!(machine.sim.live().allocations, 0);
}

#[test]
fn a_graph_frees_what_it_or_another_allocates() {
    let (machine, primary) = Machine::with_primary();
    let (graph, filled, address) = machine.filling(primary);
    let other = machine.graph();
    ok(machine.freeing(other, &[], address));
    let [exec, freeing] = [graph, other].map(|graph| machine.instantiate(graph));
    // What is not there cannot be freed, by whomever.
    assert_eq!(call!(machine, cuGraphLaunch(freeing, null_mut())), INVALID_VALUE);
    for _ in 0..2 {
        machine.launch_graph(exec, null_mut());
        assert!(machine.is_readable(address));
        machine.launch_graph(freeing, null_mut());
        assert!(!machine.is_readable(address));
    }
    ok(call!(machine, cuGraphExecDestroy(exec)));
    // Another graph frees it, and it was instantiated before.
    assert_eq!(machine.freeing(graph, &[filled], address), INVALID_VALUE);
    let (graph, filled, address) = machine.filling(primary);
    ok(machine.freeing(graph, &[filled], address));
    assert_eq!(machine.freeing(other, &[], address), INVALID_VALUE);
    for refused in [address, 0, machine.alloc(64)] {
        assert_eq!(machine.freeing(graph, &[filled], refused), INVALID_VALUE);
    }
    let exec = machine.instantiate(graph);
    for _ in 0..2 {
        machine.launch_graph(exec, null_mut());
        assert!(!machine.is_readable(address));
    }
    ok(machine.sync(null_mut()));
    assert_eq!(machine.sim.races(), []);
}

#[test]
fn an_executable_may_free_by_itself() {
    let (machine, primary) = Machine::with_primary();
    let before = machine.taken();
    let (graph, _, address) = machine.filling(primary);
    let (status, exec) = ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, AUTO_FREE));
    ok(status);
    for _ in 0..3 {
        machine.launch_graph(exec, null_mut());
        assert!(machine.is_readable(address));
        assert_eq!(machine.taken(), before + BYTES);
    }
}

/// Memory outlives the graph and the executable that it is from; the address is gone with the last
/// that allocates or frees it where it is not allocated.
#[test]
fn an_address_belongs_to_graph_and_executable() {
    let (machine, primary) = Machine::with_primary();
    let (graph, _, address) = machine.filling(primary);
    let exec = machine.instantiate(graph);
    ok(call!(machine, cuGraphDestroy(graph)));
    machine.launch_graph(exec, null_mut());
    ok(call!(machine, cuGraphExecDestroy(exec)));
    assert!(machine.is_readable(address));
    let other = machine.graph();
    ok(machine.freeing(other, &[], address));
    let freeing = machine.instantiate(other);
    machine.launch_graph(freeing, null_mut());
    assert!(!machine.is_readable(address));
    let last = machine.graph();
    ok(machine.freeing(last, &[], address));
    for graph in [other, last] {
        ok(call!(machine, cuGraphDestroy(graph)));
    }
    ok(call!(machine, cuGraphExecDestroy(freeing)));
    assert_eq!(machine.freeing(machine.graph(), &[], address), INVALID_VALUE);
    let (graph, _, address) = machine.filling(primary);
    ok(call!(machine, cuGraphDestroy(graph)));
    assert_eq!(machine.freeing(machine.graph(), &[], address), INVALID_VALUE);
}

/// As recorded: what its graph freed before a node, which no other node has got since, and what a graph that
/// is gone gave up last.
#[test]
fn addresses_are_given_out_again() {
    let machine = Machine::new();
    let graph = machine.graph();
    let allocate = |after: &[CUgraphNode], bytes| {
        let (mut params, count) = (params(bytes), after.len());
        let after = after.as_ptr();
        let (status, node) =
            ask!(machine, null_mut(), cuGraphAddMemAllocNode(; graph, after, count, &mut params));
        (status, node, params.dptr)
    };
    let (_, first, address) = allocate(&[], BYTES);
    let (status, free) =
        ask!(machine, null_mut(), cuGraphAddMemFreeNode(; graph, &first, 1, address));
    ok(status);
    assert_eq!(allocate(&[free], 0).0, INVALID_VALUE);
    // Too large, and beside the node that frees.
    assert_ne!(allocate(&[free], 2 * BYTES).2, address);
    assert_ne!(allocate(&[], BYTES).2, address);
    let (_, second, again) = allocate(&[free], BYTES / 2);
    assert_eq!(again, address);
    assert_ne!(allocate(&[free], BYTES).2, address);
    // It is the last node's from then on.
    assert_eq!(machine.freeing(graph, &[second], address), OK);
    assert_eq!(machine.freeing(graph, &[second], address), INVALID_VALUE);
    let other = machine.graph();
    let given_up = machine.allocating(other).1;
    ok(call!(machine, cuGraphDestroy(other)));
    assert_eq!(allocate(&[], 0).0, INVALID_VALUE);
    assert_eq!(allocate(&[], BYTES).2, given_up);
}

#[test]
fn a_graph_that_allocates_is_the_only_one_and_keeps_its_nodes() {
    let (machine, _) = Machine::with_primary();
    let graph = machine.graph();
    let (node, address) = machine.allocating(graph);
    ok(machine.freeing(graph, &[node], address));
    let freeing = machine.nodes(graph)[1];
    assert_eq!(ask!(machine, null_mut(), cuGraphClone(; graph)).0, NOT_SUPPORTED);
    let outer = machine.graph();
    let child = ask!(machine, null_mut(), cuGraphAddChildGraphNode(; outer, null_mut(), 0, graph));
    assert_eq!(child.0, NOT_SUPPORTED);
    let exec = machine.instantiate(graph);
    let again = || ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, 0)).0;
    assert_eq!(again(), NOT_SUPPORTED);
    ok(call!(machine, cuGraphExecDestroy(exec)));
    ok(again());
    for node in [node, freeing] {
        assert_eq!(call!(machine, cuGraphDestroyNode(node)), NOT_SUPPORTED);
    }
    let removed = call!(machine, cuGraphRemoveDependencies(graph, &node, &freeing, null(), 1));
    assert_eq!(removed, NOT_SUPPORTED);
    let mut read = params(0);
    ok(call!(machine, cuGraphMemAllocNodeGetParams(node, &mut read)));
    assert_eq!((read.bytesize, read.dptr), (BYTES, address));
    assert_eq!(ask!(machine, 0, cuGraphMemFreeNodeGetParams(freeing;)), (OK, address));
}

/// The functions for nodes of every kind know these, too.
#[test]
fn nodes_of_every_kind_allocate_and_free() {
    let (machine, _) = Machine::with_primary();
    let graph = machine.graph();
    // SAFETY: the struct is numbers and pointers, of which zero is a value.
    let mut tagged: CUgraphNodeParams = unsafe { std::mem::zeroed() };
    let CUDA_MEM_ALLOC_NODE_PARAMS { poolProps, accessDescs, accessDescCount, bytesize, dptr } =
        params(BYTES);
    tagged.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    tagged.__bindgen_anon_1.alloc =
        CUDA_MEM_ALLOC_NODE_PARAMS_v2 { poolProps, accessDescs, accessDescCount, bytesize, dptr };
    let add = |params: &mut CUgraphNodeParams| {
        let none = null();
        ask!(machine, null_mut(), cuGraphAddNode(; graph, none, null(), 0, params))
    };
    let (status, node) = add(&mut tagged);
    ok(status);
    // SAFETY: the union holds these parameters, as the driver wrote them.
    let address = unsafe { tagged.__bindgen_anon_1.alloc }.dptr;
    let mut read = params(0);
    ok(call!(machine, cuGraphMemAllocNodeGetParams(node, &mut read)));
    assert_eq!(read.dptr, address);
    tagged.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE;
    tagged.__bindgen_anon_1.free = CUDA_MEM_FREE_NODE_PARAMS { dptr: address };
    let (status, freeing) = add(&mut tagged);
    ok(status);
    assert_eq!(ask!(machine, 0, cuGraphMemFreeNodeGetParams(freeing;)), (OK, address));
}

/// A node that uses memory beside the one that allocates it races with it.
#[test]
fn the_memory_is_there_for_what_comes_after() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let (_, address) = machine.allocating(graph);
    machine.memset_node(graph, &[], &fill(address, 7, 64), primary);
    machine.launch_graph(machine.instantiate(graph), null_mut());
    ok(machine.sync(null_mut()));
    let races = machine.sim.races();
    let what: Vec<_> = races.iter().map(|race| (&race.first.what, &race.second.what)).collect();
    assert_eq!(what, [(&Accessor::Allocation, &Accessor::Fill)]);
}

/// As an H200 answers, no node of such a graph is removed, whichever kind it is.
#[test]
fn nodes_beside_an_allocation_stay() {
    let (machine, primary) = Machine::with_primary();
    let (graph, filled, _) = machine.filling(primary);
    let beside = machine.empty_node(graph, &[]);
    for node in [filled, beside] {
        assert_eq!(call!(machine, cuGraphDestroyNode(node)), NOT_SUPPORTED);
    }
    assert_eq!(machine.nodes(graph).len(), 3);
    let other = machine.graph();
    ok(call!(machine, cuGraphDestroyNode(machine.empty_node(other, &[]))));
}

/// As an H200 with CUDA 13.0 answers; older headers have no such kind of memory.
#[test]
fn a_node_allocates_managed_memory() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let mut asked = params(BYTES);
    asked.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;
    let add = |machine: &Machine, graph, params: &mut _| ask!(machine, null_mut(), cuGraphAddMemAllocNode(; graph, null(), 0, params));
    let (status, node) = add(&machine, graph, &mut asked);
    ok(status);
    let mut read = params(0);
    ok(call!(machine, cuGraphMemAllocNodeGetParams(node, &mut read)));
    assert_eq!(read.poolProps.allocType, asked.poolProps.allocType);
    machine.memset_node(graph, &[node], &fill(asked.dptr, 7, BYTES), primary);
    let exec = machine.instantiate(graph);
    let taken = machine.taken();
    for _ in 0..2 {
        machine.launch_graph(exec, null_mut());
        assert!(machine.is_readable(asked.dptr));
        let mut managed = 0_u8;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
        let out = (&raw mut managed).cast();
        ok(call!(machine, cuPointerGetAttribute(out, attribute, asked.dptr)));
        assert_eq!(managed, 1);
        ok(call!(machine, cuMemFree(asked.dptr)));
        assert_eq!(machine.taken(), taken);
    }
    let old = Machine::with_devices("h200@12.8", 1);
    let graph = old.graph();
    asked.dptr = 0;
    assert_eq!(add(&old, graph, &mut asked).0, INVALID_VALUE);
}

/// Captured, memory is made and freed by each launch, at the address that the capture gave.
#[test]
fn allocations_are_captured() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let out = machine.alloc(64);
    let pool = ask!(machine, null_mut(), cuDeviceGetDefaultMemPool(; 0)).1;
    let before = machine.taken();
    ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
    let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; BYTES, stream));
    ok(status);
    let (status, kept) = ask!(machine, 0, cuMemAllocFromPoolAsync(; BYTES, pool, stream));
    ok(status);
    ok(call!(machine, cuMemsetD8Async(memory, 7, BYTES, stream)));
    ok(call!(machine, cuMemcpyDtoDAsync(out, memory, 64, stream)));
    ok(call!(machine, cuMemFreeAsync(memory, stream)));
    // Only what a graph allocates can be freed in one, and once.
    for refused in [memory, out] {
        assert_eq!(call!(machine, cuMemFreeAsync(refused, stream)), INVALID_VALUE);
    }
    // No bytes are the null address and no node, as outside of a capture.
    ok(call!(machine, cuMemFreeAsync(0, stream)));
    assert_eq!(ask!(machine, 1, cuMemAllocAsync(; 0, stream)), (OK, 0));
    let mut graph = null_mut();
    ok(call!(machine, cuStreamEndCapture(stream, &mut graph)));
    let kind = |node: &CUgraphNode| {
        let none = CUgraphNodeType(u32::MAX);
        ask!(machine, none, cuGraphNodeGetType(*node;)).1.to_string()
    };
    let kinds: Vec<_> = machine.nodes(graph).iter().map(kind).collect();
    let expected = ["MEM_ALLOC", "MEM_ALLOC", "MEMSET", "MEMCPY", "MEM_FREE"];
    assert_eq!(kinds, expected.map(|kind| format!("CU_GRAPH_NODE_TYPE_{kind}")));
    assert_eq!(machine.dependencies(graph), [vec![], vec![0], vec![1], vec![2], vec![3]]);
    assert_eq!((machine.taken(), machine.sim.live().allocations), (before, 1));

    let exec = machine.instantiate(graph);
    for _ in 0..2 {
        machine.launch_graph(exec, stream);
        ok(machine.sync(stream));
        assert_eq!(machine.read(out, 4), [7; 4]);
        assert!(!machine.is_readable(memory));
        assert_eq!(machine.taken(), before + BYTES);
        ok(call!(machine, cuMemFreeAsync(kept, stream)));
        ok(machine.sync(stream));
    }
    assert_eq!(machine.sim.races(), []);
    assert_eq!(number_of_pool(&machine, pool), 0);
}

/// The bytes of a pool that are in use: those of a graph are not the pool's.
fn number_of_pool(machine: &Machine, pool: CUmemoryPool) -> u64 {
    let mut value = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    ok(call!(machine, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())));
    value
}

#[test]
fn an_abandoned_capture_keeps_no_memory() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let mut last = 0;
    for _ in 0..2 {
        ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
        let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; BYTES, stream));
        ok(status);
        assert!(last == 0 || memory == last, "the address is free again");
        last = memory;
        // A query invalidates the capture.
        assert_ne!(call!(machine, cuStreamQuery(stream)), OK);
        let mut graph = null_mut();
        assert_ne!(call!(machine, cuStreamEndCapture(stream, &mut graph)), OK);
        ok(call!(machine, cuCtxSynchronize()));
    }
}

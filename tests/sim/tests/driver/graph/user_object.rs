//! User objects: who has them, and when they are destroyed.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use green_ctx_sys::*;

use crate::machine::*;

/// What a program lends: it counts how often it was destroyed.
type Lent = AtomicU32;

/// The functions, which the table does not have.
struct Objects<'a>(&'a Machine);

unsafe extern "C" fn destroy(lent: *mut c_void) {
    // SAFETY: objects are made of counters that outlive the machine.
    unsafe { &*lent.cast::<Lent>() }.fetch_add(1, Ordering::Relaxed);
}

impl Objects<'_> {
    fn try_create(&self, lent: &Lent, count: u32, flags: u32) -> (CUresult, *mut c_void) {
        let mut object = null_mut();
        let status = old!(self.0, c"cuUserObjectCreate", 11030
            (&mut object => *mut *mut c_void, lent => *const Lent, Some(destroy) => CUhostFn,
             count => c_uint, flags => c_uint));
        (status, object)
    }

    fn create(&self, lent: &Lent) -> *mut c_void {
        let (status, object) = self.try_create(lent, 1, 1);
        ok(status);
        object
    }

    fn retain(&self, object: *mut c_void, count: u32) -> CUresult {
        old!(self.0, c"cuUserObjectRetain", 11030 (object => *mut c_void, count => c_uint))
    }

    fn release(&self, object: *mut c_void, count: u32) -> CUresult {
        old!(self.0, c"cuUserObjectRelease", 11030 (object => *mut c_void, count => c_uint))
    }

    fn lend(&self, graph: CUgraph, object: *mut c_void, count: u32, flags: u32) -> CUresult {
        old!(self.0, c"cuGraphRetainUserObject", 11030
            (graph => CUgraph, object => *mut c_void, count => c_uint, flags => c_uint))
    }

    fn take_back(&self, graph: CUgraph, object: *mut c_void, count: u32) -> CUresult {
        old!(self.0, c"cuGraphReleaseUserObject", 11030
            (graph => CUgraph, object => *mut c_void, count => c_uint))
    }

    /// A graph of one kernel that alone has an object.
    fn graph(&self, lent: &Lent, context: CUcontext) -> CUgraph {
        let (graph, object) = (self.0.graph(), self.create(lent));
        self.0.nothing(graph, &[], context, 1);
        ok(self.lend(graph, object, 1, 1));
        graph
    }
}

fn times(lent: &Lent) -> u32 {
    lent.load(Ordering::Relaxed)
}

#[test]
fn the_last_reference_destroys() {
    let lent = Lent::new(0);
    let machine = Machine::new();
    let objects = Objects(&machine);
    let object = objects.create(&lent);
    ok(objects.retain(object, 2));
    ok(objects.release(object, 2));
    assert_eq!(times(&lent), 0);
    assert_eq!(objects.release(object, 2), INVALID_VALUE, "more than there are");
    ok(objects.release(object, 1));
    assert_eq!(times(&lent), 1);
    assert_eq!(objects.release(object, 1), INVALID_VALUE);
    assert_eq!(objects.retain(object, 1), INVALID_VALUE);
    assert_eq!(times(&lent), 1);
}

#[test]
fn a_graph_has_references_of_its_own() {
    let lent = Lent::new(0);
    let machine = Machine::new();
    let objects = Objects(&machine);
    let (graph, object) = (machine.graph(), objects.create(&lent));
    ok(objects.lend(graph, object, 2, 0));
    ok(objects.release(object, 1));
    ok(objects.take_back(graph, object, 1));
    assert_eq!(objects.take_back(graph, object, 2), INVALID_VALUE);
    assert_eq!(times(&lent), 0);
    // The program may have the graph's object again.
    ok(objects.retain(object, 1));
    ok(objects.take_back(graph, object, 1));
    ok(objects.take_back(graph, object, 1));
    assert_eq!(times(&lent), 0);
    // One moves into the graph, and goes with it.
    assert_eq!(objects.lend(graph, object, 2, 1), INVALID_VALUE, "more than there are");
    ok(objects.lend(graph, object, 1, 1));
    assert_eq!(objects.release(object, 1), INVALID_VALUE);
    ok(call!(machine, cuGraphDestroy(graph)));
    assert_eq!(times(&lent), 1);
}

#[test]
fn copies_have_references() {
    let lent = Lent::new(0);
    let (machine, primary) = Machine::with_primary();
    let objects = Objects(&machine);
    let graph = objects.graph(&lent, primary);
    let (_, clone) = ask!(machine, null_mut(), cuGraphClone(; graph));
    let parent = machine.graph();
    let none: *const CUgraphNode = std::ptr::null();
    ok(ask!(machine, null_mut(), cuGraphAddChildGraphNode(; parent, none, 0, graph)).0);
    let exec = machine.instantiate(parent);
    for graph in [graph, clone, parent] {
        assert_eq!(times(&lent), 0);
        ok(call!(machine, cuGraphDestroy(graph)));
    }
    // The executable has what its child graph had, for as long as a launch goes on.
    let stream = machine.stream(NON_BLOCKING);
    machine.launch_graph(exec, stream);
    ok(call!(machine, cuGraphExecDestroy(exec)));
    assert_eq!(times(&lent), 0);
    ok(machine.sync(stream));
    assert_eq!(times(&lent), 1);
}

#[test]
fn launches_are_waited_for() {
    let (first, second) = (Lent::new(0), Lent::new(0));
    let (machine, primary) = Machine::with_primary();
    let objects = Objects(&machine);
    let graphs = [objects.graph(&first, primary), objects.graph(&second, primary)];
    let (exec, stream) = (machine.instantiate(graphs[0]), machine.stream(NON_BLOCKING));
    machine.launch_graph(exec, stream);
    ok(call!(machine, cuGraphDestroy(graphs[0])));
    // An update takes the references of the other graph in place of its own.
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: null_mut(),
        errorFromNode: null_mut(),
    };
    ok(call!(machine, cuGraphExecUpdate(exec, graphs[1], &mut info)));
    assert_eq!((times(&first), times(&second)), (0, 0));
    ok(machine.sync(stream));
    assert_eq!((times(&first), times(&second)), (1, 0));
    machine.launch_graph(exec, stream);
    ok(call!(machine, cuGraphExecDestroy(exec)));
    ok(call!(machine, cuGraphDestroy(graphs[1])));
    assert_eq!((times(&first), times(&second)), (1, 0));
    ok(machine.sync(stream));
    assert_eq!((times(&first), times(&second)), (1, 1));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let lent = Lent::new(0);
    let machine = Machine::new();
    let objects = Objects(&machine);
    for (count, flags) in [(0, 1), (1 << 31, 1), (1, 0), (1, 2), (1, 3)] {
        assert_eq!(objects.try_create(&lent, count, flags).0, INVALID_VALUE, "{count}, {flags}");
    }
    let (graph, object) = (machine.graph(), objects.create(&lent));
    for count in [0, 1 << 31] {
        assert_eq!(objects.retain(object, count), INVALID_VALUE);
        assert_eq!(objects.release(object, count), INVALID_VALUE);
        assert_eq!(objects.lend(graph, object, count, 0), INVALID_VALUE);
        assert_eq!(objects.take_back(graph, object, count), INVALID_VALUE);
    }
    assert_eq!(objects.lend(graph, object, 1, 2), INVALID_VALUE);
    assert_eq!(objects.lend(null_mut(), object, 1, 0), INVALID_VALUE);
    assert_eq!(objects.lend(graph, null_mut(), 1, 0), INVALID_VALUE);
    ok(objects.take_back(graph, object, 1));
    assert_eq!(times(&lent), 0);
}

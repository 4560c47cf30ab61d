//! Nodes that move to another context before their graph is instantiated.

use std::ptr::{null, null_mut};

use green_ctx_sys::*;

use super::{Kernel, copy, fill};
use crate::machine::*;

/// Bytes enough that a fill takes much longer than a call.
const BYTES: usize = 128 << 20;

fn read_kernel(machine: &Machine, node: CUgraphNode) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    let mut params = Kernel::new(machine, "nothing", &[]).on(null_mut(), 1);
    ok(call!(machine, cuGraphKernelNodeGetParams(node, &mut params)));
    params
}

/// As recorded: what was read from a node, set again, moves it to the current context, though the
/// function is of a module that was loaded in another. Attributes stay.
#[test]
fn what_was_read_moves_a_function_of_a_module() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    let text = c".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry alone() { ret; }";
    let (status, module) = ask!(machine, null_mut(), cuModuleLoadData(; text.as_ptr().cast()));
    ok(status);
    let (status, func) =
        ask!(machine, null_mut(), cuModuleGetFunction(; module, c"alone".as_ptr()));
    ok(status);
    let graph = machine.graph();
    let by_kernel = Kernel::new(&machine, "nothing", &[]).on(primary, 200);
    let by_function = CUDA_KERNEL_NODE_PARAMS_v2 { func, kern: null_mut(), ..by_kernel };
    let node = machine.kernel_node(graph, &[], &by_function);
    let priority = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    value.priority = -2;
    ok(call!(machine, cuGraphKernelNodeSetAttribute(node, priority, &value)));
    for (context, sms) in [(green, 8), (primary, 132)] {
        let read = read_kernel(&machine, node);
        ok(machine.push(context));
        ok(call!(machine, cuGraphKernelNodeSetParams(node, &read)));
        ok(machine.pop());
        assert_eq!(read_kernel(&machine, node).ctx, context);
        ok(call!(machine, cuGraphKernelNodeGetAttribute(node, priority, &mut value)));
        // SAFETY: the attribute is a number.
        assert_eq!(unsafe { value.priority }, -2);
        machine.launch_graph(machine.instantiate(graph), null_mut());
        assert_eq!(machine.sms().len(), sms);
    }
}

/// How long work takes in a stream of the primary context, in microseconds.
fn time_of(machine: &Machine, submit: impl FnOnce(CUstream)) -> f32 {
    let [start, end] = [(); 2].map(|()| machine.event());
    let stream = machine.stream(NON_BLOCKING);
    ok(call!(machine, cuEventRecord(start, stream)));
    submit(stream);
    ok(call!(machine, cuEventRecord(end, stream)));
    ok(machine.sync(stream));
    let (status, time) = ask!(machine, 0.0, cuEventElapsedTime(; start, end));
    ok(status);
    time * 1000.0
}

fn time(machine: &Machine, exec: CUgraphExec) -> f32 {
    time_of(machine, |stream| machine.launch_graph(exec, stream))
}

/// A fill or a copy of [`BYTES`] bytes on the device, which is set again with what it had.
struct Node<'a> {
    machine: &'a Machine,
    graph: CUgraph,
    node: CUgraphNode,
    from: Option<CUdeviceptr>,
    to: CUdeviceptr,
}

impl<'a> Node<'a> {
    fn new(machine: &'a Machine, copies: bool, context: CUcontext) -> Node<'a> {
        let graph = machine.graph();
        let (from, to) = (copies.then(|| machine.alloc(BYTES)), machine.alloc(BYTES));
        let mut node = Node { machine, graph, node: null_mut(), from, to };
        node.node = match node.copy() {
            Some(copy) => {
                let added = ask!(
                    machine,
                    null_mut(),
                    cuGraphAddMemcpyNode(; graph, null(), 0, &copy, context)
                );
                ok(added.0);
                added.1
            }
            None => machine.memset_node(graph, &[], &fill(to, 7, BYTES), context),
        };
        node
    }

    fn copy(&self) -> Option<CUDA_MEMCPY3D_v2> {
        let from = self.from?;
        let within = copy(null_mut(), self.to, BYTES, false);
        Some(CUDA_MEMCPY3D_v2 {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: from,
            ..within
        })
    }

    fn set(&self) -> CUresult {
        match self.copy() {
            Some(copy) => call!(self.machine, cuGraphMemcpyNodeSetParams(self.node, &copy)),
            None => {
                let fill = fill(self.to, 7, BYTES);
                call!(self.machine, cuGraphMemsetNodeSetParams(self.node, &fill))
            }
        }
    }

    /// Sets less than it had in an executable, or all of it.
    fn set_in(&self, exec: CUgraphExec, less: usize, context: CUcontext) -> CUresult {
        let (machine, node, width) = (self.machine, self.node, BYTES - less);
        match self.copy() {
            Some(copy) => {
                let copy = CUDA_MEMCPY3D_v2 { WidthInBytes: width, ..copy };
                call!(machine, cuGraphExecMemcpyNodeSetParams(exec, node, &copy, context))
            }
            None => {
                let fill = fill(self.to, 7, width);
                call!(machine, cuGraphExecMemsetNodeSetParams(exec, node, &fill, context))
            }
        }
    }
}

/// As recorded: without a context of their own in the call they go to the current one, and where
/// there is none away from the one that they had.
#[test]
fn fills_and_copies_move_to_the_current_context() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    for copies in [false, true] {
        let node = Node::new(&machine, copies, primary);
        let now = || time(&machine, machine.instantiate(node.graph));
        let whole = now();
        assert_eq!(now(), whole, "nothing else is in a time");
        ok(machine.push(green));
        ok(node.set());
        ok(machine.pop());
        let small = now();
        assert!(small > 5.0 * whole, "{small} µs on 8 SMs, {whole} on all");
        ok(node.set());
        assert_eq!(now(), whole);
        ok(machine.push(green));
        ok(node.set());
        ok(machine.pop());
        ok(machine.pop());
        ok(node.set());
        ok(machine.push(primary));
        assert_eq!(now(), whole);
    }
}

/// As recorded: an executable's fill or copy cannot go to another context. What is the same as before
/// is accepted with any, and stays.
#[test]
fn fills_and_copies_of_an_executable_stay() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    for copies in [false, true] {
        let node = Node::new(&machine, copies, primary);
        let exec = machine.instantiate(node.graph);
        let whole = time(&machine, exec);
        ok(node.set_in(exec, 0, green));
        assert_eq!(time(&machine, exec), whole);
        assert_eq!(node.set_in(exec, 512, green), INVALID_VALUE);
        ok(node.set_in(exec, BYTES / 2, primary));
        assert!(time(&machine, exec) < whole);
    }
}

/// On an H200 a copy within a device took half as long again as a node as in a stream.
#[test]
fn a_graph_copies_more_slowly_than_a_stream() {
    let (machine, primary) = Machine::with_primary();
    let node = Node::new(&machine, true, primary);
    let (from, to) = (node.from.expect("it copies"), node.to);
    let in_graph = time(&machine, machine.instantiate(node.graph));
    let in_stream = time_of(&machine, |stream| {
        ok(call!(machine, cuMemcpyDtoDAsync(to, from, BYTES, stream)));
    });
    assert!(in_graph > 1.4 * in_stream, "{in_graph} µs in a graph, {in_stream} in a stream");
}

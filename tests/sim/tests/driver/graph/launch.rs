//! What launches of graphs do.

use std::ffi::c_void;
use std::ptr::{from_mut, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use green_ctx_sys::*;

use super::{Kernel, copy, fill};
use crate::machine::*;

#[test]
fn nodes_run_on_the_sms_of_their_contexts() {
    let (machine, primary) = Machine::with_primary();
    let units = machine.units();
    let greens = [0, 1].map(|unit| machine.green(&[units.groups[unit]]));
    let graph = machine.graph();
    let contexts = [machine.context(greens[0]), machine.context(greens[1]), primary];
    for (blocks, context) in (200..).zip(contexts) {
        machine.nothing(graph, &[], context, blocks);
    }
    let exec = machine.instantiate(graph);
    for stream in [machine.green_stream(greens[1]), machine.stream(NON_BLOCKING), null_mut()] {
        machine.sim.clear_trace();
        machine.launch_graph(exec, stream);
        let launches = machine.sim.launches();
        let sms: Vec<_> =
            launches.iter().map(|launch| (launch.sms.len(), launch.is_green)).collect();
        assert_eq!(sms, [(8, true), (8, true), (132, false)]);
        assert_ne!(launches[0].sms, launches[1].sms);
    }
}

#[test]
fn memory_goes_through_the_nodes() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let memory = machine.alloc(64);
    machine.sim.register_kernel("green_ctx_fault", |kernel| {
        let address = kernel.param_u64(0).expect("an address");
        let mut bytes = [0; 4];
        kernel.read(address, &mut bytes).expect("it is there");
        kernel.write(address, &bytes.map(|byte| byte + 1)).expect("it is there");
    });
    let mut out = [0_u8; 8];
    let first = machine.memset_node(graph, &[], &fill(memory, 7, 64), primary);
    let mut kernel = Kernel::new(&machine, "green_ctx_fault", &[memory]);
    let second = machine.kernel_node(graph, &[first], &kernel.on(primary, 1));
    let download = copy(from_mut(&mut out).cast(), memory, 8, true);
    let (after, none) = ([second], null_mut());
    let (status, _) =
        ask!(machine, none, cuGraphAddMemcpyNode(; graph, after.as_ptr(), 1, &download, primary));
    ok(status);
    let stream = machine.stream(NON_BLOCKING);
    machine.launch_graph(machine.instantiate(graph), stream);
    assert_eq!(out, [0; 8], "nothing was waited for");
    ok(machine.sync(stream));
    assert_eq!(out, [8, 8, 8, 8, 7, 7, 7, 7]);
}

#[test]
fn freed_memory_fails_the_device() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let memory = machine.alloc(64);
    machine.memset_node(graph, &[], &fill(memory, 7, 64), primary);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    machine.launch_graph(exec, stream);
    ok(machine.sync(stream));
    ok(call!(machine, cuMemFree(memory)));
    machine.launch_graph(exec, stream);
    assert_eq!(machine.sync(stream), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(call!(machine, cuGraphLaunch(exec, stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: each node was given a counter that outlives the machine.
    let counter = unsafe { &*data.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn functions_of_the_program_are_called_each_time() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let counter = AtomicU32::new(0);
    let node = machine.nothing(graph, &[], primary, 1);
    let params = CUDA_HOST_NODE_PARAMS_v1 {
        fn_: Some(count),
        userData: std::ptr::from_ref(&counter).cast_mut().cast(),
    };
    let none: CUgraphNode = null_mut();
    ok(ask!(machine, none, cuGraphAddHostNode(; graph, &node, 1, &params)).0);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    for times in 1..=3 {
        machine.launch_graph(exec, stream);
        assert_eq!(counter.load(Ordering::Relaxed), times - 1, "the kernel takes its time");
        ok(machine.sync(stream));
        assert_eq!(counter.load(Ordering::Relaxed), times);
    }
}

#[test]
fn a_destroyed_context_is_noticed() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    let graph = machine.graph();
    machine.nothing(graph, &[], machine.context(green), 1);
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    ok(machine.destroy(green));
    assert_eq!(call!(machine, cuGraphLaunch(exec, stream)), DESTROYED);
    let again = ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, 0)).0;
    assert_eq!(again, DESTROYED);
}

/// A kernel of a graph may do what it likes with what the graph runs in.
#[test]
fn a_kernel_may_destroy_stream_and_executable() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let first = machine.nothing(graph, &[], primary, 1);
    let mut kernel = Kernel::new(&machine, "green_ctx_fault", &[0]);
    machine.sim.register_kernel("green_ctx_fault", |_| {});
    machine.kernel_node(graph, &[first], &kernel.on(primary, 2));
    let (exec, stream) = (machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let destroy_stream = machine.api.cuStreamDestroy().expect("it exists");
    let destroy_exec = machine.api.cuGraphExecDestroy().expect("it exists");
    let (stream_number, exec_number) = (stream.addr(), exec.addr());
    machine.sim.register_kernel("nothing", move |_| {
        // SAFETY: handles are never followed.
        ok(unsafe { destroy_stream(std::ptr::without_provenance_mut(stream_number)) });
        // SAFETY: as above.
        ok(unsafe { destroy_exec(std::ptr::without_provenance_mut(exec_number)) });
    });
    machine.launch_graph(exec, stream);
    assert_eq!(machine.sim.launches().len(), 2);
    ok(call!(machine, cuCtxSynchronize()));
    assert_eq!(machine.sim.live().graph_executables, 0);
}

/// As recorded, the context of the stream is busy with a graph, and no context of its nodes.
#[test]
fn the_stream_s_context_is_busy_with_a_graph() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.green_of(8);
    let graph = machine.graph();
    machine.nothing(graph, &[], machine.context(green), 1);
    machine.launch_graph(machine.instantiate(graph), machine.stream(NON_BLOCKING));
    let [idle, busy] = [(); 2].map(|()| machine.event());
    ok(call!(machine, cuGreenCtxRecordEvent(green, idle)));
    ok(call!(machine, cuCtxRecordEvent(primary, busy)));
    assert_eq!(call!(machine, cuEventQuery(idle)), OK);
    assert_eq!(call!(machine, cuEventQuery(busy)), CUresult::CUDA_ERROR_NOT_READY);
}

/// A cooperative node that does not fit is launched, as recorded, and never runs: who waits for it
/// sees the device fail.
#[test]
fn a_cooperative_node_that_does_not_fit_never_runs() {
    let cooperative = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    let (mut value, timeout) =
        (CUlaunchAttributeValue { pad: [0; 64] }, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    value.cooperative = 1;
    for (blocks, waited) in [(16, OK), (17, timeout)] {
        let (machine, _) = Machine::with_primary();
        let graph = machine.graph();
        let node = machine.nothing(graph, &[], machine.context(machine.green_of(8)), blocks);
        ok(call!(machine, cuGraphKernelNodeSetAttribute(node, cooperative, &value)));
        let stream = machine.stream(NON_BLOCKING);
        machine.launch_graph(machine.instantiate(graph), stream);
        assert_eq!(call!(machine, cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(machine.sync(stream), waited);
        assert_eq!(machine.sim.launches().len(), usize::from(waited == OK));
    }
}

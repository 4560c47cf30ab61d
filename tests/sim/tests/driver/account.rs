//! What the test learns beside the program: what lives, what was called, and faults.

use std::ptr::null_mut;

use green_ctx_sim::{Fault, Live, Sim, SimError, Spec};
use green_ctx_sys::*;

use crate::machine::*;

#[test]
fn what_lives_is_counted_and_nothing_is_the_default() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    let stream = machine.green_stream(green);
    let event = machine.event();
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 100));
    ok(status);
    let ptx = c".version 7.8\n.target sm_90\n.entry work() {}";
    let (mut library, mut module) = (null_mut(), null_mut());
    ok(call!(
        machine,
        cuLibraryLoadData(
            &mut library,
            ptx.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        )
    ));
    ok(call!(machine, cuModuleLoadData(&mut module, ptx.as_ptr().cast())));
    let (status, graph) = ask!(machine, null_mut(), cuGraphCreate(; 0));
    ok(status);
    let live = machine.sim.live();
    assert_eq!(
        (
            live.primary_retains,
            live.green_contexts,
            live.streams,
            live.events,
            live.libraries,
            live.modules
        ),
        (1, 1, 1, 1, 1, 1)
    );
    assert_eq!((live.graphs, live.allocations, live.allocated_bytes), (1, 1, 100));

    ok(call!(machine, cuGraphDestroy(graph)));
    ok(call!(machine, cuModuleUnload(module)));
    ok(call!(machine, cuLibraryUnload(library)));
    ok(call!(machine, cuMemFree(memory)));
    ok(call!(machine, cuEventDestroy(event)));
    ok(call!(machine, cuStreamDestroy(stream)));
    ok(machine.destroy(green));
    ok(machine.pop());
    ok(call!(machine, cuDevicePrimaryCtxRelease(0)));
    assert_eq!(machine.sim.live(), Live::default());
}

#[test]
fn everything_on_the_device_goes_with_the_primary_context() {
    let (machine, _) = Machine::with_primary();
    let stream = machine.stream(NON_BLOCKING);
    machine.event();
    ok(ask!(machine, 0, cuMemAlloc(; 100)).0);
    let ptx = c".version 7.8\n.target sm_90\n.entry work() {}";
    let (status, module) = ask!(machine, null_mut(), cuModuleLoadData(; ptx.as_ptr().cast()));
    ok(status);
    let (status, function) =
        ask!(machine, null_mut(), cuModuleGetFunction(; module, c"work".as_ptr()));
    ok(status);
    ok(call!(machine, cuDevicePrimaryCtxRelease(0)));
    assert_eq!(machine.sim.live(), Live::default());
    machine.retain();
    assert_eq!(machine.sync(stream), DESTROYED);
    assert_eq!(call!(machine, cuModuleUnload(module)), INVALID_HANDLE);
    assert_eq!(machine.launch(function.cast(), 1, null_mut(), &[]), INVALID_HANDLE);
}

#[test]
fn memory_runs_out() {
    let (machine, _) = Machine::with_primary();
    let profile = machine.sim.spec().profile();
    let room = profile.memory_bytes - profile.primary_context_bytes;
    let memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    for _ in 0..room / profile.green_context_bytes {
        let (status, green) = machine.create(null_mut());
        ok(status);
        ok(machine.destroy(green));
    }
    assert_eq!(machine.create(null_mut()).0, memory);
    let bytes = profile.green_context_bytes as usize;
    assert_eq!(ask!(machine, 0, cuMemAlloc(; bytes)).0, memory);
    ok(call!(machine, cuDevicePrimaryCtxRelease(0)));
    machine.retain();
    ok(ask!(machine, 0, cuMemAlloc(; bytes)).0);
}

#[test]
fn each_green_context_costs_memory_for_good() {
    let (machine, _) = Machine::with_primary();
    let free = || {
        let (mut free, mut total) = (0, 0);
        ok(call!(machine, cuMemGetInfo(&mut free, &mut total)));
        (total - free) >> 20
    };
    let before = free();
    let desc = machine.desc(&machine.units().groups[..1]).expect("one unit");
    for cycles in [1, 10, 100] {
        let start = free();
        for _ in 0..cycles {
            let (status, green) = machine.create(desc);
            ok(status);
            ok(machine.destroy(green));
        }
        assert_eq!(free() - start, 4 * cycles);
    }
    assert_eq!(free() - before, 444);
    let live: Vec<_> = (0..512).map(|_| machine.create(desc)).collect();
    assert!(live.iter().all(|(status, _)| *status == OK));
}

#[test]
fn faults_strike_once_and_leave_no_trace() {
    let (machine, _) = Machine::with_primary();
    let memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let create = || ask!(machine, null_mut(), cuStreamCreateWithPriority(; 0, 0)).0;
    machine
        .sim
        .fail(Fault::on("cuStreamCreateWithPriority").nth(2).with(memory))
        .expect("it exists");
    assert_eq!([create(), create(), create()], [OK, memory, OK]);
    assert_eq!(machine.sim.live().streams, 2);
    // Two faults count the same calls.
    machine.sim.fail(Fault::on("cuStreamCreateWithPriority").nth(3)).expect("it exists");
    machine.sim.fail(Fault::on("cuStreamCreateWithPriority").with(memory)).expect("it exists");
    assert_eq!(
        [create(), create(), create(), create()],
        [memory, OK, CUresult::CUDA_ERROR_UNKNOWN, OK]
    );
    machine.sim.fail(Fault::on("cuStreamCreateWithPriority")).expect("it exists");
    machine.sim.clear_faults();
    assert_eq!(create(), OK);
    let unknown = machine.sim.fail(Fault::on("cuStreamCreat"));
    assert_eq!(unknown, Err(SimError::UnknownFunction { name: "cuStreamCreat".to_owned() }));
}

#[test]
fn calls_are_counted_and_logged() {
    let (machine, _) = Machine::with_primary();
    machine.sim.clear_calls();
    machine.sim.record_calls(true);
    let event = machine.event();
    let other = ask!(machine, null_mut(), cuEventCreate(; 99)).0;
    machine.sim.record_calls(false);
    ok(call!(machine, cuEventDestroy(event)));
    assert_eq!(
        machine.sim.calls().into_iter().collect::<Vec<_>>(),
        [("cuEventCreate", 2), ("cuEventDestroy", 1)]
    );
    let log: Vec<_> =
        machine.sim.call_log().iter().map(|call| (call.function, call.status)).collect();
    assert_eq!(log, [("cuEventCreate", OK), ("cuEventCreate", other)]);
}

#[test]
fn the_trace_is_bounded() {
    let sim = Sim::builder(Spec::default()).trace(3).build().expect("a free slot");
    // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`.
    let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }.expect("it has all");
    let machine = Machine { sim, api };
    ok(machine.init());
    let stream = machine.green_stream(machine.green_of(8));
    let kernel = machine.kernel("nothing");
    for blocks in 1..=5 {
        ok(machine.launch(kernel, blocks, stream, &[]));
    }
    let grids: Vec<u32> = machine.sim.launches().iter().map(|launch| launch.grid[0]).collect();
    assert_eq!(grids, [3, 4, 5]);
    assert_eq!(machine.sms(), [0, 1, 16, 17, 32], "as many SMs as blocks");
    machine.sim.clear_trace();
    assert!(machine.sim.launches().is_empty());
}

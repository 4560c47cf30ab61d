//! Several drivers in one process, and the features for tests: live objects, calls, faults and the trace.

use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use green_ctx_sim::{Fault, Live, Sim, SimError, Spec};
use green_ctx_sys::*;

use crate::machine::*;

const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

#[test]
fn what_lives_is_counted() {
    let machine = Machine::with_primary();
    let green = machine.green_of(8);
    let stream = machine.green_stream(green);
    machine.event();
    machine.alloc(100);
    get!(machine, null_mut(), cuModuleLoadData(; PTX.as_ptr().cast()));
    machine.capture(stream, || {});
    machine.kernel("nothing");
    let live = machine.sim.live();
    let handles = [live.green_contexts, live.streams, live.events, live.libraries, live.modules];
    assert_eq!((live.primary_retains, handles), (1, [1; 5]));
    assert_eq!((live.graphs, live.graph_executables), (1, 1));
    assert_eq!((live.allocations, live.allocated_bytes), (1, 100));
}

#[test]
fn a_green_context_costs_memory_for_good() {
    let machine = Machine::with_primary();
    let free = || get!(machine, 0, cuMemGetInfo(; &mut 0)) as u64;
    let profile = machine.sim.spec().profile();
    assert_eq!(free(), profile.memory_bytes - profile.primary_context_bytes);
    for count in 1..=10 {
        ok(machine.destroy(machine.green_of(8)));
        let left = profile.memory_bytes - profile.primary_context_bytes;
        assert_eq!(free(), left - count * profile.green_context_bytes);
    }
    let (status, _) = ask!(machine, 0, cuMemAlloc(; free() as usize + 1));
    assert_eq!(status, OUT_OF_MEMORY);
}

#[test]
fn faults_strike_once_and_leave_no_trace() {
    let machine = Machine::with_primary();
    let create = || ask!(machine, null_mut(), cuStreamCreateWithPriority(; 0, 0)).0;
    let fail = |fault: fn(Fault) -> Fault| {
        machine.sim.fail(fault(Fault::on("cuStreamCreateWithPriority"))).expect("it exists");
    };
    fail(|fault| fault.nth(2).with(OUT_OF_MEMORY));
    assert_eq!([create(), create(), create()], [OK, OUT_OF_MEMORY, OK]);
    assert_eq!(machine.sim.live().streams, 2);
    // Two faults count the same calls.
    fail(|fault| fault.nth(3));
    fail(|fault| fault.with(OUT_OF_MEMORY));
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    assert_eq!([create(), create(), create(), create()], [OUT_OF_MEMORY, OK, unknown, OK]);
    fail(|fault| fault);
    machine.sim.clear_faults();
    assert_eq!(create(), OK);
    let unknown = machine.sim.fail(Fault::on("cuStreamCreat"));
    assert_eq!(unknown, Err(SimError::UnknownFunction { name: "cuStreamCreat".to_owned() }));
}

#[test]
fn calls_are_counted_and_logged() {
    let machine = Machine::with_primary();
    machine.sim.clear_calls();
    machine.sim.record_calls(true);
    let event = machine.event();
    let refused = ask!(machine, null_mut(), cuEventCreate(; 99)).0;
    machine.sim.record_calls(false);
    must!(machine, cuEventDestroy(event));
    let calls: Vec<_> = machine.sim.calls().into_iter().collect();
    assert_eq!(calls, [("cuEventCreate", 2), ("cuEventDestroy", 1)]);
    let log = machine.sim.call_log();
    let log: Vec<_> = log.iter().map(|call| (call.function, call.status)).collect();
    assert_eq!(log, [("cuEventCreate", OK), ("cuEventCreate", refused)]);
}

#[test]
fn the_trace_is_bounded() {
    let machine = Machine::dormant(Sim::builder(Spec::default()).trace(3));
    ok(machine.init());
    let stream = machine.green_stream(machine.green_of(8));
    let kernel = machine.kernel("nothing");
    for blocks in 1..=5 {
        ok(machine.launch(kernel, blocks, stream, &[]));
    }
    let grids: Vec<u32> = machine.sim.launches().iter().map(|launch| launch.grid[0]).collect();
    assert_eq!(grids, [3, 4, 5]);
    assert_eq!(machine.sms(), [0, 1, 16, 17, 32], "as many SMs as blocks");
    machine.sim.take_launches();
    assert!(machine.sim.launches().is_empty());
}

#[test]
fn drivers_share_nothing() {
    let first = Machine::with_primary();
    let second = Machine::with_devices("h200@12.4", 3);
    let mut count = 0;
    // SAFETY: the pointer points to a local variable of the type that the function fills.
    ok(unsafe { second.api.cuDeviceGetCount()(&mut count) });
    assert_eq!(count, 3);
    assert_eq!(second.push(first.current()), INVALID_CONTEXT);
    assert!(second.current().is_null());
    let stream = first.green_stream(first.green_of(8));
    assert_eq!(second.sync(stream), INVALID_HANDLE);
    assert_eq!(second.desc(&first.units().groups[..1]), Err(BAD_CONFIGURATION));
    assert_eq!(second.sim.live(), Live::default());
}

#[test]
fn functions_outlive_their_driver_without_harm() {
    let Machine { sim, api } = Machine::new();
    let clone = sim.clone();
    drop(sim);
    // SAFETY: the pointer points to a temporary of the type that the function fills, which lives until the
    // call returns.
    let count = || unsafe { api.cuDeviceGetCount()(&mut 0) };
    assert_eq!(count(), OK);
    drop(clone);
    assert_eq!(count(), CUresult::CUDA_ERROR_DEINITIALIZED);
}

/// Threads create, use and drop drivers and contexts at the same time.
#[test]
fn threads_do_not_disturb_each_other() {
    let shared = Machine::new();
    let desc = shared.desc(&shared.units().groups[..2]).expect("two units").addr();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let own = Machine::new();
                    let stream = own.green_stream(own.green_of(8));
                    ok(own.launch(own.kernel("nothing"), 8, stream, &[]));
                    assert_eq!(own.sim.launches().len(), 1);

                    let (status, green) = shared.create(std::ptr::without_provenance_mut(desc));
                    ok(status);
                    let stream = shared.green_stream(green);
                    ok(shared.launch(shared.kernel("nothing"), 16, stream, &[]));
                    ok(shared.sync(stream));
                    must!(shared, cuStreamDestroy(stream));
                    ok(shared.destroy(green));
                }
            });
        }
    });
    let live = shared.sim.live();
    assert_eq!((live.green_contexts, live.streams), (0, 0));
    assert_eq!(shared.sim.launches().len(), 200);
}

#[test]
fn a_machine_without_devices_does_not_start() {
    let machine = Machine::dormant(Sim::builder("h200").devices(0));
    assert_eq!(machine.init(), CUresult::CUDA_ERROR_NO_DEVICE);
    // SAFETY: the pointer points to a temporary of the type that the function fills, which lives until the
    // call returns.
    let status = unsafe { machine.api.cuDeviceGetCount()(&mut 0) };
    assert_eq!(status, CUresult::CUDA_ERROR_NOT_INITIALIZED);
}

/// The body runs in its own process, because it takes all slots for drivers.
#[test]
fn a_process_has_32_drivers_and_the_next_one_waits() {
    const ALONE: &str = "GREEN_CTX_SIM_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut program = std::process::Command::new(std::env::current_exe().expect("a path"));
        program.args(["--exact", "driver::a_process_has_32_drivers_and_the_next_one_waits"]);
        let output = program.env(ALONE, "1").output().expect("this program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let new = || Sim::new(Spec::default());
    let mut sims: Vec<Sim> = (0..32).map(|_| new().expect("a free place")).collect();
    let without_a_place = |patience| {
        let begin = Instant::now();
        let refused = Sim::builder(Spec::default()).patience(patience).build().err();
        assert_eq!(refused, Some(SimError::TooMany));
        assert!(begin.elapsed() >= patience);
    };
    without_a_place(Duration::ZERO);
    without_a_place(Duration::from_millis(20));
    sims.truncate(31);
    sims.push(new().expect("the place that is free again"));
    without_a_place(Duration::ZERO);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| new().map(drop));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "no place was free");
        drop(sims);
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
}

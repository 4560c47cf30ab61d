//! The virtual clock and the real clock.

use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use green_ctx_sim::{Clock, Sim};
use green_ctx_sys::*;

use crate::machine::*;

/// The maximum time for a thread to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn with(clock: Clock) -> Machine {
    let machine = Machine::dormant(Sim::builder("h200").clock(clock));
    ok(machine.init());
    ok(machine.push(machine.retain()));
    machine
}

/// Increments the counter that the pointer is to.
unsafe extern "C" fn count(calls: *mut c_void) {
    // SAFETY: every test passes a pointer to a counter that outlives the driver's work.
    let calls = unsafe { &*calls.cast::<AtomicU32>() };
    calls.fetch_add(1, Ordering::SeqCst);
}

fn submit(machine: &Machine, stream: CUstream, function: CUhostFn, calls: &AtomicU32) {
    must!(machine, cuLaunchHostFunc(stream, function, from_ref(calls).cast_mut().cast()));
}

/// Waits without calling the driver.
fn becomes(calls: &AtomicU32, value: u32) -> bool {
    let begin = Instant::now();
    while calls.load(Ordering::SeqCst) != value {
        if begin.elapsed() > PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}

/// Returns a kernel with this duration.
fn lasting(machine: &Machine, duration: Duration) -> CUkernel {
    let duration = u64::try_from(duration.as_nanos()).expect("a short time");
    machine.sim.register_kernel("nothing", move |kernel| kernel.set_duration_ns(duration));
    machine.kernel("nothing")
}

#[test]
fn functions_run_while_the_program_sleeps() {
    let calls = AtomicU32::new(0);
    let machine = with(Clock::Real);
    let stream = machine.stream(NON_BLOCKING);
    let kernel = lasting(&machine, Duration::from_millis(5));
    for round in 1..=3 {
        ok(machine.launch(kernel, 1, stream, &[]));
        submit(&machine, stream, Some(count), &calls);
        assert!(becomes(&calls, round), "round {round}");
    }
    let calls_made = machine.sim.calls();
    assert_eq!(calls_made.get("cuStreamSynchronize").or(calls_made.get("cuStreamQuery")), None);
}

#[test]
fn events_measure_what_passes_between_them() {
    let machine = with(Clock::Real);
    let stream = machine.stream(NON_BLOCKING);
    let [start, end] = [machine.event(), machine.event()];
    let begin = Instant::now();
    must!(machine, cuEventRecord(start, stream));
    sleep(Duration::from_millis(20));
    must!(machine, cuEventRecord(end, stream));
    let most = begin.elapsed().as_secs_f32() * 1e3 + 1.0;
    ok(machine.sync(stream));
    let between = get!(machine, 0.0, cuEventElapsedTime(; start, end));
    assert!((20.0..most).contains(&between), "{between} ms of {most}");
    // Work counts with its full duration, although the host does not wait for that time.
    must!(machine, cuEventRecord(start, stream));
    ok(machine.launch(lasting(&machine, Duration::from_secs(100)), 1, stream, &[]));
    must!(machine, cuEventRecord(end, stream));
    ok(machine.sync(stream));
    let between = get!(machine, 0.0, cuEventElapsedTime(; start, end));
    assert!(between >= 100_000.0, "{between} ms");
}

#[test]
fn a_stream_becomes_ready_by_itself_on_a_real_clock_alone() {
    for clock in [Clock::Real, Clock::Virtual] {
        let machine = with(clock);
        let stream = machine.stream(NON_BLOCKING);
        ok(machine.launch(lasting(&machine, Duration::from_millis(30)), 1, stream, &[]));
        sleep(Duration::from_millis(60));
        let ready = if clock == Clock::Real { OK } else { NOT_READY };
        assert_eq!(call!(machine, cuStreamQuery(stream)), ready, "{clock:?}");
    }
}

#[test]
fn who_waits_for_a_stream_waits_for_its_functions() {
    unsafe extern "C" fn late(calls: *mut c_void) {
        sleep(Duration::from_millis(20));
        // SAFETY: the test passes a pointer to a counter that outlives the driver's work.
        unsafe { count(calls) };
    }
    let calls = AtomicU32::new(0);
    let machine = with(Clock::Real);
    let stream = machine.stream(NON_BLOCKING);
    for round in 1..=3 {
        submit(&machine, stream, Some(late), &calls);
        ok(machine.sync(stream));
        assert_eq!(calls.load(Ordering::SeqCst), round);
    }
}

/// The function waits for the program, which makes calls before it releases the function.
#[test]
fn a_function_that_waits_holds_up_no_call() {
    unsafe extern "C" fn gate(calls: *mut c_void) {
        // SAFETY: the test passes a pointer to a counter that outlives the driver's work.
        let state = unsafe { &*calls.cast::<AtomicU32>() };
        state.store(1, Ordering::SeqCst);
        becomes(state, 2);
        state.store(3, Ordering::SeqCst);
    }
    let calls = AtomicU32::new(0);
    let machine = with(Clock::Real);
    let stream = machine.stream(NON_BLOCKING);
    submit(&machine, stream, Some(gate), &calls);
    assert!(becomes(&calls, 1));
    let memory = get!(machine, 0, cuMemAllocAsync(; 64, stream));
    must!(machine, cuMemFreeAsync(memory, stream));
    calls.store(2, Ordering::SeqCst);
    ok(machine.sync(stream));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[test]
fn a_driver_ends_with_work_that_is_left() {
    let calls = AtomicU32::new(0);
    let machine = with(Clock::Real);
    let stream = machine.stream(NON_BLOCKING);
    ok(machine.launch(lasting(&machine, Duration::from_secs(3600)), 1, stream, &[]));
    submit(&machine, stream, Some(count), &calls);
    drop(machine);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

/// The function drops the last handle of its own driver.
#[test]
fn a_function_ends_its_driver() {
    struct Last(std::sync::Mutex<Option<Sim>>, AtomicU32);
    unsafe extern "C" fn end(last: *mut c_void) {
        // SAFETY: the test keeps the value alive until its counter is 1.
        let last = unsafe { &*last.cast::<Last>() };
        drop(last.0.lock().expect("no panic").take());
        last.1.store(1, Ordering::SeqCst);
    }
    let Machine { sim, api } = with(Clock::Real);
    let last = Last(std::sync::Mutex::new(Some(sim)), AtomicU32::new(0));
    let data = from_ref(&last).cast_mut().cast();
    let function = api.cuLaunchHostFunc().expect("it exists");
    // SAFETY: `data` points to `last`, which has the type that `end` expects and outlives the call of
    // `end`.
    ok(unsafe { function(null_mut(), Some(end), data) });
    assert!(becomes(&last.1, 1));
}

//! The order of launches: by streams, events, contexts and the host, and by nothing else.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

struct Pair {
    machine: Machine,
    greens: [CUgreenCtx; 2],
    streams: [CUstream; 2],
    kernel: CUkernel,
}

impl Pair {
    fn new() -> Pair {
        let (machine, _) = Machine::with_primary();
        let units = machine.units();
        let greens = [0, 1].map(|unit| machine.green(&[units.groups[unit]]));
        let streams = greens.map(|green| machine.green_stream(green));
        let kernel = machine.kernel("nothing");
        Pair { machine, greens, streams, kernel }
    }

    fn launch(&self, stream: usize) {
        ok(self.machine.launch(self.kernel, 8, self.streams[stream], &[]));
    }

    /// Launches in the first stream, does something, launches in the second, and says whether the
    /// launches are ordered.
    fn ordered(&self, between: impl FnOnce()) -> bool {
        self.machine.sim.clear_trace();
        self.launch(0);
        between();
        self.launch(1);
        let launches = self.machine.sim.launches();
        let (first, second) = (&launches[0], &launches[1]);
        assert!(!second.happens_before(first));
        let ordered = first.happens_before(second);
        if ordered {
            assert!(first.end_ns <= second.start_ns, "order without time");
        }
        ordered
    }
}

#[test]
fn streams_are_ordered_in_themselves_and_not_with_each_other() {
    let pair = Pair::new();
    assert!(!pair.ordered(|| {}));
    pair.launch(0);
    let launches = pair.machine.sim.launches();
    assert!(launches[0].happens_before(&launches[2]));
    assert!(!launches[0].happens_before(&launches[0]));
    assert!(!launches[1].happens_before(&launches[2]));
}

#[test]
fn events_order_streams() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let event = machine.event();
    let wait = |flags| call!(machine, cuStreamWaitEvent(pair.streams[1], event, flags));
    assert!(!pair.ordered(|| ok(wait(0))), "an event that was never recorded");
    let record = || ok(call!(machine, cuEventRecord(event, pair.streams[0])));
    assert!(!pair.ordered(record), "recorded and not waited for");
    assert!(pair.ordered(|| {
        record();
        ok(wait(0));
    }));
    assert_eq!(wait(2), INVALID_VALUE);
}

#[test]
fn the_host_orders_what_it_waited_for() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let event = machine.event();
    assert!(pair.ordered(|| ok(machine.sync(pair.streams[0]))));
    let pair = Pair::new();
    let machine = &pair.machine;
    assert!(
        pair.ordered(|| ok(call!(machine, cuCtxSynchronize()))),
        "the primary context stands for all"
    );
    let pair = Pair::new();
    let machine = &pair.machine;
    assert!(!pair.ordered(|| {
        ok(machine.push(machine.context(pair.greens[1])));
        ok(call!(machine, cuCtxSynchronize()));
        ok(machine.pop());
    }));
    let pair = Pair::new();
    let machine = &pair.machine;
    assert_eq!(call!(machine, cuEventQuery(event)), INVALID_HANDLE, "an event of another driver");
    let event = machine.event();
    assert!(pair.ordered(|| {
        ok(call!(machine, cuEventRecord(event, pair.streams[0])));
        while call!(machine, cuEventQuery(event)) == CUresult::CUDA_ERROR_NOT_READY {}
    }));
}

#[test]
fn contexts_record_and_wait() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let event = machine.event();
    assert!(pair.ordered(|| {
        ok(call!(machine, cuGreenCtxRecordEvent(pair.greens[0], event)));
        ok(call!(machine, cuGreenCtxWaitEvent(pair.greens[1], event)));
    }));
    let pair = Pair::new();
    let machine = &pair.machine;
    let event = machine.event();
    let (_, primary) = ask!(machine, null_mut(), cuCtxGetCurrent(;));
    assert!(pair.ordered(|| {
        ok(call!(machine, cuCtxRecordEvent(primary, event)));
        ok(call!(machine, cuCtxWaitEvent(primary, event)));
    }));
}

/// A context-wide wait is for the streams that are there.
#[test]
fn a_waiting_context_s_new_streams_do_not_wait() {
    for wait_with_primary in [false, true] {
        let pair = Pair::new();
        let machine = &pair.machine;
        let event = machine.event();
        pair.launch(0);
        ok(call!(machine, cuEventRecord(event, pair.streams[0])));
        let waiting = if wait_with_primary {
            ask!(machine, null_mut(), cuCtxGetCurrent(;)).1
        } else {
            machine.context(pair.greens[1])
        };
        ok(call!(machine, cuCtxWaitEvent(waiting, event)));
        let new = machine.green_stream(pair.greens[1]);
        ok(call!(machine, cuStreamQuery(new)));
        let not_ready = CUresult::CUDA_ERROR_NOT_READY;
        assert_eq!(call!(machine, cuStreamQuery(pair.streams[1])), not_ready);
        ok(machine.launch(pair.kernel, 8, new, &[]));
        pair.launch(1);
        let launches = machine.sim.launches();
        let ordered = |other: usize| launches[0].happens_before(&launches[other]);
        assert_eq!((ordered(1), ordered(2)), (false, true));
    }
}

/// Who waits for a context waits for what the whole context waits for, and for what one of its streams
/// waits for once there is work behind it (recorded on an H200).
#[test]
fn synchronising_a_context_waits_for_the_waits_of_the_whole() {
    type Wait = fn(&Pair, CUevent) -> CUresult;
    let of_stream: Wait =
        |pair, event| call!(pair.machine, cuStreamWaitEvent(pair.streams[1], event, 0));
    let of_context: Wait =
        |pair, event| call!(pair.machine, cuGreenCtxWaitEvent(pair.greens[1], event));
    for (wait, work_behind, covers) in
        [(of_stream, false, false), (of_stream, true, true), (of_context, false, true)]
    {
        let pair = Pair::new();
        let machine = &pair.machine;
        let (busy, whole) = (machine.event(), machine.event());
        machine.sim.register_kernel("nothing", |kernel| kernel.set_duration_ns(1_000_000));
        pair.launch(0);
        ok(call!(machine, cuEventRecord(busy, pair.streams[0])));
        ok(wait(&pair, busy));
        if work_behind {
            pair.launch(1);
        }
        ok(call!(machine, cuGreenCtxRecordEvent(pair.greens[1], whole)));
        assert_eq!(call!(machine, cuEventQuery(whole)) != CUresult::CUDA_SUCCESS, covers);
        ok(machine.push(machine.context(pair.greens[1])));
        ok(call!(machine, cuCtxSynchronize()));
        ok(machine.pop());
        ok(call!(machine, cuEventQuery(whole)));
        assert_eq!(call!(machine, cuEventQuery(busy)) == CUresult::CUDA_SUCCESS, covers);
    }
}

/// A green context's default stream is one of its streams: events of the whole cover it, and it waits
/// for what the whole waits for. So do streams made while the context was current (cuda.h,
/// `cuGreenCtxRecordEvent` and `cuGreenCtxWaitEvent`; recorded on an H200).
#[test]
fn contexts_record_and_hold_every_kind_of_stream() {
    let legacy: fn(&Machine) -> CUstream = |_| std::ptr::without_provenance_mut(1);
    let made = [legacy, |machine| machine.stream(0), |machine| machine.stream(NON_BLOCKING)];
    for stream in made {
        let pair = Pair::new();
        let machine = &pair.machine;
        machine.sim.register_kernel("nothing", |kernel| kernel.set_duration_ns(1_000_000));
        let (event, whole) = (machine.event(), machine.event());
        pair.launch(0);
        ok(call!(machine, cuEventRecord(event, pair.streams[0])));
        ok(machine.push(machine.context(pair.greens[1])));
        let stream = stream(machine);
        ok(call!(machine, cuGreenCtxWaitEvent(pair.greens[1], event)));
        ok(machine.launch(pair.kernel, 8, stream, &[]));
        ok(machine.pop());
        ok(call!(machine, cuGreenCtxRecordEvent(pair.greens[1], whole)));
        ok(call!(machine, cuEventSynchronize(event)));
        assert_eq!(call!(machine, cuEventQuery(whole)), CUresult::CUDA_ERROR_NOT_READY);
        ok(call!(machine, cuEventSynchronize(whole)));
        let launches = machine.sim.launches();
        assert!(launches[0].happens_before(&launches[1]));
        assert!(launches[0].end_ns <= launches[1].start_ns);
    }
}

/// The legacy stream waits for what a blocking stream waits for.
#[test]
fn the_legacy_stream_waits_for_the_waits_of_blocking_streams() {
    let (machine, _) = Machine::with_primary();
    let kernel = machine.kernel("nothing");
    let (blocking, free) = (machine.stream(0), machine.stream(NON_BLOCKING));
    let event = machine.event();
    ok(machine.launch(kernel, 1, free, &[]));
    ok(call!(machine, cuEventRecord(event, free)));
    ok(call!(machine, cuStreamWaitEvent(blocking, event, 0)));
    ok(machine.launch(kernel, 1, null_mut(), &[]));
    let launches = machine.sim.launches();
    assert!(launches[0].happens_before(&launches[1]));
}

#[test]
fn work_of_a_destroyed_stream_goes_on() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let before = machine.sim.launches().len();
    pair.launch(0);
    let end = machine.sim.launches()[before].end_ns;
    ok(call!(machine, cuStreamDestroy(pair.streams[0])));
    assert_eq!(machine.sync(pair.streams[0]), INVALID_HANDLE);
    let event = machine.event();
    ok(call!(machine, cuGreenCtxRecordEvent(pair.greens[0], event)));
    ok(call!(machine, cuStreamWaitEvent(pair.streams[1], event, 0)));
    pair.launch(1);
    let launches = machine.sim.launches();
    assert!(launches[0].happens_before(&launches[1]));
    assert!(end <= launches[1].start_ns);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let (machine, _) = Machine::with_primary();
    let kernel = machine.kernel("nothing");
    let (blocking, free) = (machine.stream(0), machine.stream(NON_BLOCKING));
    for stream in [blocking, free, null_mut(), blocking, free] {
        ok(machine.launch(kernel, 1, stream, &[]));
    }
    let launches = machine.sim.launches();
    let before = |a: usize, b: usize| launches[a].happens_before(&launches[b]);
    assert!(before(0, 2) && before(2, 3));
    assert!(!before(1, 2) && !before(2, 4));
}

#[test]
fn threads_have_their_own_stacks_and_per_thread_streams() {
    let (machine, primary) = Machine::with_primary();
    let per_thread = || std::ptr::without_provenance_mut(2);
    let id = || ask!(machine, 0, cuStreamGetId(per_thread();)).1;
    let here = id();
    assert_eq!(here, id());
    let primary = primary.addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(ask!(machine, null_mut(), cuCtxGetCurrent(;)), (OK, null_mut()));
            ok(call!(machine, cuCtxSetCurrent(std::ptr::without_provenance_mut(primary))));
            assert_ne!(id(), here);
            ok(call!(machine, cuCtxSetCurrent(null_mut())));
            ok(call!(machine, cuCtxSetCurrent(null_mut())));
        });
    });
    assert_eq!(ask!(machine, null_mut(), cuCtxGetCurrent(;)).1.addr(), primary);
}

#[test]
fn events_measure_virtual_time() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let (start, end) = (machine.event(), machine.event());
    let elapsed = || ask!(machine, -1.0, cuEventElapsedTime(; start, end));
    assert_eq!(elapsed().0, INVALID_HANDLE, "not recorded");
    machine.sim.register_kernel("nothing", |kernel| kernel.set_duration_ns(3_000_000));
    ok(call!(machine, cuEventRecord(start, pair.streams[0])));
    pair.launch(0);
    ok(call!(machine, cuEventRecord(end, pair.streams[0])));
    assert_eq!(elapsed().0, CUresult::CUDA_ERROR_NOT_READY);
    ok(call!(machine, cuEventSynchronize(end)));
    let (status, milliseconds) = elapsed();
    ok(status);
    assert!((3.0..3.1).contains(&milliseconds), "{milliseconds}");
    let (status, untimed) = ask!(machine, null_mut(), cuEventCreate(; 2));
    ok(status);
    ok(call!(machine, cuEventRecord(untimed, pair.streams[0])));
    assert_eq!(ask!(machine, 0.0, cuEventElapsedTime(; untimed, end)).0, INVALID_HANDLE);
    for flags in [4, 8] {
        assert_eq!(ask!(machine, null_mut(), cuEventCreate(; flags)).0, INVALID_VALUE);
    }
}

#[test]
fn events_cross_contexts_but_not_devices() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    let stream = machine.green_stream(green);
    let of_primary = machine.event();
    ok(call!(machine, cuEventRecord(of_primary, stream)));
    ok(machine.push(machine.context(green)));
    let of_green = machine.event();
    ok(machine.pop());
    ok(call!(machine, cuEventRecord(of_green, machine.stream(NON_BLOCKING))));
    ok(call!(machine, cuEventRecord(of_green, stream)));

    let machine = Machine::with_devices("h200", 2);
    let contexts =
        [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
    ok(machine.push(contexts[0]));
    let event = machine.event();
    ok(machine.push(contexts[1]));
    let stream = machine.stream(NON_BLOCKING);
    assert_eq!(call!(machine, cuEventRecord(event, stream)), INVALID_HANDLE);
    ok(call!(machine, cuStreamWaitEvent(stream, event, 0)));
}

#[test]
fn runs_are_the_same_every_time() {
    let run = || {
        let pair = Pair::new();
        let event = pair.machine.event();
        pair.launch(0);
        pair.launch(1);
        ok(call!(pair.machine, cuEventRecord(event, pair.streams[1])));
        ok(call!(pair.machine, cuStreamWaitEvent(pair.streams[0], event, 0)));
        pair.launch(0);
        pair.machine
            .sim
            .launches()
            .iter()
            .map(|launch| (launch.start_ns, launch.end_ns))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn work_of_a_destroyed_context_goes_on() {
    let pair = Pair::new();
    let machine = &pair.machine;
    assert!(pair.ordered(|| {
        ok(call!(machine, cuStreamDestroy(pair.streams[0])));
        ok(machine.destroy(pair.greens[0]));
        ok(call!(machine, cuCtxSynchronize()));
    }));
}

#[test]
fn freeing_memory_waits_for_the_device() {
    let pair = Pair::new();
    let machine = &pair.machine;
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 64));
    ok(status);
    assert!(pair.ordered(|| ok(call!(machine, cuMemFree(memory)))));
}

#[test]
fn copies_that_name_no_stream_wait() {
    let (machine, _) = Machine::with_primary();
    let kernel = machine.kernel("nothing");
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 64));
    ok(status);
    let (blocking, free) = (machine.stream(0), machine.stream(NON_BLOCKING));
    ok(machine.launch(kernel, 1, blocking, &[]));
    ok(call!(machine, cuMemcpyDtoH([0_u8; 64].as_mut_ptr().cast(), memory, 64)));
    ok(machine.launch(kernel, 1, free, &[]));
    let launches = machine.sim.launches();
    assert!(launches[0].happens_before(&launches[1]));
}

/// How many actors the clock of the last launch has entries for.
fn entries(machine: &Machine) -> usize {
    let launches = machine.sim.launches();
    let text = format!("{:?}", launches.last().expect("a launch"));
    text.split("clock").nth(1).map_or(0, |clock| clock.matches(", ").count())
}

/// Clocks do not grow with streams and contexts that are gone, whatever waits for them.
#[test]
fn what_is_gone_takes_no_room_in_clocks() {
    let Pair { machine, greens, streams, kernel } = Pair::new();
    let units = machine.units();
    let event = machine.event();
    for round in 0..300 {
        let green = machine.green(&[units.groups[2]]);
        for context in [greens[0], greens[1], green] {
            let stream = machine.green_stream(context);
            ok(machine.launch(kernel, 8, stream, &[]));
            match round % 5 {
                // Nothing waits.
                0 => {}
                // The host waits, a stream, and a stream for the whole context.
                1 => ok(machine.sync(stream)),
                2 => {
                    ok(call!(machine, cuEventRecord(event, stream)));
                    ok(call!(machine, cuStreamWaitEvent(streams[0], event, 0)));
                }
                3 => {
                    ok(call!(machine, cuCtxRecordEvent(machine.context(context), event)));
                    ok(call!(machine, cuStreamWaitEvent(streams[1], event, 0)));
                }
                _ => ok(call!(machine, cuCtxSynchronize())),
            }
            ok(call!(machine, cuStreamDestroy(stream)));
        }
        ok(machine.destroy(green));
        for stream in streams {
            ok(machine.launch(kernel, 8, stream, &[]));
            assert!(entries(&machine) < 40, "round {round}: {}", entries(&machine));
        }
    }
}

/// What holds for living streams holds for those that are gone: only what waits comes after them.
#[test]
fn work_of_destroyed_streams_is_ordered_as_before() {
    let Pair { machine, greens, streams, kernel } = Pair::new();
    let event = machine.event();
    let launch = |stream| {
        ok(machine.launch(kernel, 8, stream, &[]));
        machine.sim.launches().pop().expect("a launch")
    };
    let mut gone = Vec::new();
    for index in 0..6 {
        let stream = machine.green_stream(greens[0]);
        gone.push(launch(stream));
        // A stream waits for every second one.
        if index % 2 == 0 {
            ok(call!(machine, cuEventRecord(event, stream)));
            ok(call!(machine, cuStreamWaitEvent(streams[1], event, 0)));
        }
        ok(call!(machine, cuStreamDestroy(stream)));
    }
    let before = |later: &green_ctx_sim::Launch| {
        gone.iter().map(|gone| gone.happens_before(later)).collect::<Vec<_>>()
    };
    assert_eq!(before(&launch(streams[0])), [false; 6]);
    assert_eq!(before(&launch(streams[1])), [true, false, true, false, true, false]);
    for (index, one) in gone.iter().enumerate() {
        assert_eq!(before(one), [false; 6], "{index}");
    }
    ok(call!(machine, cuCtxRecordEvent(machine.context(greens[0]), event)));
    ok(call!(machine, cuStreamWaitEvent(streams[1], event, 0)));
    // One that ends after the record.
    let stream = machine.green_stream(greens[0]);
    let late = launch(stream);
    ok(call!(machine, cuStreamDestroy(stream)));
    let last = launch(streams[1]);
    assert_eq!(before(&last), [true; 6]);
    assert!(!late.happens_before(&last));
    assert_eq!(before(&launch(streams[0])), [false; 6]);
}

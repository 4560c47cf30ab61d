//! Unordered accesses to memory, and the ways to order them.

use std::ptr::null_mut;

use green_ctx_sim::{Accessor, Race};
use green_ctx_sys::*;

use crate::machine::*;

const LEN: u64 = Bench::LEN;

/// A bench with kernels that write (`put`, and `comb` for every second piece of some bytes) and read
/// (`get`).
fn setup() -> Bench {
    let bench = Bench::new();
    let sim = &bench.machine.sim;
    sim.register_kernel("put", |kernel| {
        let (to, len) = (kernel.param_u64(0), kernel.param_u64(1));
        let _ = kernel.write(to.unwrap_or(0), &vec![1; len.unwrap_or(0) as usize]);
    });
    sim.register_kernel("get", |kernel| {
        let (from, len) = (kernel.param_u64(0), kernel.param_u64(1));
        let _ = kernel.read(from.unwrap_or(0), &mut vec![0; len.unwrap_or(0) as usize]);
    });
    sim.register_kernel("comb", |kernel| {
        let (to, step) = (kernel.param_u64(0).unwrap_or(0), kernel.param_u64(1).unwrap_or(1));
        for at in (0..LEN).step_by(2 * step as usize) {
            let _ = kernel.write(to + at, &vec![2; step as usize]);
        }
    });
    bench
}

impl Bench {
    fn run(&self, kernel: &str, stream: usize) {
        self.run_on(kernel, stream, 0, LEN);
    }

    fn run_on(&self, kernel: &str, stream: usize, at: u64, len: u64) {
        self.launch(kernel, stream, &[self.memory + at, len]);
    }

    fn races(&self) -> Vec<Race> {
        self.machine.sim.races()
    }
}

/// Returns the ids of a stream and its context.
fn ids(bench: &Bench, stream: usize) -> (u64, u64) {
    let machine = &bench.machine;
    let stream_id = get!(machine, 0, cuStreamGetId(bench.streams[stream];));
    let context = machine.context(bench.greens[stream.min(1)]);
    let context_id = get!(machine, 0, cuCtxGetId(context;));
    (stream_id, context_id)
}

#[test]
fn a_missing_wait_is_reported_with_both_operations() {
    let bench = setup();
    bench.run("put", 0);
    bench.run("get", 1);
    let races = bench.races();
    assert_eq!(races.len(), 1);
    let race = &races[0];
    let launches = bench.machine.sim.launches();
    for (access, launch, (stream, context), write) in [
        (&race.first, &launches[0], ids(&bench, 0), true),
        (&race.second, &launches[1], ids(&bench, 1), false),
    ] {
        let (name, sms) = (launch.kernel.clone(), launch.sms.clone());
        assert_eq!(access.what, Accessor::Kernel { name, sms });
        assert_eq!((access.stream, access.context), (Some(stream), context));
        assert_eq!((access.start_ns, access.end_ns), (launch.start_ns, launch.end_ns));
        assert_eq!(access.write, write);
    }
    assert_eq!((race.device, race.address, race.bytes), (0, bench.memory, LEN));
    let ((first, first_context), (second, second_context)) = (ids(&bench, 0), ids(&bench, 1));
    assert_eq!(
        race.to_string(),
        format!(
            "4096 bytes at {:#x} on device 0: kernel `put` on 8 SMs in stream {first} of context \
             {first_context} writes them, then kernel `get` on 8 SMs in stream {second} of context \
             {second_context} reads them; no stream order, event or wait of the host orders the two",
            bench.memory
        )
    );
    bench.machine.sim.clear_races();
    assert_eq!(bench.races(), []);
}

/// The order of two launches, in the trace and in the race check.
#[test]
fn streams_events_contexts_and_the_host_order_launches() {
    type Between = (&'static str, bool, fn(&Bench, CUevent));
    let betweens: [Between; 18] = [
        ("nothing", false, |_, _| {}),
        ("an event", true, |bench, _| bench.wait(0, 1)),
        ("an event that was never recorded", false, |bench, event| {
            must!(bench.machine, cuStreamWaitEvent(bench.streams[1], event, 0));
        }),
        ("an event of the wrong stream", false, |bench, _| bench.wait(2, 1)),
        ("an event that another stream waits for", false, |bench, _| bench.wait(0, 2)),
        ("a detour", true, |bench, _| {
            bench.wait(0, 2);
            bench.wait(2, 1);
        }),
        ("a context's event and a context's wait", true, |bench, event| {
            must!(bench.machine, cuGreenCtxRecordEvent(bench.greens[0], event));
            must!(bench.machine, cuGreenCtxWaitEvent(bench.greens[1], event));
        }),
        ("an event of the wrong context", false, |bench, event| {
            must!(bench.machine, cuGreenCtxRecordEvent(bench.greens[1], event));
            must!(bench.machine, cuGreenCtxWaitEvent(bench.greens[1], event));
        }),
        ("the primary context's event and wait", true, |bench, event| {
            must!(bench.machine, cuCtxRecordEvent(bench.machine.current(), event));
            must!(bench.machine, cuCtxWaitEvent(bench.machine.current(), event));
        }),
        ("the host's wait for the stream", true, |bench, _| {
            ok(bench.machine.sync(bench.streams[0]));
        }),
        ("the host's wait for the device", true, |bench, _| {
            must!(bench.machine, cuCtxSynchronize());
        }),
        ("the host's wait for the other stream", false, |bench, _| {
            ok(bench.machine.sync(bench.streams[1]));
        }),
        ("the host's wait for the other context", false, |bench, _| {
            ok(bench.machine.push(bench.machine.context(bench.greens[1])));
            must!(bench.machine, cuCtxSynchronize());
        }),
        ("the host's questions until an event is over", true, |bench, event| {
            must!(bench.machine, cuEventRecord(event, bench.streams[0]));
            while call!(bench.machine, cuEventQuery(event)) == NOT_READY {}
        }),
        ("time alone", false, |bench, _| {
            (0..1000).for_each(|_| must!(bench.machine, cuMemGetInfo(&mut 0, &mut 0)));
        }),
        ("the release of other memory", true, |bench, _| {
            must!(bench.machine, cuMemFree(bench.machine.alloc(64)));
        }),
        ("the destruction of the stream", false, |bench, _| {
            must!(bench.machine, cuStreamDestroy(bench.streams[0]));
        }),
        ("the destruction of the context, and the host's wait", true, |bench, _| {
            ok(bench.machine.destroy(bench.greens[0]));
            must!(bench.machine, cuCtxSynchronize());
        }),
    ];
    for (name, ordered, between) in betweens {
        let bench = setup();
        bench.run("put", 0);
        between(&bench, bench.machine.event());
        bench.run("get", 1);
        assert_eq!(bench.races().is_empty(), ordered, "{name}");
        let launches = bench.machine.sim.launches();
        let (first, second) = (&launches[0], &launches[1]);
        assert_eq!(first.happens_before(second), ordered, "{name}");
        assert!(!second.happens_before(first), "{name}");
        assert!(!ordered || first.end_ns <= second.start_ns, "{name}: order without time");
    }
    let bench = setup();
    let event = bench.machine.event();
    bench.run("put", 0);
    must!(bench.machine, cuEventRecord(event, bench.streams[0]));
    bench.run("put", 0);
    must!(bench.machine, cuEventSynchronize(event));
    bench.run("get", 1);
    assert_eq!(bench.races().len(), 1, "nothing waited for the work behind the event");
}

#[test]
fn it_takes_a_write_and_the_same_bytes() {
    let half = LEN / 2;
    type Step = (&'static str, usize, u64, u64);
    type Case = (&'static str, [Step; 2], Option<(u64, u64)>);
    let cases: [Case; 9] = [
        ("write, read", [("put", 0, 0, LEN), ("get", 1, 0, LEN)], Some((0, LEN))),
        ("read, write", [("get", 0, 0, LEN), ("put", 1, 0, LEN)], Some((0, LEN))),
        ("write, write", [("put", 0, 0, LEN), ("put", 1, 0, LEN)], Some((0, LEN))),
        ("read, read", [("get", 0, 0, LEN), ("get", 1, 0, LEN)], None),
        ("one stream", [("put", 0, 0, LEN), ("put", 0, 0, LEN)], None),
        ("halves", [("put", 0, 0, half), ("put", 1, half, half)], None),
        ("overlap", [("put", 0, 0, half + 1), ("put", 1, half, half)], Some((half, 1))),
        ("within", [("put", 0, 0, LEN), ("get", 1, 100, 8)], Some((100, 8))),
        ("no kernel", [("unregistered", 0, 0, LEN), ("get", 1, 0, LEN)], None),
    ];
    for (name, steps, expected) in cases {
        let bench = setup();
        steps.into_iter().for_each(|(kernel, stream, at, len)| {
            bench.run_on(kernel, stream, at, len);
        });
        let found: Vec<_> =
            bench.races().iter().map(|race| (race.address - bench.memory, race.bytes)).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_pair_is_reported_once() {
    let bench = setup();
    // Pieces of 16 bytes. Those of the second kernel lie between those of the first and cover some of them.
    bench.run_on("comb", 0, 0, 16);
    bench.run_on("comb", 1, 0, 64);
    bench.run_on("get", 1, 0, LEN);
    let races = bench.races();
    let pairs: Vec<_> = races.iter().map(|race| (race.address, race.bytes)).collect();
    // The last piece of the first kernel ends 16 bytes before the end. Bytes that the second kernel
    // overwrote are still unordered with the reader.
    let memory = bench.memory;
    assert_eq!(pairs, [(memory, LEN - 64 - 16), (memory, LEN - 16)]);
}

#[test]
fn writes_do_not_hide_what_came_before_them() {
    // The reader must wait only for the last writer, which waited for the one before.
    let bench = setup();
    bench.run("put", 0);
    bench.wait(0, 1);
    bench.run("put", 1);
    bench.wait(1, 2);
    bench.run("get", 2);
    assert_eq!(bench.races(), []);
    // A write must wait for every reader, if the readers do not wait for each other.
    bench.run("get", 1);
    bench.wait(1, 0);
    bench.run("put", 0);
    let races = bench.races();
    assert_eq!(races.len(), 1);
    assert_eq!(races[0].first.stream, Some(ids(&bench, 2).0));
    assert!(!races[0].first.write && races[0].second.write);
}

#[test]
fn default_streams_wait_for_blocking_ones_alone() {
    for (flags, clean) in [(0, true), (NON_BLOCKING, false)] {
        let bench = setup();
        let machine = &bench.machine;
        let stream = machine.stream(flags);
        let launch = |kernel, stream| {
            ok(machine.launch(machine.kernel(kernel), 1, stream, &[bench.memory, LEN]));
        };
        launch("put", stream);
        machine.read::<{ LEN as usize }>(bench.memory);
        assert_eq!(bench.races().is_empty(), clean, "read by the null stream");
        // The host waited for the copy.
        machine.sim.clear_races();
        ok(machine.sync(stream));
        launch("put", stream);
        assert_eq!(bench.races(), []);
        launch("put", null_mut());
        launch("get", stream);
        assert_eq!(bench.races().len(), if clean { 0 } else { 2 }, "both ways");
    }
}

#[test]
fn copies_and_fills_take_part() {
    let bench = setup();
    let machine = &bench.machine;
    let [a, b, _] = bench.streams;
    let (memory, mut host) = (bench.memory, [0_u8; 64]);
    bench.run("get", 0);
    must!(machine, cuMemcpyHtoDAsync(memory, host.as_ptr().cast(), 64, b));
    must!(machine, cuMemsetD32Async(memory + 32, 1, 4, a));
    must!(machine, cuMemcpyDtoHAsync(host.as_mut_ptr().cast(), memory + 60, 4, a));
    let found = bench.races().into_iter().map(|race| {
        let whats = [race.first.what, race.second.what].map(|what| what.to_string());
        (whats, race.address - memory, race.bytes)
    });
    let (kernel, copy, fill) = ("kernel `get` on 8 SMs", "a copy", "a memset");
    let expected = [([kernel, copy], 0, 64), ([copy, fill], 32, 16), ([copy, copy], 60, 4)];
    let expected = expected.map(|(whats, at, len)| (whats.map(str::to_owned), at, len));
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

/// A wait on one thread counts for all threads, because the driver does not see how threads synchronise.
#[test]
fn threads_are_ordered_by_their_waits() {
    let bench = setup();
    bench.run("put", 0);
    bench.run("put", 1);
    assert_eq!(bench.races().len(), 1);
    bench.machine.sim.clear_races();
    let (machine, streams) = (&bench.machine, [0, 1].map(|stream| bench.streams[stream].addr()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in streams {
                ok(machine.sync(std::ptr::without_provenance_mut(stream)));
            }
        });
    });
    bench.run("get", 2);
    assert_eq!(bench.races(), []);
}

/// Memory allocated in stream order may be used only by work that follows the allocation and precedes the
/// free.
#[test]
fn allocations_and_releases_have_their_place_in_streams() {
    type Step = fn(&Bench, u64);
    let put: Step = |bench, memory| bench.launch("put", 1, &[memory, 16]);
    let wait: Step = |bench, _| bench.wait(0, 1);
    let wait_back: Step = |bench, _| bench.wait(1, 0);
    let free: Step = |bench, memory| {
        must!(bench.machine, cuMemFreeAsync(memory, bench.streams[0]));
    };
    let free_at_once: Step = |bench, memory| must!(bench.machine, cuMemFree(memory));
    let host_waits: Step = |bench, _| must!(bench.machine, cuCtxSynchronize());
    let (made, freed) = (Accessor::Allocation, Accessor::Free);
    let cases: [(&str, &[Step], &[&Accessor]); 6] = [
        ("used elsewhere", &[put], &[&made]),
        ("used after a wait", &[wait, put], &[]),
        ("freed while it is used", &[wait, put, free], &[&freed]),
        ("freed after a wait", &[wait, put, wait_back, free], &[]),
        ("freed by the host while it is used", &[wait, put, free_at_once], &[&freed]),
        ("freed by the host after a wait", &[wait, put, host_waits, free_at_once], &[]),
    ];
    for (name, steps, expected) in cases {
        let bench = setup();
        let memory = get!(bench.machine, 0, cuMemAllocAsync(; 64, bench.streams[0]));
        steps.iter().for_each(|step| step(&bench, memory));
        let races = bench.races();
        let other = |race: &Race| match &race.first.what {
            Accessor::Kernel { .. } => race.second.what.clone(),
            what => what.clone(),
        };
        let found: Vec<Accessor> = races.iter().map(other).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{name}");
        races.iter().for_each(|race| assert_eq!(race.bytes, 16, "{name}"));
    }
}

#[test]
fn what_a_kernel_reads_twice_and_writes_itself_is_its_own() {
    let bench = setup();
    let memory = bench.memory;
    bench.machine.sim.register_kernel("get", |kernel| {
        let from = kernel.param_u64(0).unwrap_or(0);
        let mut bytes = [0; 8];
        for at in [0, 8, 4, 64, 0, 32] {
            let _ = kernel.read(from + at, &mut bytes);
            let _ = kernel.write(from + at, &bytes);
        }
    });
    bench.run("get", 0);
    assert_eq!(bench.races(), []);
    // Both launches read and wrote the memory. This is one race, over all the memory that both accessed.
    bench.run("get", 1);
    let races = bench.races();
    assert_eq!(races.len(), 1);
    assert!(races[0].first.write && races[0].second.write);
    assert_eq!((races[0].address, races[0].bytes), (memory, 72));
}

/// Work that a closure submits to the stream of its own launch comes after the launch, although it is
/// submitted before the closure returns.
#[test]
fn a_closure_s_own_submissions_come_after_it() {
    let bench = setup();
    let (slot, stream) = (bench.machine.sim.get_proc_address(), bench.streams[0].addr());
    bench.machine.sim.register_kernel("put", move |kernel| {
        let to = kernel.param_u64(0).unwrap_or(0);
        let stream = std::ptr::without_provenance_mut(stream);
        // SAFETY: the function belongs to the simulated driver, which lives while its kernels run.
        let api = unsafe { Api::from_get_proc_address(slot) }.expect("it was loaded before");
        let fill = api.cuMemsetD8Async().expect("it exists");
        // SAFETY: the address is that of an allocation of at least 8 bytes, and the handle is not
        // dereferenced.
        ok(unsafe { fill(to, 1, 8, stream) });
        let _ = kernel.write(to, &[2; 8]);
    });
    bench.run("put", 0);
    bench.run("get", 0);
    assert_eq!(bench.races(), []);
}

#[test]
fn accesses_of_destroyed_streams_still_race() {
    let bench = setup();
    let machine = &bench.machine;
    let run = |kernel| {
        let stream = machine.green_stream(bench.greens[0]);
        ok(machine.launch(machine.kernel(kernel), 1, stream, &[bench.memory, LEN]));
        must!(machine, cuStreamDestroy(stream));
    };
    run("put");
    run("get");
    assert_eq!(bench.races().len(), 1, "two streams of one context");
    machine.sim.clear_races();
    bench.run("put", 1);
    assert_eq!(bench.races().len(), 2, "a stream that waits for neither");
    machine.sim.clear_races();
    // The record of the context precedes a stream that is destroyed later.
    let event = machine.event();
    must!(machine, cuCtxRecordEvent(machine.context(bench.greens[0]), event));
    must!(machine, cuStreamWaitEvent(bench.streams[2], event, 0));
    bench.wait(1, 2);
    bench.run("put", 2);
    assert_eq!(bench.races(), []);
    run("get");
    assert_eq!(bench.races().len(), 1);
}

/// Kernels of a graph need an edge between them, as kernels in two streams need an event.
#[test]
fn nodes_without_an_edge_race() {
    for edge in [false, true] {
        let bench = setup();
        let exec = bench.capture(|| {
            bench.wait(0, 1);
            bench.run("put", 0);
            if edge {
                bench.wait(0, 1);
            }
            bench.run("put", 1);
            bench.wait(1, 0);
        });
        bench.run("put", 0);
        for _ in 0..2 {
            must!(bench.machine, cuGraphLaunch(exec, bench.streams[0]));
        }
        bench.run("put", 0);
        // Launches of one executable are ordered, so each launch has the race between its own nodes.
        assert_eq!(bench.races().len(), if edge { 0 } else { 2 });
        bench.machine.sim.clear_races();
        must!(bench.machine, cuGraphLaunch(exec, bench.streams[2]));
        assert!(!bench.races().is_empty(), "nothing waited for the last kernel");
    }
}

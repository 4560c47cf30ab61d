//! Accesses to memory that nothing puts in order, and what does.

use std::ptr::null_mut;

use green_ctx_sim::{Accessor, Race};
use green_ctx_sys::*;

use crate::machine::*;

const PTX: &str = "
    .version 7.0
    .target sm_52
    .visible .entry put(.param .u64 to, .param .u64 len) { ret; }
    .visible .entry get(.param .u64 from, .param .u64 len) { ret; }
    .visible .entry comb(.param .u64 to, .param .u64 step) { ret; }
    .visible .entry unknown(.param .u64 to, .param .u64 len) { ret; }
";
const LEN: u64 = 4096;

/// Two partitions with a stream each, a third stream in the second, and memory that kernels write
/// (`put`, and every other piece of some bytes with `comb`) and read (`get`).
struct Shared {
    machine: Machine,
    greens: [CUgreenCtx; 2],
    streams: [CUstream; 3],
    kernels: [CUkernel; 4],
    memory: u64,
}

const PUT: usize = 0;
const GET: usize = 1;
const COMB: usize = 2;
const UNKNOWN: usize = 3;

impl Shared {
    fn new() -> Shared {
        let (machine, _) = Machine::with_primary();
        machine.sim.register_kernel("put", |kernel| {
            let (to, len) = (kernel.param_u64(0), kernel.param_u64(1));
            let _ = kernel.write(to.unwrap_or(0), &vec![1; len.unwrap_or(0) as usize]);
        });
        machine.sim.register_kernel("get", |kernel| {
            let (from, len) = (kernel.param_u64(0), kernel.param_u64(1));
            let _ = kernel.read(from.unwrap_or(0), &mut vec![0; len.unwrap_or(0) as usize]);
        });
        machine.sim.register_kernel("comb", |kernel| {
            let (to, step) = (kernel.param_u64(0).unwrap_or(0), kernel.param_u64(1).unwrap_or(1));
            for at in (0..LEN).step_by(2 * step as usize) {
                let _ = kernel.write(to + at, &vec![2; step as usize]);
            }
        });
        let names = ["put", "get", "comb", "unknown"];
        let kernels = names.map(|name| machine.kernel_of(PTX, name).expect("PTX"));
        let units = machine.units();
        let greens = [0, 1].map(|unit| machine.green(&[units.groups[unit]]));
        let streams = [0, 1, 1].map(|green| machine.green_stream(greens[green]));
        let (status, memory) = ask!(machine, 0, cuMemAlloc(; LEN as usize));
        ok(status);
        Shared { machine, greens, streams, kernels, memory }
    }

    fn run(&self, kernel: usize, stream: usize) {
        self.run_on(kernel, stream, 0, LEN);
    }

    fn run_on(&self, kernel: usize, stream: usize, at: u64, len: u64) {
        let params = [self.memory + at, len];
        ok(self.machine.launch(self.kernels[kernel], 1, self.streams[stream], &params));
    }

    fn races(&self) -> Vec<Race> {
        self.machine.sim.races()
    }

    /// Makes a stream wait for what is in another.
    fn wait(&self, from: usize, to: usize) {
        let event = self.machine.event();
        ok(call!(self.machine, cuEventRecord(event, self.streams[from])));
        ok(call!(self.machine, cuStreamWaitEvent(self.streams[to], event, 0)));
        ok(call!(self.machine, cuEventDestroy(event)));
    }
}

/// The ids of a stream and its context.
fn ids(shared: &Shared, stream: usize) -> (u64, u64) {
    let machine = &shared.machine;
    let (status, stream_id) = ask!(machine, 0, cuStreamGetId(shared.streams[stream];));
    ok(status);
    let context = machine.context(shared.greens[stream.min(1)]);
    let (status, context_id) = ask!(machine, 0, cuCtxGetId(context;));
    ok(status);
    (stream_id, context_id)
}

#[test]
fn a_missing_wait_is_reported_with_both_operations() {
    let shared = Shared::new();
    shared.run(PUT, 0);
    shared.run(GET, 1);
    let races = shared.races();
    assert_eq!(races.len(), 1);
    let race = &races[0];
    let launches = shared.machine.sim.launches();
    for (access, launch, (stream, context), write) in [
        (&race.first, &launches[0], ids(&shared, 0), true),
        (&race.second, &launches[1], ids(&shared, 1), false),
    ] {
        let (name, sms) = (launch.kernel.clone(), launch.sms.clone());
        assert_eq!(access.what, Accessor::Kernel { name, sms });
        assert_eq!((access.stream, access.context), (Some(stream), context));
        assert_eq!((access.start_ns, access.end_ns), (launch.start_ns, launch.end_ns));
        assert_eq!(access.write, write);
    }
    assert_eq!((race.device, race.address, race.bytes), (0, shared.memory, LEN));
    let ((first, first_context), (second, second_context)) = (ids(&shared, 0), ids(&shared, 1));
    assert_eq!(
        race.to_string(),
        format!(
            "kernel `put` on 1 SMs in stream {first} of context {first_context} writes what kernel \
             `get` on 1 SMs in stream {second} of context {second_context} reads, 4096 bytes from \
             {:#x} on device 0, and no stream order, event or wait of the host leads from the first \
             to the second",
            shared.memory
        )
    );
    shared.machine.sim.clear_races();
    assert_eq!(shared.races(), []);
}

#[test]
fn whatever_orders_streams_makes_it_clean() {
    type Between = (&'static str, bool, fn(&Shared, CUevent));
    let record = |shared: &Shared, event| {
        ok(call!(shared.machine, cuEventRecord(event, shared.streams[0])));
    };
    let betweens: [Between; 12] = [
        ("an event", true, |shared, _| shared.wait(0, 1)),
        ("an event of the wrong stream", false, |shared, _| shared.wait(2, 1)),
        ("an event that another stream waits for", false, |shared, _| shared.wait(0, 2)),
        ("a detour", true, |shared, _| {
            shared.wait(0, 2);
            shared.wait(2, 1);
        }),
        ("a context's event and a context's wait", true, |shared, event| {
            ok(call!(shared.machine, cuGreenCtxRecordEvent(shared.greens[0], event)));
            ok(call!(shared.machine, cuGreenCtxWaitEvent(shared.greens[1], event)));
        }),
        ("an event of the wrong context", false, |shared, event| {
            ok(call!(shared.machine, cuGreenCtxRecordEvent(shared.greens[1], event)));
            ok(call!(shared.machine, cuGreenCtxWaitEvent(shared.greens[1], event)));
        }),
        ("the primary context's event", true, |shared, event| {
            let (_, primary) = ask!(shared.machine, null_mut(), cuCtxGetCurrent(;));
            ok(call!(shared.machine, cuCtxRecordEvent(primary, event)));
            ok(call!(shared.machine, cuStreamWaitEvent(shared.streams[1], event, 0)));
        }),
        ("the host's wait for the stream", true, |shared, _| {
            ok(shared.machine.sync(shared.streams[0]));
        }),
        ("the host's wait for the device", true, |shared, _| {
            ok(call!(shared.machine, cuCtxSynchronize()));
        }),
        ("the host's wait for another stream", false, |shared, _| {
            ok(shared.machine.sync(shared.streams[1]));
        }),
        ("time alone", false, |shared, _| {
            let limit = CUlimit::CU_LIMIT_STACK_SIZE;
            (0..1000).for_each(|_| ok(call!(shared.machine, cuCtxGetLimit(&mut 0, limit))));
        }),
        ("the destruction of the stream", false, |shared, _| {
            ok(call!(shared.machine, cuStreamDestroy(shared.streams[0])));
        }),
    ];
    for (name, clean, between) in betweens {
        let shared = Shared::new();
        shared.run(PUT, 0);
        between(&shared, shared.machine.event());
        shared.run(GET, 1);
        assert_eq!(shared.races().is_empty(), clean, "{name}");
    }
    let shared = Shared::new();
    let event = shared.machine.event();
    shared.run(PUT, 0);
    record(&shared, event);
    shared.run(PUT, 0);
    ok(call!(shared.machine, cuEventSynchronize(event)));
    shared.run(GET, 1);
    assert_eq!(shared.races().len(), 1, "what came after the event is not waited for");
    let shared = Shared::new();
    let event = shared.machine.event();
    shared.run(PUT, 0);
    record(&shared, event);
    while call!(shared.machine, cuEventQuery(event)) == CUresult::CUDA_ERROR_NOT_READY {}
    shared.run(GET, 1);
    assert_eq!(shared.races(), [], "asking until it is done");
}

#[test]
fn it_takes_a_write_and_the_same_bytes() {
    let half = LEN / 2;
    type Step = (usize, usize, u64, u64);
    type Case = (&'static str, [Step; 2], Option<(u64, u64)>);
    let cases: [Case; 9] = [
        ("write, read", [(PUT, 0, 0, LEN), (GET, 1, 0, LEN)], Some((0, LEN))),
        ("read, write", [(GET, 0, 0, LEN), (PUT, 1, 0, LEN)], Some((0, LEN))),
        ("write, write", [(PUT, 0, 0, LEN), (PUT, 1, 0, LEN)], Some((0, LEN))),
        ("read, read", [(GET, 0, 0, LEN), (GET, 1, 0, LEN)], None),
        ("one stream", [(PUT, 0, 0, LEN), (PUT, 0, 0, LEN)], None),
        ("halves", [(PUT, 0, 0, half), (PUT, 1, half, half)], None),
        ("overlap", [(PUT, 0, 0, half + 1), (PUT, 1, half, half)], Some((half, 1))),
        ("within", [(PUT, 0, 0, LEN), (GET, 1, 100, 8)], Some((100, 8))),
        ("no kernel", [(UNKNOWN, 0, 0, LEN), (GET, 1, 0, LEN)], None),
    ];
    for (name, steps, expected) in cases {
        let shared = Shared::new();
        steps.into_iter().for_each(|(kernel, stream, at, len)| {
            shared.run_on(kernel, stream, at, len);
        });
        let found: Vec<_> =
            shared.races().iter().map(|race| (race.address - shared.memory, race.bytes)).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_pair_is_reported_once() {
    let shared = Shared::new();
    // Pieces of 16 bytes, those of the second between those of the first and over some of them.
    shared.run_on(COMB, 0, 0, 16);
    shared.run_on(COMB, 1, 0, 64);
    shared.run_on(GET, 1, 0, LEN);
    let races = shared.races();
    let pairs: Vec<_> = races.iter().map(|race| (race.address, race.bytes)).collect();
    // The last piece of the first ends sixteen bytes before the end, and what the second wrote over
    // is no less unordered for the reader.
    let memory = shared.memory;
    assert_eq!(pairs, [(memory, LEN - 64 - 16), (memory, LEN - 16)]);
}

#[test]
fn writes_do_not_hide_what_came_before_them() {
    // A read by another stream than the last writer's still waits for the last writer only.
    let shared = Shared::new();
    shared.run(PUT, 0);
    shared.wait(0, 1);
    shared.run(PUT, 1);
    shared.wait(1, 2);
    shared.run(GET, 2);
    assert_eq!(shared.races(), []);
    // Readers that do not wait for each other are each waited for.
    shared.run(GET, 1);
    shared.wait(1, 0);
    shared.run(PUT, 0);
    let races = shared.races();
    assert_eq!(races.len(), 1);
    assert_eq!(races[0].first.stream, Some(ids(&shared, 2).0));
    assert!(!races[0].first.write && races[0].second.write);
}

#[test]
fn fork_and_join_over_three_streams() {
    for join in [true, false] {
        let shared = Shared::new();
        let third = LEN / 3;
        shared.run(PUT, 0);
        shared.wait(0, 1);
        shared.wait(0, 2);
        (0..3).for_each(|stream| shared.run_on(PUT, stream, third * stream as u64, third));
        shared.wait(1, 0);
        if join {
            shared.wait(2, 0);
        }
        shared.run(GET, 0);
        let found: Vec<_> = shared.races().iter().map(|race| race.first.stream).collect();
        let missing = Some(ids(&shared, 2).0);
        assert_eq!(found, if join { vec![] } else { vec![missing] });
    }
}

#[test]
fn default_streams_wait_for_blocking_ones_alone() {
    for (flags, clean) in [(0, true), (NON_BLOCKING, false)] {
        let shared = Shared::new();
        let machine = &shared.machine;
        let stream = machine.stream(flags);
        ok(machine.launch(shared.kernels[PUT], 1, stream, &[shared.memory, LEN]));
        let mut bytes = vec![0_u8; LEN as usize];
        ok(call!(machine, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), shared.memory, LEN as usize)));
        assert_eq!(shared.races().is_empty(), clean, "read by the null stream");
        // The copy was waited for.
        machine.sim.clear_races();
        ok(machine.sync(stream));
        ok(machine.launch(shared.kernels[PUT], 1, stream, &[shared.memory, LEN]));
        assert_eq!(shared.races(), []);
        ok(machine.launch(shared.kernels[PUT], 1, null_mut(), &[shared.memory, LEN]));
        ok(machine.launch(shared.kernels[GET], 1, stream, &[shared.memory, LEN]));
        assert_eq!(shared.races().len(), if clean { 0 } else { 2 }, "both ways");
    }
}

#[test]
fn copies_and_fills_take_part() {
    let shared = Shared::new();
    let machine = &shared.machine;
    let [a, b, _] = shared.streams;
    let (memory, mut host) = (shared.memory, [0_u8; 64]);
    shared.run(GET, 0);
    ok(call!(machine, cuMemcpyHtoDAsync(memory, host.as_ptr().cast(), 64, b)));
    ok(call!(machine, cuMemsetD32Async(memory + 32, 1, 4, a)));
    ok(call!(machine, cuMemcpyDtoHAsync(host.as_mut_ptr().cast(), memory + 60, 4, a)));
    let kinds: Vec<_> = shared
        .races()
        .iter()
        .map(|race| {
            let name = |what: &Accessor| what.to_string();
            (name(&race.first.what), name(&race.second.what), race.address - memory, race.bytes)
        })
        .collect();
    let (kernel, copy, fill) = ("kernel `get` on 1 SMs", "a copy", "a fill");
    let expected = [(kernel, copy, 0, 64), (copy, fill, 32, 16), (copy, copy, 60, 4)];
    assert_eq!(kinds, expected.map(|(a, b, at, len)| (a.to_owned(), b.to_owned(), at, len)));
}

/// What one thread has waited for counts for all, since nobody sees how threads synchronize.
#[test]
fn threads_are_ordered_by_their_waits() {
    let shared = Shared::new();
    let (machine, memory, kernels) = (&shared.machine, shared.memory, shared.kernels);
    let streams = shared.streams.map(|stream| stream.addr());
    let kernels = kernels.map(|kernel| kernel.addr());
    let launch = move |kernel: usize, stream: usize| {
        let [kernel, stream] = [kernels[kernel], streams[stream]];
        let kernel = std::ptr::without_provenance_mut(kernel);
        let stream = std::ptr::without_provenance_mut(stream);
        ok(machine.launch(kernel, 1, stream, &[memory, LEN]));
    };
    let on_thread = |work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
    };
    on_thread(&|| launch(PUT, 0));
    on_thread(&|| launch(PUT, 1));
    assert_eq!(shared.races().len(), 1);
    machine.sim.clear_races();
    on_thread(&|| {
        ok(machine.sync(std::ptr::without_provenance_mut(streams[0])));
        ok(machine.sync(std::ptr::without_provenance_mut(streams[1])));
    });
    on_thread(&|| launch(GET, 2));
    assert_eq!(shared.races(), []);
}

/// Memory that is made in stream order is there for who comes after, and gone for who comes later.
#[test]
fn allocations_and_releases_have_their_place_in_streams() {
    type Step = fn(&Shared, u64);
    let put: Step = |shared, memory| {
        let stream = shared.streams[1];
        ok(shared.machine.launch(shared.kernels[PUT], 1, stream, &[memory, 16]));
    };
    let wait: Step = |shared, _| shared.wait(0, 1);
    let wait_back: Step = |shared, _| shared.wait(1, 0);
    let free: Step = |shared, memory| {
        ok(call!(shared.machine, cuMemFreeAsync(memory, shared.streams[0])));
    };
    let free_at_once: Step = |shared, memory| ok(call!(shared.machine, cuMemFree(memory)));
    let host_waits: Step = |shared, _| ok(call!(shared.machine, cuCtxSynchronize()));
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
        let shared = Shared::new();
        let (status, memory) = ask!(shared.machine, 0, cuMemAllocAsync(; 64, shared.streams[0]));
        ok(status);
        steps.iter().for_each(|step| step(&shared, memory));
        let races = shared.races();
        let other = |race: &Race| match &race.first.what {
            Accessor::Kernel { .. } => race.second.what.clone(),
            what => what.clone(),
        };
        let found: Vec<Accessor> = races.iter().map(other).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{name}");
        races.iter().for_each(|race| assert_eq!(race.bytes, 16, "{name}"));
    }
    // Freeing other memory waits for the device.
    let shared = Shared::new();
    shared.run(PUT, 0);
    ok(call!(shared.machine, cuMemFree(shared.memory)));
    assert_eq!(shared.races(), []);
}

#[test]
fn what_a_kernel_reads_twice_and_writes_itself_is_its_own() {
    let shared = Shared::new();
    let memory = shared.memory;
    shared.machine.sim.register_kernel("get", |kernel| {
        let from = kernel.param_u64(0).unwrap_or(0);
        let mut bytes = [0; 8];
        for at in [0, 8, 4, 64, 0, 32] {
            let _ = kernel.read(from + at, &mut bytes);
            let _ = kernel.write(from + at, &bytes);
        }
    });
    shared.run(GET, 0);
    assert_eq!(shared.races(), []);
    // Both read and wrote it; that is one race, and its memory is what both touched.
    shared.run(GET, 1);
    let races = shared.races();
    assert_eq!(races.len(), 1);
    assert!(races[0].first.write && races[0].second.write);
    assert_eq!((races[0].address, races[0].bytes), (memory, 72));
}

/// What a closure submits to the stream of its own launch comes after the launch, although it is
/// there before the closure has returned.
#[test]
fn a_closure_s_own_submissions_come_after_it() {
    let shared = Shared::new();
    let (slot, stream) = (shared.machine.sim.get_proc_address(), shared.streams[0].addr());
    shared.machine.sim.register_kernel("put", move |kernel| {
        let to = kernel.param_u64(0).unwrap_or(0);
        let stream = std::ptr::without_provenance_mut(stream);
        // SAFETY: the pointer is the simulated driver's, which lives while its kernels run.
        let api = unsafe { Api::from_get_proc_address(slot) }.expect("it was loaded before");
        let fill = api.cuMemsetD8Async().expect("it exists");
        // SAFETY: the address is an allocation's, and the handle is never followed.
        ok(unsafe { fill(to, 1, 8, stream) });
        let _ = kernel.write(to, &[2; 8]);
    });
    shared.run(PUT, 0);
    shared.run(GET, 0);
    assert_eq!(shared.races(), []);
}

#[test]
fn accesses_of_destroyed_streams_still_race() {
    let shared = Shared::new();
    let machine = &shared.machine;
    let run = |kernel: usize| {
        let stream = machine.green_stream(shared.greens[0]);
        ok(machine.launch(shared.kernels[kernel], 1, stream, &[shared.memory, LEN]));
        ok(call!(machine, cuStreamDestroy(stream)));
    };
    run(PUT);
    run(GET);
    assert_eq!(shared.races().len(), 1, "two streams of one context");
    machine.sim.clear_races();
    shared.run(PUT, 1);
    assert_eq!(shared.races().len(), 2, "a stream that waits for neither");
    machine.sim.clear_races();
    // The context's record comes before one that is dropped later.
    let event = machine.event();
    ok(call!(machine, cuCtxRecordEvent(machine.context(shared.greens[0]), event)));
    ok(call!(machine, cuStreamWaitEvent(shared.streams[2], event, 0)));
    shared.wait(1, 2);
    shared.run(PUT, 2);
    assert_eq!(shared.races(), []);
    run(GET);
    assert_eq!(shared.races().len(), 1);
}

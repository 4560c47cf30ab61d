//! The order of launches in default streams, graphs and destroyed streams, and the size of the clocks.

use std::ptr::null_mut;

use green_ctx_sim::Launch;
use green_ctx_sys::*;

use crate::machine::*;

/// Block counts of the kernels before and after a graph. Kernels are identified by their block counts.
const BEFORE: u32 = 1;
const AFTER: u32 = 2;

impl Machine {
    /// Launches a kernel with this number of blocks.
    fn blocks(&self, blocks: u32, stream: CUstream) {
        ok(self.launch(self.kernel("nothing"), blocks, stream, &[]));
    }

    /// Returns the last launch with this number of blocks.
    fn last(&self, blocks: u32) -> Launch {
        let launches = self.sim.launches();
        let found = launches.iter().rev().find(|launch| launch.grid[0] == blocks);
        found.expect("it was launched").clone()
    }

    fn ordered(&self, first: u32, second: u32) -> bool {
        let (first, second) = (self.last(first), self.last(second));
        let ordered = first.happens_before(&second);
        assert!(!ordered || first.end_ns <= second.start_ns, "order without time");
        assert!(!second.happens_before(&first), "they are ordered the other way");
        ordered
    }
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let machine = Machine::with_primary();
    let [blocking, free, other] =
        [0, NON_BLOCKING, NON_BLOCKING].map(|flags| machine.stream(flags));
    machine.blocks(1, blocking);
    machine.blocks(2, free);
    machine.blocks(3, null_mut());
    machine.blocks(4, blocking);
    machine.blocks(5, free);
    assert!(machine.ordered(1, 3) && machine.ordered(3, 4));
    assert!(!machine.ordered(2, 3) && !machine.ordered(3, 5));
    // The legacy stream also waits for moments that a blocking stream waits for.
    machine.blocks(6, other);
    machine.wait(other, blocking);
    machine.blocks(7, null_mut());
    assert!(machine.ordered(6, 7));
}

#[test]
fn runs_are_the_same_every_time() {
    let run = || {
        let bench = Bench::new();
        bench.launch("nothing", 0, &[]);
        bench.launch("nothing", 1, &[]);
        bench.wait(1, 0);
        bench.launch("nothing", 0, &[]);
        let launches = bench.machine.sim.launches();
        launches.iter().map(|launch| (launch.start_ns, launch.end_ns)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn edges_order_and_nothing_else_does() {
    let bench = Bench::new();
    let (machine, [origin, side, apart]) = (&bench.machine, bench.streams);
    let exec = bench.capture(|| {
        machine.wait(origin, apart);
        machine.blocks(14, apart);
        machine.blocks(10, origin);
        machine.wait(origin, side);
        machine.blocks(11, side);
        machine.blocks(12, origin);
        machine.wait(side, origin);
        machine.blocks(13, origin);
        machine.wait(apart, origin);
    });
    let stream = machine.stream(NON_BLOCKING);
    machine.blocks(BEFORE, stream);
    machine.blocks(20, origin);
    must!(machine, cuGraphLaunch(exec, stream));
    machine.blocks(AFTER, stream);
    machine.blocks(21, origin);
    for node in 10..=14 {
        assert!(machine.ordered(BEFORE, node) && machine.ordered(node, AFTER));
        // The graph orders nothing in the streams that it was captured from.
        assert!(!machine.ordered(20, node) && !machine.ordered(node, 21));
    }
    assert!(machine.ordered(10, 11) && machine.ordered(10, 12));
    assert!(machine.ordered(11, 13) && machine.ordered(12, 13));
    assert!(!machine.ordered(11, 12) && machine.last(11).overlaps(&machine.last(12)));
    assert!((10..14).all(|node| !machine.ordered(14, node)));
    // Each node runs on the SMs of the stream that it was captured from.
    let sms = |node: u32| machine.last(node).sms;
    assert!(sms(10) == sms(12) && sms(12) == sms(13) && sms(11) == sms(14) && sms(10) != sms(11));
}

/// Launches of the same executable graph follow each other, even in different streams (cuda.h,
/// `cuGraphLaunch`). Launches of different executables do not.
#[test]
fn an_executable_runs_once_at_a_time() {
    let bench = Bench::new();
    let machine = &bench.machine;
    let [exec, another] = [(); 2].map(|()| bench.capture(|| machine.blocks(10, bench.streams[0])));
    must!(machine, cuGraphLaunch(exec, bench.streams[1]));
    must!(machine, cuGraphLaunch(exec, bench.streams[2]));
    must!(machine, cuGraphLaunch(another, bench.streams[1]));
    let launches = machine.sim.launches();
    assert!(launches[0].happens_before(&launches[1]));
    assert!(launches[0].end_ns <= launches[1].start_ns);
    assert!(!launches[1].happens_before(&launches[2]));
    let numbers: Vec<_> = launches.iter().map(|launch| launch.graph_launch).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
}

/// Returns the number of entries in the clock of the last launch.
fn entries(machine: &Machine) -> usize {
    let launches = machine.sim.launches();
    let text = format!("{:?}", launches.last().expect("a launch"));
    text.split("clock").nth(1).map_or(0, |clock| clock.matches(", ").count())
}

/// The clock of a launch does not grow with the number of graph launches.
#[test]
fn wide_graphs_can_be_launched_for_ever() {
    let machine = Machine::with_primary();
    let streams = [(); 8].map(|()| machine.stream(NON_BLOCKING));
    let exec = machine.capture(streams[0], || {
        streams[1..].iter().for_each(|stream| machine.wait(streams[0], *stream));
        (10..).zip(streams).for_each(|(blocks, stream)| machine.blocks(blocks, stream));
        streams[1..].iter().for_each(|stream| machine.wait(*stream, streams[0]));
    });
    for _ in 0..200 {
        must!(machine, cuGraphLaunch(exec, streams[0]));
        machine.blocks(AFTER, streams[0]);
    }
    assert!((10..18).all(|node| machine.ordered(node, AFTER)));
    assert!(!machine.ordered(10, 17));
    let launches = machine.sim.launches();
    assert!(launches[0].happens_before(&launches[launches.len() - 1]));
    assert!(entries(&machine) < 40, "{}", entries(&machine));
}

/// Clocks do not grow with the number of destroyed streams and contexts, whatever waited for them.
#[test]
fn what_is_gone_takes_no_room_in_clocks() {
    let Bench { machine, greens, streams, .. } = Bench::new();
    let unit = machine.units().groups[2];
    let kernel = machine.kernel("nothing");
    let event = machine.event();
    for round in 0..300 {
        let green = machine.green(&[unit]);
        for context in [greens[0], greens[1], green] {
            let stream = machine.green_stream(context);
            ok(machine.launch(kernel, 8, stream, &[]));
            match round % 5 {
                0 => {}
                1 => ok(machine.sync(stream)),
                2 => machine.wait(stream, streams[0]),
                3 => {
                    must!(machine, cuCtxRecordEvent(machine.context(context), event));
                    must!(machine, cuStreamWaitEvent(streams[1], event, 0));
                }
                _ => must!(machine, cuCtxSynchronize()),
            }
            must!(machine, cuStreamDestroy(stream));
        }
        ok(machine.destroy(green));
        for stream in [streams[0], streams[1]] {
            ok(machine.launch(kernel, 8, stream, &[]));
            assert!(entries(&machine) < 40, "round {round}: {}", entries(&machine));
        }
    }
}

/// The order of work in destroyed streams stays the same: only work that waits for it comes after it.
#[test]
fn work_of_destroyed_streams_is_ordered_as_before() {
    let Bench { machine, greens, streams, .. } = Bench::new();
    let event = machine.event();
    let launch = |stream| {
        machine.blocks(8, stream);
        machine.last(8)
    };
    let mut gone = Vec::new();
    for index in 0..6 {
        let stream = machine.green_stream(greens[0]);
        gone.push(launch(stream));
        if index % 2 == 0 {
            machine.wait(stream, streams[1]);
        }
        must!(machine, cuStreamDestroy(stream));
    }
    let before =
        |later: &Launch| gone.iter().map(|gone| gone.happens_before(later)).collect::<Vec<_>>();
    assert_eq!(before(&launch(streams[0])), [false; 6]);
    assert_eq!(before(&launch(streams[1])), [true, false, true, false, true, false]);
    for (index, one) in gone.iter().enumerate() {
        assert_eq!(before(one), [false; 6], "{index}");
    }
    must!(machine, cuCtxRecordEvent(machine.context(greens[0]), event));
    must!(machine, cuStreamWaitEvent(streams[1], event, 0));
    // This stream ends after the record.
    let stream = machine.green_stream(greens[0]);
    let late = launch(stream);
    must!(machine, cuStreamDestroy(stream));
    let last = launch(streams[1]);
    assert_eq!(before(&last), [true; 6]);
    assert!(!late.happens_before(&last));
    assert_eq!(before(&launch(streams[0])), [false; 6]);
}

//! Switches between two plans, by the number of streams that a partition has.

use std::sync::Arc;
use std::time::Duration;

use green_ctx::{Plan, PlanSet, Stream, StreamOptions, plan::SwitchOptions};

use super::Found;
use super::switch::SETTLE;
use crate::measure::Times;
use crate::plans::{self, Turns};
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Host time of a switch between two plans, one of 16 SMs and the rest, one \
    of 64 and the rest, by the number of streams in each partition: with fences, idle and with work in \
    flight on every stream of the plan that is left, and without fences. Times were taken call by call.";

/// The SMs of each plan's first partition: by day and by night.
const COUNTS: [u32; 2] = [16, 64];
/// Streams a partition, and the switches that are measured in a whole run and in a quick one.
const STREAMS: [(usize, usize, usize); 5] =
    [(1, 5000, 20), (2, 5000, 20), (8, 2000, 10), (32, 500, 4), (128, 200, 2)];
/// What submitting a launch takes at most: work on a stream lasts until all others have theirs.
const SUBMIT: Duration = Duration::from_micros(4);

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let mut found = Found::default();
    for (streams, whole, quick) in STREAMS {
        // A set of its own: streams that are gone leave nothing for the next count.
        let (set, plans) = plans::of_counts(&bench.device, &COUNTS)?;
        let all = streams_of(&plans, streams)?;
        let kinds = [(true, false, "fences, idle"), (true, true, "fences, in flight")];
        for (fence, busy, kind) in kinds.into_iter().chain([(false, false, "no fences")]) {
            let name = match streams {
                1 => format!("1 stream, {kind}"),
                _ => format!("{streams} streams, {kind}"),
            };
            bench.progress.step(&format!("  {name}"));
            // Much of the time goes into submitting the work.
            let switches = bench.count(if busy { whole / 2 } else { whole }, quick);
            let times = switch(bench, &set, &plans, &all, switches, (fence, busy))?;
            found.samples.push(times.sample(name));
        }
    }
    Ok(found)
}

/// The streams of each partition of each plan.
type Streams = Vec<Vec<Vec<Stream>>>;

fn streams_of(plans: &[Arc<Plan>], count: usize) -> Result<Streams> {
    plans
        .iter()
        .map(|plan| {
            plan.partitions()
                .iter()
                .map(|partition| {
                    let mut streams = vec![partition.stream().clone()];
                    while streams.len() < count {
                        streams.push(partition.create_stream(StreamOptions::default())?);
                    }
                    Ok(streams)
                })
                .collect()
        })
        .collect()
}

fn switch(
    bench: &Bench,
    set: &PlanSet,
    plans: &[Arc<Plan>],
    streams: &Streams,
    count: usize,
    (fence, busy): (bool, bool),
) -> Result<Times> {
    let a_partition = streams[0][0].len();
    let warm_up = count / 10 + 2;
    let settle = (SETTLE / a_partition).max(1);
    let rounds = bench.rounds(SUBMIT * (2 * a_partition as u32 + 4));
    let options = SwitchOptions::default().fence(fence);
    let mut turns = Turns::new(set, plans);
    let mut times = Times::with_capacity(count);
    for round in 0..warm_up + count {
        if busy {
            for stream in streams[turns.at()].iter().flatten() {
                bench.kernels.busy(stream, 1, 1, rounds)?;
            }
        }
        let plan = turns.next();
        let mut call = Times::with_capacity(1);
        call.take(|| set.switch(plan, options))?;
        if round >= warm_up {
            times.append(call);
        }
        if round % settle == settle - 1 {
            synchronize(streams)?;
        }
    }
    synchronize(streams)?;
    Ok(times)
}

/// Waits for the work of all streams, so that no queue is ever full.
fn synchronize(streams: &Streams) -> Result<()> {
    for stream in streams.iter().flatten().flatten() {
        stream.synchronize()?;
    }
    Ok(())
}

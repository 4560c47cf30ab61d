//! Switches between prepared plans.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use green_ctx::{Plan, PlanSet, plan::SwitchOptions};

use super::Found;
use crate::measure::Times;
use crate::plans::{self, Turns};
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Host time of a switch between plans of two partitions that have none in \
    common, with and without fences; idle, and with 20 µs of work in flight in each partition of the \
    plan that is left. Times were taken call by call; the active plan was read 1000 times at a time.";

/// How long the work in each partition takes.
pub(super) const WORK: Duration = Duration::from_micros(20);
/// Switches after which all work is waited for, so that no queue is ever full.
pub(super) const SETTLE: usize = 64;
const READS: u32 = 1000;

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let mut found = Found::default();
    for (count, name) in [(2, "two plans"), (8, "eight plans")] {
        let (set, plans) = plans::prepare(&bench.device, count)?;
        for (fence, fences) in [(true, "fences"), (false, "no fences")] {
            for (busy, state) in [(false, "idle"), (true, "in flight")] {
                let name = format!("{name}, {fences}, {state}");
                bench.progress.step(&format!("  {name}"));
                let times = switches(bench, &set, &plans, fence, busy)?;
                found.samples.push(times.sample(name));
            }
        }
        if count == 2 {
            found.samples.push(reads(bench, &set).sample("active plan read"));
            // As PyTorch and cuBLAS have them.
            for partition in plans.iter().flat_map(|plan| plan.partitions()) {
                black_box(partition.stream().as_raw());
            }
            for (busy, state) in [(false, "idle"), (true, "in flight")] {
                let name = format!("{name}, fences, handles given out, {state}");
                bench.progress.step(&format!("  {name}"));
                let times = switches(bench, &set, &plans, true, busy)?;
                found.samples.push(times.sample(name));
            }
        }
    }
    Ok(found)
}

fn switches(
    bench: &Bench,
    set: &PlanSet,
    plans: &[Arc<Plan>],
    fence: bool,
    busy: bool,
) -> Result<Times> {
    let (count, warm_up) = (bench.count(10_000, 100), bench.count(500, 20));
    let options = SwitchOptions::default().fence(fence);
    let rounds = bench.rounds(WORK);
    let mut turns = Turns::new(set, plans);
    let mut times = Times::with_capacity(count);
    for round in 0..warm_up + count {
        if busy {
            for partition in turns.plan().partitions() {
                bench.kernels.busy(partition.stream(), partition.sm_count(), 1, rounds)?;
            }
        }
        let plan = turns.next();
        let start = Instant::now();
        let switched = set.switch(plan, options);
        let time = start.elapsed();
        switched?;
        if round >= warm_up {
            times.push(time);
        }
        if round % SETTLE == SETTLE - 1 {
            plans::settle(plans)?;
        }
    }
    plans::settle(plans)?;
    Ok(times)
}

fn reads(bench: &Bench, set: &PlanSet) -> Times {
    let count = bench.count(2000, 20);
    let mut times = Times::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        for _ in 0..READS {
            black_box(&**black_box(set).active());
        }
        times.push_each(start.elapsed(), READS);
    }
    times
}

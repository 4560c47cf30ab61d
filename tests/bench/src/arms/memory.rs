//! Device memory after many switches under load, and where the kernels ran.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use green_ctx::{Plan, PlanSet, context::Context, plan::SwitchOptions, verify};

use super::Found;
use super::switch::{SETTLE, WORK};
use crate::kernels::Marks;
use crate::measure::{Times, figure};
use crate::plans::{self, Turns};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Switches with fences among eight plans. Before each switch, both \
    partitions of the active plan get 20 µs of work and then a kernel with one block per SM. \
    Each block writes the SM that it ran on to its own slot. The SMs of each partition were \
    found before, by verification. Free memory is read from the driver before and after. Warm-up \
    switches are not counted.";

const PLANS: u32 = 8;
const PARTITIONS: usize = 2;

/// The SMs of each plan's partitions.
type Homes = Vec<Vec<BTreeSet<u32>>>;

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let (switches, warm_up) = (bench.count(10_000, 200), bench.count(1000, 20));
    let device = &bench.device;
    let (set, plans) = plans::prepare(device, PLANS)?;
    bench.progress.step("  finding the SMs of each partition");
    let homes = homes(&plans)?;
    let sms = device.sm_count()?;
    let [trial, marks] =
        [warm_up, switches].map(|count| Marks::new(device, count * PARTITIONS, sms));
    let (trial, marks) = (trial?, marks?);

    switch(bench, &set, &plans, &trial, warm_up)?;
    bench.progress.step(&format!("  {switches} switches"));
    let (free, created) = (device.free_memory()?, device.context_counts().created);
    let (times, order) = switch(bench, &set, &plans, &marks, switches)?;
    let growth = free as f64 - device.free_memory()? as f64;
    let created = device.context_counts().created - created;

    let seen = marks.read(&bench.plain_stream()?)?;
    let [mut whole, mut missing, mut off] = [0u64; 3];
    for (place, blocks) in seen.iter().enumerate() {
        let home = &homes[order[place / PARTITIONS]][place % PARTITIONS];
        let ran: Vec<u32> = blocks.iter().take(home.len()).filter_map(|sm| *sm).collect();
        *(if ran.len() == home.len() { &mut whole } else { &mut missing }) += 1;
        off += u64::from(ran.iter().any(|sm| !home.contains(sm)));
    }
    let figures = [
        ("switches", Unit::Count, switches as f64),
        ("device memory grown", Unit::Bytes, growth),
        ("contexts made meanwhile", Unit::Count, created as f64),
        ("launches", Unit::Count, (switches * PARTITIONS) as f64),
        ("launches seen", Unit::Count, whole as f64),
        ("launches missing", Unit::Count, missing as f64),
        ("launches off their SMs", Unit::Count, off as f64),
    ];
    let figures = figures.map(|(name, unit, value)| figure(name, unit, value)).into();
    Ok(Found { samples: vec![times.sample("switch")], figures })
}

/// Finds the SMs of each partition. Fails if verification fails for a plan.
fn homes(plans: &[Arc<Plan>]) -> Result<Homes> {
    plans
        .iter()
        .map(|plan| {
            let contexts: Vec<Context> =
                plan.partitions().iter().map(|partition| partition.context().clone()).collect();
            let report = verify::contexts(&contexts, Duration::from_millis(1))?;
            if !report.ok() || contexts.len() != PARTITIONS {
                return Err(format!("verification of plan {} failed", plan.name()).into());
            }
            Ok(report.partitions.iter().map(|partition| partition.observed_sms()).collect())
        })
        .collect()
}

/// Switches `count` times. Returns the times, and which plan was active before each switch.
fn switch(
    bench: &Bench,
    set: &PlanSet,
    plans: &[Arc<Plan>],
    marks: &Marks,
    count: usize,
) -> Result<(Times, Vec<usize>)> {
    let rounds = bench.rounds(WORK);
    let mut turns = Turns::new(set, plans);
    let mut times = Times::with_capacity(count);
    let mut order = Vec::with_capacity(count);
    for round in 0..count {
        order.push(turns.at());
        for (index, partition) in turns.plan().partitions().iter().enumerate() {
            let (stream, sms) = (partition.stream(), partition.sm_count());
            bench.kernels.busy(stream, sms, 1, rounds)?;
            bench.kernels.mark(stream, marks, round * PARTITIONS + index, sms)?;
        }
        let plan = turns.next();
        times.take(|| set.switch(plan, SwitchOptions::default()))?;
        if round % SETTLE == SETTLE - 1 {
            plans::settle(plans)?;
            bench.progress.at(round, count);
        }
    }
    plans::settle(plans)?;
    Ok((times, order))
}

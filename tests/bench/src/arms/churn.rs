//! Streams that are created and dropped between switches, and what they leave behind.

use std::time::Instant;

use green_ctx::{StreamOptions, plan::SwitchOptions};

use super::Found;
use crate::measure::{Times, figure};
use crate::plans::{self, Turns};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Streams of a partition, created and dropped ten at a time while its plan \
    is active, and a switch with fences after every tenth of them. Device memory is what the driver \
    says is free, before all, before the last switch and after it.";

/// Rounds of streams, with a switch after each.
const ROUNDS: usize = 10;
/// Streams between two readings of the clock.
const BATCH: u32 = 10;

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let streams = bench.count(100_000, 2000);
    let (set, plans) = plans::prepare(&bench.device, 2)?;
    let mut turns = Turns::new(&set, &plans);
    let batches = streams / ROUNDS / BATCH as usize;
    let (mut created, mut switched) =
        (Times::with_capacity(streams / BATCH as usize), Times::with_capacity(ROUNDS));
    // One of each plan that does not count.
    for _ in 0..2 {
        set.switch(turns.next(), SwitchOptions::default())?;
    }
    let free = bench.device.free_memory()?;
    let lost = || Ok::<_, green_ctx::Error>(free as f64 - bench.device.free_memory()? as f64);
    let mut before_switch = 0.0;
    for round in 0..ROUNDS {
        for _ in 0..batches {
            let partition = &turns.plan().partitions()[0];
            let start = Instant::now();
            for _ in 0..BATCH {
                drop(partition.create_stream(StreamOptions::default())?);
            }
            created.push_each(start.elapsed(), BATCH);
        }
        before_switch = lost()?;
        let plan = turns.next();
        switched.take(|| set.switch(plan, SwitchOptions::default()))?;
        bench.progress.at(round + 1, ROUNDS);
    }
    plans::settle(&plans)?;
    let figures = [
        ("streams", Unit::Count, streams as f64),
        ("device memory grown before a switch", Unit::Bytes, before_switch),
        ("device memory grown", Unit::Bytes, lost()?),
    ];
    let figures = figures.map(|(name, unit, value)| figure(name, unit, value)).into();
    let samples =
        vec![created.sample("stream created and dropped"), switched.sample("switch after them")];
    Ok(Found { samples, figures })
}

#[cfg(test)]
mod tests {
    use green_ctx::Driver;
    use green_ctx::sim_0_1::Sim;

    use super::*;
    use crate::kernels;

    #[test]
    fn streams_that_are_gone_leave_no_events() -> Result<()> {
        let sim = Sim::builder("h200").trace(0).build()?;
        kernels::register(&sim);
        let device = Driver::simulated(&sim)?.device(0)?;
        let bench = Bench::new(device, true, true, (&[crate::load::Kind::Persistent], None))?;
        let before = sim.live();
        run(&bench)?;
        let after = sim.live();
        assert_eq!((after.events, after.streams), (before.events, before.streams));
        Ok(())
    }
}

//! Every arm of the grid, and each job alone.

use std::collections::BTreeMap;
use std::time::Duration;

use green_ctx::tune::{Arm, ArmKind, Block, Part, Pieces, Profile, Request, Sample, Scorer, Task};
use green_ctx::tune::{Goal, Value};

use super::Oracle;
use super::bed::Blocks;
use super::stats::{median, reachable};
use crate::progress::Progress;
use crate::setup::Result;

/// The percentile of all goals that have one.
pub(super) const PERCENTILE: f64 = 0.99;
/// Blocks in a row of an arm without partitions: each start settles on another order.
pub(super) const STARTS: u32 = 4;
/// Lets the clocks rise before anything counts.
pub(super) const WARM_UP: Duration = Duration::from_secs(1);
/// How often each job is measured alone.
pub(super) const ALONE: u32 = 4;

/// An arm with its blocks.
pub(super) struct Measured {
    pub(super) arm: Arm,
    pub(super) beside: Vec<Sample>,
    pub(super) rounds: Vec<Sample>,
    /// Why it could not run.
    pub(super) skipped: Option<String>,
}

impl Measured {
    /// What a goal makes of it.
    pub(super) fn value(&self, scorer: &Scorer) -> Option<Value> {
        scorer.value(if scorer.wants_rounds() { &self.rounds } else { &self.beside })
    }

    /// The percentile of a job's latency over all blocks.
    pub(super) fn percentile(&self, job: usize) -> Option<f64> {
        percentile(&self.beside, job)
    }

    /// The median of a job's rates.
    pub(super) fn rate(&self, job: usize) -> Option<f64> {
        let rates: Vec<f64> = self.beside.iter().map(|sample| sample.jobs[job].rate).collect();
        median(&rates)
    }
}

/// The percentile of a job's latency over blocks.
pub(super) fn percentile(blocks: &[Sample], job: usize) -> Option<f64> {
    let latencies = blocks.iter().flat_map(|sample| &sample.jobs[job].latencies_us);
    reachable(&latencies.copied().collect::<Vec<f64>>(), PERCENTILE)
}

/// The arms of a grid: those without partitions, and every partition. Those of two jobs that share SMs are
/// there with each job first too; where none is shared, no block of one job ever waits for one of the other.
pub(super) fn arms(options: &Oracle, profiles: &[Profile], pieces: &Pieces) -> Result<Vec<Arm>> {
    let request = Request::new(Goal::throughput()).step(options.step);
    let mut arms = Vec::new();
    for arm in request.every_arm(profiles, pieces)? {
        let shares = |part: &Part| part.ceiling > part.floor;
        let is_partition = arm.kind() == ArmKind::Partition;
        let has_order = is_partition && profiles.len() == 2 && arm.parts().iter().all(shares);
        arms.push(arm.clone());
        if has_order && !options.no_priorities {
            arms.extend([vec![-1, 0], vec![0, -1]].map(|order| arm.with_priorities(order)));
        }
    }
    Ok(arms)
}

/// Each job alone in a plain stream, after a warm-up: the blocks of each.
pub(super) fn alone(
    blocks: &mut dyn Blocks,
    jobs: usize,
    sms: u32,
    duration: Duration,
) -> Result<Vec<Vec<Sample>>> {
    let start = Duration::ZERO;
    let block = Block { duration, iterations: 2, rounds: false, first: 0, start };
    let streams = Arm::streams(jobs, sms);
    // It is not measured, and what cannot run is found below.
    let _ = blocks.block(&Task::Together(streams), &Block { duration: WARM_UP, ..block })?;
    let mut samples = vec![Vec::new(); jobs];
    for turn in 0..ALONE {
        for place in 0..jobs {
            let job = if turn % 2 == 0 { place } else { jobs - 1 - place };
            let sample = blocks.block(&Task::Alone { job, sms: None }, &block)?;
            samples[job].push(sample?);
        }
    }
    Ok(samples)
}

/// Measures every arm: forwards, then backwards, and so on.
pub(super) fn measure(
    blocks: &mut dyn Blocks,
    arms: Vec<Arm>,
    options: &Oracle,
    progress: &Progress,
) -> Result<Vec<Measured>> {
    let unknown = |arm| Measured { arm, beside: Vec::new(), rounds: Vec::new(), skipped: None };
    let mut grid: Vec<Measured> = arms.into_iter().map(unknown).collect();
    let all = grid.len() * options.passes as usize;
    let modes: &[bool] = if options.wants_rounds() { &[false, true] } else { &[false] };
    for pass in 0..options.passes {
        for place in 0..grid.len() {
            let done = pass as usize * grid.len() + place;
            progress.at(done, all);
            let arm = if pass % 2 == 0 { place } else { grid.len() - 1 - place };
            let measured = &mut grid[arm];
            if measured.skipped.is_none() {
                starts(blocks, measured, modes, pass, options.block())?;
            }
        }
    }
    Ok(grid)
}

/// The blocks of an arm in one pass.
fn starts(
    blocks: &mut dyn Blocks,
    measured: &mut Measured,
    modes: &[bool],
    pass: u32,
    duration: Duration,
) -> Result<()> {
    let partitioned = measured.arm.kind() == ArmKind::Partition;
    let jobs = measured.arm.parts().len();
    for start in 0..if partitioned { 1 } else { STARTS } {
        for rounds in modes {
            let first = (pass + start) as usize % jobs;
            let start = Duration::ZERO;
            let block = Block { duration, iterations: 2, rounds: *rounds, first, start };
            match blocks.block(&Task::Together(measured.arm.clone()), &block)? {
                Ok(sample) if *rounds => measured.rounds.push(sample),
                Ok(sample) => measured.beside.push(sample),
                Err(reason) => {
                    measured.skipped = Some(reason);
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The arms by a goal, the best first.
pub(super) fn ranked<'g>(grid: &'g [Measured], scorer: &Scorer) -> Vec<(&'g Measured, Value)> {
    let mut ranked: Vec<_> =
        grid.iter().filter_map(|arm| Some((arm, arm.value(scorer)?))).collect();
    ranked.sort_by(|(_, a), (_, b)| b.is_better_than(*a).cmp(&a.is_better_than(*b)));
    ranked
}

/// How many arms there are of each kind.
pub(super) fn kinds(arms: &[Arm]) -> BTreeMap<ArmKind, usize> {
    arms.iter().fold(BTreeMap::new(), |mut kinds, arm| {
        *kinds.entry(arm.kind()).or_default() += 1;
        kinds
    })
}

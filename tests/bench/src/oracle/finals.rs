//! The comparison at the end: the tuner's choice, the oracle's best and the best arm without
//! partitions, in blocks that alternate.

use green_ctx::tune::{Arm, ArmKind, Block, Goal, Sample, Scorer, Task, Value};

use super::Oracle;
use super::bed::Blocks;
use super::file::{ArmShape, BlockRecord, Finalist};
use super::grid::{Measured, ranked};
use super::judge::{WIDEST, judge};
use crate::setup::Result;

/// How many of the oracle's best are measured again.
pub(super) const BEST: usize = 3;

/// How many blocks of each are added where those so far say too little.
const FURTHER: usize = 10;

/// An arm that is measured again, and why.
pub(super) struct Candidate {
    arm: Arm,
    chosen: bool,
    rank: Option<usize>,
    unpartitioned: bool,
    grid: Option<Value>,
    samples: Vec<Sample>,
}

/// The tuner's choice, and the oracle's best three and best without partitions; an arm that is several of
/// these stands there once.
pub(super) fn candidates(chosen: &Arm, grid: &[Measured], scorer: &Scorer) -> Vec<Candidate> {
    let candidate = |arm: &Arm, grid| Candidate {
        arm: arm.clone(),
        chosen: false,
        rank: None,
        unpartitioned: false,
        grid,
        samples: Vec::new(),
    };
    let ranked = ranked(grid, scorer);
    let value = ranked.iter().find(|(measured, _)| measured.arm == *chosen);
    let mut found = vec![candidate(chosen, value.map(|(_, value)| *value))];
    found[0].chosen = true;
    let place = |found: &mut Vec<Candidate>, (measured, value): &(&Measured, Value)| {
        let known = found.iter().position(|candidate| candidate.arm == measured.arm);
        known.unwrap_or_else(|| {
            found.push(candidate(&measured.arm, Some(*value)));
            found.len() - 1
        })
    };
    for (rank, best) in ranked.iter().take(BEST).enumerate() {
        let place = place(&mut found, best);
        found[place].rank = Some(rank + 1);
    }
    let plain = ranked.iter().find(|(measured, _)| measured.arm.kind() != ArmKind::Partition);
    if let Some(plain) = plain {
        let place = place(&mut found, plain);
        found[place].unpartitioned = true;
    }
    found
}

/// Measures candidates until enough is known of the regret: in order and in reverse, with new streams in
/// each block.
pub(super) fn compare(
    blocks: &mut dyn Blocks,
    mut candidates: Vec<Candidate>,
    scorer: &Scorer,
    options: &Oracle,
) -> Result<Vec<Finalist>> {
    let mut more = options.blocks.max(2);
    loop {
        for _ in 0..more {
            sweep(blocks, &mut candidates, scorer.wants_rounds(), options)?;
        }
        more = FURTHER;
        let finalists: Vec<Finalist> =
            candidates.iter().filter_map(|candidate| finalist(candidate, scorer)).collect();
        let is_enough = judge(&finalists).is_none_or(|judged| judged.half_width() <= WIDEST);
        if is_enough || candidates[0].samples.len() >= options.most_blocks {
            return Ok(finalists);
        }
    }
}

/// One block of each candidate.
fn sweep(
    blocks: &mut dyn Blocks,
    candidates: &mut [Candidate],
    rounds: bool,
    options: &Oracle,
) -> Result<()> {
    let done = candidates[0].samples.len();
    // Each job is first in a sweep forwards and in one backwards.
    let block =
        Block { duration: options.final_block(), iterations: 2, rounds, first: done / 2 % 2 };
    let count = candidates.len();
    for place in 0..count {
        let place = if done.is_multiple_of(2) { place } else { count - 1 - place };
        let candidate = &mut candidates[place];
        candidate.samples.push(blocks.block(&Task::Together(candidate.arm.clone()), &block)??);
    }
    Ok(())
}

fn finalist(candidate: &Candidate, scorer: &Scorer) -> Option<Finalist> {
    let Candidate { arm, chosen, rank, unpartitioned, grid, samples } = candidate;
    let each = samples.iter().filter_map(|sample| scorer.value(std::slice::from_ref(sample)));
    Some(Finalist {
        arm: ArmShape::of(arm),
        chosen: *chosen,
        rank: *rank,
        unpartitioned: *unpartitioned,
        grid: grid.map(Into::into),
        value: scorer.value(samples)?.into(),
        worths: each.map(Into::into).collect(),
        blocks: samples.iter().map(BlockRecord::of).collect(),
    })
}

/// How many arms a comparison has at most.
pub(super) const MOST: usize = BEST + 2;

/// A scorer by the rates that were found at the beginning.
pub(super) fn scorer(goal: &Goal, jobs: &[super::goals::Alone]) -> Result<Scorer> {
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    Ok(Scorer::new(goal, &names, jobs.iter().map(|job| job.rate).collect())?)
}

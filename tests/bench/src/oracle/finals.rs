//! The comparison at the end: the tuner's choices, the oracle's best and the best arm without
//! partitions, in blocks that alternate.

use std::time::Duration;

use green_ctx::tune::{Arm, ArmKind, Block, Goal, Sample, Scorer, Task, Value};

use super::Oracle;
use super::bed::Blocks;
use super::file::{ArmShape, BlockRecord, Finalist, Worth};
use super::grid::{Measured, ranked};
use super::judge::{WIDEST, judge};
use crate::setup::Result;

/// How many of the oracle's best are measured again.
const BEST: usize = 3;

/// How many different choices of the tuner are compared, where it searches several times.
const CHOICES: usize = 8;

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

/// How many arms a comparison has at most, after so many searches of the tuner.
pub(super) fn most(searches: usize) -> usize {
    searches.clamp(1, CHOICES) + BEST + 1
}

/// The tuner's choices, of which the first one counts, and the oracle's best three, its best without partitions and,
/// so that it is known what partitions are worth at all, its best with them if no other candidate has some. An
/// arm that is several of these stands there once.
pub(super) fn candidates(choices: &[Arm], grid: &[Measured], scorer: &Scorer) -> Vec<Candidate> {
    let ranked = ranked(grid, scorer);
    let mut found = Vec::new();
    for (number, choice) in frequent(choices).into_iter().enumerate() {
        entry(&mut found, choice, &ranked).chosen = number == 0;
    }
    for (rank, (measured, _)) in ranked.iter().take(BEST).enumerate() {
        entry(&mut found, &measured.arm, &ranked).rank = Some(rank + 1);
    }
    let best = |partitioned: bool| {
        let mut arms = ranked.iter().map(|(measured, _)| &measured.arm);
        arms.find(|arm| (arm.kind() == ArmKind::Partition) == partitioned)
    };
    if let Some(plain) = best(false) {
        entry(&mut found, plain, &ranked).unpartitioned = true;
    }
    let has_partition = found.iter().any(|candidate| candidate.arm.kind() == ArmKind::Partition);
    if let Some(partition) = best(true).filter(|_| !has_partition) {
        entry(&mut found, partition, &ranked);
    }
    found
}

/// The candidate that an arm is, which is added if there is none.
fn entry<'c>(
    found: &'c mut Vec<Candidate>,
    arm: &Arm,
    ranked: &[(&Measured, Value)],
) -> &'c mut Candidate {
    let known = found.iter().position(|candidate| candidate.arm == *arm);
    let place = known.unwrap_or_else(|| {
        let value = ranked.iter().find(|(measured, _)| measured.arm == *arm);
        found.push(Candidate {
            arm: arm.clone(),
            chosen: false,
            rank: None,
            unpartitioned: false,
            grid: value.map(|(_, value)| *value),
            samples: Vec::new(),
        });
        found.len() - 1
    });
    &mut found[place]
}

/// The different ones of some choices: the first one, and then the most frequent.
fn frequent(choices: &[Arm]) -> Vec<&Arm> {
    let mut different: Vec<&Arm> = Vec::new();
    for choice in choices {
        if !different.contains(&choice) {
            different.push(choice);
        }
    }
    let count = |arm: &Arm| choices.iter().filter(|choice| *choice == arm).count();
    if let Some((_, others)) = different.split_first_mut() {
        others.sort_by_key(|arm| std::cmp::Reverse(count(arm)));
    }
    different.truncate(CHOICES);
    different
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
    let block = Block {
        duration: options.final_block(),
        iterations: 2,
        rounds,
        first: done / 2 % 2,
        start: Duration::ZERO,
    };
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
        worths: each.map(Worth::of_block).collect(),
        blocks: samples.iter().map(BlockRecord::of).collect(),
    })
}

/// A scorer by the rates that were found at the beginning.
pub(super) fn scorer(goal: &Goal, jobs: &[super::goals::Alone]) -> Result<Scorer> {
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    Ok(Scorer::new(goal, &names, jobs.iter().map(|job| job.rate).collect())?)
}

#[cfg(test)]
mod tests {
    use green_ctx::tune::JobSample;

    use super::*;

    /// An arm of the grid whose jobs have this rate.
    fn measured(arm: Arm, rate: f64) -> Measured {
        let job = JobSample { rate, ..JobSample::default() };
        let sample = Sample { jobs: vec![job; 2], rounds_us: Vec::new() };
        Measured { arm, beside: vec![sample], rounds: Vec::new(), skipped: None }
    }

    fn throughput() -> Scorer {
        Scorer::new(&Goal::throughput(), &["a", "b"], vec![1.0, 1.0]).expect("a goal")
    }

    #[test]
    fn candidates_are_there_once() {
        let arm = |own| Arm::ceilings([own, 132 - own], 132);
        let grid = [
            measured(Arm::streams(2, 132), 0.6),
            measured(arm(20), 0.9),
            measured(arm(36), 0.8),
            measured(arm(52), 0.7),
        ];
        let found = candidates(&[arm(36)], &grid, &throughput());
        let roles: Vec<_> =
            found.iter().map(|one| (one.chosen, one.rank, one.unpartitioned)).collect();
        let expected = [
            (true, Some(2), false),
            (false, Some(1), false),
            (false, Some(3), false),
            (false, None, true),
        ];
        assert_eq!(roles, expected);
        assert_eq!(found[0].grid.map(|value| value.score), Some(1.6));
        assert!(found.len() <= most(1));
    }

    #[test]
    fn a_partition_is_always_compared() {
        let plain =
            [Arm::streams(2, 132), Arm::sequential(2, 132), Arm::priority(vec![-1, 0], 132)];
        let mut grid: Vec<Measured> = plain.iter().cloned().map(|arm| measured(arm, 1.0)).collect();
        for own in [20, 36] {
            grid.push(measured(Arm::ceilings([own, 132 - own], 132), f64::from(own) / 100.0));
        }
        let found = candidates(&plain[..1], &grid, &throughput());
        assert_eq!(found.len(), 4);
        let last = &found[3];
        assert_eq!(last.arm, Arm::ceilings([36, 96], 132));
        assert!(!last.chosen && last.rank.is_none() && !last.unpartitioned);
    }

    #[test]
    fn the_first_choice_and_the_most_frequent_ones_are_compared() {
        let arm = |own| Arm::ceilings([own, 132], 132);
        let often = |own: u32, times| vec![arm(own); times];
        let mut choices: Vec<Arm> = (1..=9).flat_map(|own| often(8 * own, 1)).collect();
        choices.extend(often(72, 4));
        choices.extend(often(64, 2));
        let found: Vec<u32> = frequent(&choices).iter().map(|arm| arm.parts()[0].ceiling).collect();
        assert_eq!(found, [8, 72, 64, 16, 24, 32, 40, 48]);
        assert_eq!(candidates(&choices, &[], &throughput()).len(), CHOICES);
        assert_eq!([most(0), most(1), most(20)], [5, 5, 12]);
    }
}

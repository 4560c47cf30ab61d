//! How long a run takes, before it starts.

use std::fmt;

use green_ctx::tune::{ArmKind, Pieces, Profile};

use super::Oracle;
use super::finals;
use super::grid::{self, ALONE, STARTS, WARM_UP};
use super::mix::Mix;
use crate::setup::Result;

/// What a block takes besides its duration: new streams, a switch, and iterations that it waits for.
const BLOCK_S: f64 = 0.008;
/// What the first block of a partition takes besides: its contexts, and a copy of each graph.
const PARTITION_S: f64 = 0.02;
/// What building the jobs of a mix takes.
const BUILD_S: f64 = 3.0;

/// What starting another program takes, one that loads PyTorch.
const PROGRAM_S: f64 = 10.0;

/// A run, mix by mix.
pub(super) struct Estimate {
    mixes: Vec<Expected>,
    /// What comes before the first one.
    start: f64,
}

/// A mix, in seconds.
struct Expected {
    mix: String,
    arms: usize,
    grid: f64,
    combinations: usize,
    /// Of one combination: from the least blocks to the most.
    combination: [f64; 2],
}

impl Expected {
    /// All of it, from the least to the most.
    fn all(&self) -> [f64; 2] {
        self.combination
            .map(|combination| BUILD_S + self.grid + self.combinations as f64 * combination)
    }
}

/// Estimates a run on a device of these pieces. Jobs whose iterations take longer than half of a block
/// need more: a block has two of each job at least.
pub(super) fn estimate(options: &Oracle, pieces: &Pieces) -> Result<Estimate> {
    options.tuner_budget()?;
    let mixes = options.mixes.iter().map(|mix| expected(options, mix, pieces));
    let start = if options.program.is_some() { PROGRAM_S } else { 0.0 };
    Ok(Estimate { mixes: mixes.collect::<Result<_>>()?, start })
}

fn expected(options: &Oracle, mix: &Mix, pieces: &Pieces) -> Result<Expected> {
    let profiles: Vec<Profile> = mix.names().into_iter().map(Profile::new).collect();
    let kinds = grid::kinds(&grid::arms(options, &profiles, pieces)?);
    let arms: usize = kinds.values().sum();
    let partitions = kinds.get(&ArmKind::Partition).copied().unwrap_or(0);
    let blocks = (partitions + (arms - partitions) * STARTS as usize) as f64;
    let blocks = blocks * f64::from(options.passes);
    let modes = if options.wants_rounds() { 2.0 } else { 1.0 };
    let block = options.block().as_secs_f64() + BLOCK_S;
    let final_block = options.final_block().as_secs_f64() + BLOCK_S;
    let alone = WARM_UP.as_secs_f64() + f64::from(ALONE) * mix.len() as f64 * final_block;
    let grid = alone + modes * blocks * block + partitions as f64 * PARTITION_S;
    let most = options.most_blocks.max(options.blocks);
    let finalists = finals::most(options.repeat);
    let tuner = options.repeat.max(1) as f64 * options.budget;
    let combination = [options.blocks, most]
        .map(|blocks| tuner + (finalists * blocks) as f64 * final_block + PARTITION_S);
    let combinations = options.goals.iter().map(|goal| goal.count(mix.len())).sum();
    Ok(Expected { mix: mix.to_string(), arms, grid, combinations, combination })
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for expected in &self.mixes {
            let Expected { mix, arms, grid, combinations, combination: [least, most] } = expected;
            write!(f, "{mix}: {arms} arms in {grid:.0} s with each job alone, ")?;
            write!(f, "{combinations} goals in {least:.0} to {most:.0} s each: ")?;
            let [least, most] = expected.all();
            writeln!(f, "{least:.0} to {most:.0} s")?;
        }
        let all = |which: usize| self.mixes.iter().map(move |mix| mix.all()[which]);
        let sum = |which: usize| self.start + all(which).sum::<f64>();
        let combinations: usize = self.mixes.iter().map(|mix| mix.combinations).sum();
        let (least, most) = (sum(0), sum(1));
        writeln!(
            f,
            "{combinations} combinations: {least:.0} to {most:.0} s in all; more where iterations are long"
        )
    }
}

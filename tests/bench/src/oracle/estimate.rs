//! How long a run takes, before it starts.

use std::fmt;

use green_ctx::tune::{ArmKind, Pieces, Profile};

use super::finals::MOST;
use super::grid::{self, ALONE, STARTS, WARM_UP};
use super::{Oracle, Pair};
use crate::setup::Result;

/// What a block takes besides its duration: new streams, a switch, and iterations that it waits for.
const BLOCK_S: f64 = 0.008;
/// What the first block of a partition takes besides: its contexts, and a copy of each graph.
const PARTITION_S: f64 = 0.02;
/// What building a pair takes.
const BUILD_S: f64 = 3.0;

/// A run, in seconds.
pub(super) struct Estimate {
    pairs: Vec<String>,
    arms: usize,
    combinations: usize,
    grid: f64,
    /// Of one combination: from the least blocks to the most.
    combination: [f64; 2],
}

impl Estimate {
    /// One pair, from the least to the most.
    fn pair(&self) -> [f64; 2] {
        self.combination
            .map(|combination| BUILD_S + self.grid + self.combinations as f64 * combination)
    }
}

/// Estimates a run on a device of these pieces. Jobs whose iterations take longer than half of a block
/// need more: a block has two of each job at least.
pub(super) fn estimate(options: &Oracle, pieces: &Pieces) -> Result<Estimate> {
    options.tuner_budget()?;
    let profiles = ["a", "b"].map(Profile::new);
    let kinds = grid::kinds(&grid::arms(options, &profiles, pieces)?);
    let arms: usize = kinds.values().sum();
    let partitions = kinds.get(&ArmKind::Partition).copied().unwrap_or(0);
    let blocks = (partitions + (arms - partitions) * STARTS as usize) as f64;
    let blocks = blocks * f64::from(options.passes);
    let modes = if options.wants_rounds() { 2.0 } else { 1.0 };
    let block = options.block().as_secs_f64() + BLOCK_S;
    let final_block = options.final_block().as_secs_f64() + BLOCK_S;
    let alone = WARM_UP.as_secs_f64() + f64::from(2 * ALONE) * final_block;
    let grid = alone + modes * blocks * block + partitions as f64 * PARTITION_S;
    let most = options.most_blocks.max(options.blocks);
    let combination = [options.blocks, most]
        .map(|blocks| options.budget + (MOST * blocks) as f64 * final_block + PARTITION_S);
    Ok(Estimate {
        pairs: options.pairs.iter().map(Pair::to_string).collect(),
        arms,
        combinations: options.goals.iter().map(super::Template::count).sum(),
        grid,
        combination,
    })
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate { pairs, arms, combinations, grid, combination: [least, most] } = self;
        writeln!(f, "{arms} arms: {grid:.0} s a pair, with each job alone")?;
        writeln!(f, "{combinations} goals: {least:.0} to {most:.0} s each, with the tuner")?;
        let [least, most] = self.pair();
        for pair in pairs {
            writeln!(f, "{pair}: {least:.0} to {most:.0} s")?;
        }
        let [least, most] = self.pair().map(|seconds| seconds * pairs.len() as f64);
        let count = pairs.len() * combinations;
        writeln!(
            f,
            "{count} combinations: {least:.0} to {most:.0} s in all; more where iterations are long"
        )
    }
}

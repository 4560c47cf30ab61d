//! The arms: what is measured, each on its own.

mod churn;
mod contexts;
mod graphs;
mod latency;
mod launch;
mod memory;
mod moved;
mod shares;
mod streams;
mod switch;

use clap::ValueEnum;

use crate::machine::Machine;
use crate::measure::timer;
use crate::report::{ArmReport, FORMAT, Figure, Report, Sample};
use crate::setup::{Bench, Result, chain};

pub(crate) use latency::MODES;
pub(crate) use shares::MODES as SHARES_MODES;

/// One arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    /// Contexts that are made and destroyed, and used again
    Contexts,
    /// Switches between plans
    Switch,
    /// Switches between plans whose partitions have many streams
    Streams,
    /// Streams that are created and dropped between switches
    Churn,
    /// Memory, and where kernels run, after many switches
    Memory,
    /// Launches on streams of each kind
    Launch,
    /// Graphs that are moved to a partition
    Graphs,
    /// A captured graph's results and time, in the partition that it was moved to
    Moved,
    /// A small kernel beside a saturating load
    Latency,
    /// Jobs with floors and ceilings, behind walls, and on plain streams
    Shares,
}

/// What an arm found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) samples: Vec<Sample>,
    pub(crate) figures: Vec<Figure>,
}

impl Arm {
    /// All of them, in the order in which they run.
    pub(crate) fn all() -> Vec<Arm> {
        Arm::value_variants().to_vec()
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Arm::Contexts => "contexts",
            Arm::Switch => "switch",
            Arm::Streams => "streams",
            Arm::Churn => "churn",
            Arm::Memory => "memory",
            Arm::Launch => "launch",
            Arm::Graphs => "graphs",
            Arm::Moved => "moved",
            Arm::Latency => "latency",
            Arm::Shares => "shares",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Arm::Contexts => contexts::ABOUT,
            Arm::Switch => switch::ABOUT,
            Arm::Streams => streams::ABOUT,
            Arm::Churn => churn::ABOUT,
            Arm::Memory => memory::ABOUT,
            Arm::Launch => launch::ABOUT,
            Arm::Graphs => graphs::ABOUT,
            Arm::Moved => moved::ABOUT,
            Arm::Latency => latency::ABOUT,
            Arm::Shares => shares::ABOUT,
        }
    }

    fn run(self, bench: &Bench) -> Result<Found> {
        match self {
            Arm::Contexts => contexts::run(bench),
            Arm::Switch => switch::run(bench),
            Arm::Streams => streams::run(bench),
            Arm::Churn => churn::run(bench),
            Arm::Memory => memory::run(bench),
            Arm::Launch => launch::run(bench),
            Arm::Graphs => graphs::run(bench),
            Arm::Moved => moved::run(bench),
            Arm::Latency => latency::run(bench),
            Arm::Shares => shares::run(bench),
        }
    }
}

/// Runs arms, one after the other; one that breaks off says so and leaves the others alone.
pub(crate) fn run(bench: &Bench, arms: &[Arm], commit: &str) -> Result<Report> {
    let timer = timer();
    let arms = arms
        .iter()
        .map(|arm| {
            bench.progress.step(arm.name());
            let start = bench.progress.seconds();
            let (found, error) = match arm.run(bench) {
                Ok(found) => (found, None),
                Err(failure) => (Found::default(), Some(chain(&*failure))),
            };
            if let Some(error) = &error {
                bench.progress.step(&format!("{} broke off: {error}", arm.name()));
            }
            let Found { samples, figures } = found;
            let seconds = bench.progress.seconds() - start;
            let (name, about) = (arm.name().to_owned(), arm.about().to_owned());
            ArmReport { name, about, seconds, samples, figures, error }
        })
        .collect();
    Ok(Report {
        format: FORMAT,
        machine: Machine::of(&bench.device, bench.simulated, commit)?,
        quick: bench.quick,
        seconds: bench.progress.seconds(),
        timer,
        arms,
    })
}

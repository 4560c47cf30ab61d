//! The arms of the benchmark. Each measures one thing independently of the others.

mod contexts;
mod graphs;
mod latency;
mod launch;
mod memory;
mod moved;
mod shares;
mod switch;

use clap::ValueEnum;

use crate::machine::Machine;
use crate::measure::timer;
use crate::report::{ArmReport, FORMAT, Figure, Report, Sample};
use crate::setup::{Bench, Result};

pub(crate) use latency::MODES;
pub(crate) use shares::MODES as SHARES_MODES;

/// One arm of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    /// Contexts that the driver creates and destroys, and contexts that are reused
    Contexts,
    /// Switches between plans
    Switch,
    /// Device memory, and where kernels run, after many switches
    Memory,
    /// Launches on streams of each kind
    Launch,
    /// Graphs that are moved to a partition
    Graphs,
    /// A captured graph's results and time in the partition that it is moved to
    Moved,
    /// The latency of a small kernel while a load saturates the device
    Latency,
    /// Jobs with floors and ceilings, in fixed partitions, and on plain streams
    Shares,
}

/// The results of an arm.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) samples: Vec<Sample>,
    pub(crate) figures: Vec<Figure>,
}

/// The function that measures an arm.
type Run = fn(&Bench) -> Result<Found>;

impl Arm {
    /// Returns all arms, in the order in which they run.
    pub(crate) fn all() -> Vec<Arm> {
        Arm::value_variants().to_vec()
    }

    /// Returns the arm's name in a report.
    pub(crate) fn name(self) -> &'static str {
        self.parts().0
    }

    /// Returns the arm's name, its description, and the function that runs it.
    fn parts(self) -> (&'static str, &'static str, Run) {
        match self {
            Arm::Contexts => ("contexts", contexts::ABOUT, contexts::run),
            Arm::Switch => ("switch", switch::ABOUT, switch::run),
            Arm::Memory => ("memory", memory::ABOUT, memory::run),
            Arm::Launch => ("launch", launch::ABOUT, launch::run),
            Arm::Graphs => ("graphs", graphs::ABOUT, graphs::run),
            Arm::Moved => ("moved", moved::ABOUT, moved::run),
            Arm::Latency => ("latency", latency::ABOUT, latency::run),
            Arm::Shares => ("shares", shares::ABOUT, shares::run),
        }
    }
}

/// Runs arms, one after the other. A failed arm is reported and does not affect the others.
pub(crate) fn run(bench: &Bench, arms: &[Arm], commit: &str) -> Result<Report> {
    let timer = timer();
    let arms = arms
        .iter()
        .map(|arm| {
            let (name, about, run) = arm.parts();
            bench.progress.step(name);
            let start = bench.progress.seconds();
            let (found, error) = match run(bench) {
                Ok(found) => (found, None),
                Err(failure) => (Found::default(), Some(green_ctx::sys::with_sources(&*failure))),
            };
            if let Some(error) = &error {
                bench.progress.step(&format!("{name} failed: {error}"));
            }
            let Found { samples, figures } = found;
            let seconds = bench.progress.seconds() - start;
            let (name, about) = (name.to_owned(), about.to_owned());
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

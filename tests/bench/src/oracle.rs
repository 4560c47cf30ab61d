//! The tuner against an oracle that measures every arm.
//!
//! For each pair of jobs, in one run: each job alone, every arm of a grid, and then for each goal the tuner
//! and a fresh comparison of its choice with the oracle's best. A pair's file has all of it, and is written
//! anew whenever something is added, so that a run that is cut off loses one comparison at most.

mod bed;
mod estimate;
mod file;
mod finals;
mod goals;
mod grid;
mod judge;
mod limits;
mod pair;
/// The library's own medians, percentiles and bootstrap: what stands in a report is computed as the tuner
/// computes it.
#[path = "../../../green-ctx/src/tune/stats.rs"]
#[allow(dead_code, reason = "the library's own, of which this needs a part")]
mod stats;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use green_ctx::Device;
use green_ctx::tune::Pieces;
use green_ctx_cli::DriverChoice;
use green_ctx_cli::jobs::{Builder, Spec};

use self::bed::{Bed, Gpu, Modelled};
pub(crate) use self::file::{ArmRecord, Combination, PairFile};
use self::goals::Template;
pub(crate) use self::judge::judge;
use crate::progress::Progress;
use crate::setup::{Failure, Result, chain};
use crate::{FAILED, driver, plot, print, write};

#[derive(clap::Args)]
pub(crate) struct Oracle {
    /// The driver, as for `run`. On a simulated one the jobs run in the tuner's model
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    driver: DriverChoice,

    /// The device, as CUDA_VISIBLE_DEVICES numbers them
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// A pair of jobs, such as gemm:4096,copy:256; several times for several pairs
    #[arg(long = "pair", value_name = "JOB,JOB", required = true)]
    pairs: Vec<Pair>,

    /// The goals: throughput, makespan, keep:PERCENT and least:PERCENT. `keep:50` bounds the p99 of a job
    /// half of the way from its p99 alone to its best p99 without partitions; `least:80` has the other
    /// job keep 0.80 of its rate alone. Both are goals for each of the two jobs, and with `:1` or `:2`
    /// at the end for the first or the second one alone. A bound that no arm of the grid meets with 10 %
    /// to spare is moved to where the best arm does
    #[arg(
        long,
        value_name = "GOAL",
        value_delimiter = ',',
        default_value = "throughput,makespan,keep:50,least:80"
    )]
    goals: Vec<Template>,

    /// The step of the grid in SMs
    #[arg(long, value_name = "SMS", default_value_t = 16)]
    step: u32,

    /// Leave out partitions with one of the jobs first
    #[arg(long)]
    no_priorities: bool,

    /// How often the grid is measured, forwards and backwards in turn
    #[arg(long, value_name = "N", default_value_t = 2)]
    passes: u32,

    /// A block of the grid, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 40)]
    block_ms: u64,

    /// The tuner's budget in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, allow_negative_numbers = true)]
    budget: f64,

    /// The tuner's step in SMs; without it, every count that the device can give
    #[arg(long, value_name = "SMS", default_value_t = 1)]
    tuner_step: u32,

    /// Blocks of each arm in the comparison at the end, at least
    #[arg(long, value_name = "N", default_value_t = 20)]
    blocks: usize,

    /// Blocks of each arm at the most, where the interval of the regret is wider than ±2 %
    #[arg(long, value_name = "N", default_value_t = 60)]
    most_blocks: usize,

    /// A block of the comparison at the end, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200)]
    final_ms: u64,

    /// Print how long the run takes, and measure nothing
    #[arg(long)]
    dry_run: bool,

    /// The folder for the files, one a pair
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    out: Option<PathBuf>,

    /// The cuBLAS library, or the folder that it is in, for the matrix product
    #[arg(long, value_name = "PATH")]
    cublas: Option<PathBuf>,

    /// The commit that the binary was built from
    #[arg(long, value_name = "COMMIT", default_value = "unknown")]
    commit: String,
}

#[derive(clap::Args)]
pub(crate) struct OracleReport {
    /// What `oracle` wrote: files, or folders of them
    #[arg(required = true)]
    paths: Vec<PathBuf>,

    /// The combinations of a pair and a goal that there must be
    #[arg(long, value_name = "N", default_value_t = 30)]
    combinations: usize,

    /// Where to draw the throughput of every pair over the two ceilings
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Two jobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    specs: [Spec; 2],
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Pair, String> {
        let (a, b) = text
            .split_once(',')
            .ok_or_else(|| "a pair is two jobs, such as gemm:4096,copy:256".to_owned())?;
        let spec = |text: &str| text.parse::<Spec>().map_err(|error| error.to_string());
        Ok(Pair { specs: [spec(a)?, spec(b)?] })
    }
}

impl Pair {
    /// The jobs' names, which have no colon.
    fn names(&self) -> [String; 2] {
        let [a, b] = self.specs.map(|spec| spec.to_string().replace(':', ""));
        let b = if a == b { format!("{b}-2") } else { b };
        [a, b]
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.names();
        write!(f, "{a}-{b}")
    }
}

impl Oracle {
    fn block(&self) -> Duration {
        Duration::from_millis(self.block_ms)
    }

    fn final_block(&self) -> Duration {
        Duration::from_millis(self.final_ms)
    }

    fn tuner_budget(&self) -> Result<Duration> {
        let budget = Duration::try_from_secs_f64(self.budget);
        budget.map_err(|_| format!("a budget of {} s is no time", self.budget).into())
    }

    /// Whether blocks in rounds are needed.
    fn wants_rounds(&self) -> bool {
        self.goals.contains(&Template::Makespan)
    }
}

/// Measures the pairs, one after the other. One that fails leaves the others alone.
pub(crate) fn run(options: &Oracle) -> Result<u8> {
    let opened = driver::open(&options.driver)
        .and_then(|(driver, simulated)| Ok((driver.device(options.device)?, simulated)));
    let (device, simulated) = match opened {
        Ok(opened) => opened,
        Err(error) => return crate::no_driver(&error),
    };
    let counts = device.resources().sm()?.unit_counts(Default::default())?;
    let pieces = Pieces::of(&counts);
    let estimate = estimate::estimate(options, &pieces)?;
    if options.dry_run {
        print(&estimate.to_string())?;
        return Ok(0);
    }
    eprint!("{estimate}");
    let out = options.out.as_deref().ok_or("--out is missing")?;
    std::fs::create_dir_all(out)
        .map_err(|error| Failure::from(format!("{}: {error}", out.display())))?;
    let builder =
        if simulated { None } else { Some(Builder::new(&device, options.cublas.as_deref())?) };
    let progress = Progress::new();
    let mut status = 0;
    for pair in &options.pairs {
        progress.step(&pair.to_string());
        let measured = bed(builder.as_ref(), &device, pair, &pieces).and_then(|mut bed| {
            let file = PairFile::new(options, pair, &device, simulated, bed.pieces())?;
            pair::run(&mut *bed, file, options, out, &progress)
        });
        if let Err(failure) = measured {
            eprintln!("green-ctx-bench: {pair}: {}", chain(&*failure));
            status = FAILED;
        }
    }
    Ok(status)
}

/// Where a pair runs: on the device, or without a builder in the model.
fn bed(
    builder: Option<&Builder>,
    device: &Device,
    pair: &Pair,
    pieces: &Pieces,
) -> Result<Box<dyn Bed>> {
    Ok(match builder {
        Some(builder) => Box::new(Gpu::new(builder, device, pair)?),
        None => Box::new(Modelled::new(pair, pieces)),
    })
}

/// Prints the table and the limits, and draws the picture.
pub(crate) fn report(options: &OracleReport) -> Result<u8> {
    let files = file::read_all(&options.paths)?;
    let limits = limits::limits(&files, options.combinations);
    print(&limits::render(&files, &limits))?;
    if let Some(path) = &options.svg {
        write(path, &plot::landscape::render(&files))?;
    }
    Ok(if limits.iter().all(limits::Limit::holds) { 0 } else { FAILED })
}

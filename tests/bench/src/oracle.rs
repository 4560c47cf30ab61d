//! The tuner against an oracle that measures every arm.
//!
//! For each mix of jobs, in one run: each job alone, every arm of a grid, and then for each goal the tuner
//! and a fresh comparison of its choice with the oracle's best. A mix's file has all of it, and is written
//! anew whenever something is added, so that a run that is cut off loses one comparison at most.

mod bed;
mod estimate;
mod file;
mod finals;
mod goals;
mod grid;
mod judge;
mod limits;
mod measure;
mod mix;
mod page;
mod program;
#[cfg(test)]
mod replay;
/// The library's own medians, percentiles and bootstrap: what stands in a report is computed as the tuner
/// computes it.
#[path = "../../../green-ctx/src/tune/stats.rs"]
#[allow(dead_code, reason = "the library's own, of which this needs a part")]
mod stats;
mod steady;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use green_ctx::Device;
use green_ctx::tune::Pieces;
use green_ctx_cli::DriverChoice;
use green_ctx_cli::jobs::Builder;

use self::bed::{Bed, Gpu, Modelled};
pub(crate) use self::file::{ArmRecord, Combination, MixFile};
use self::goals::Template;
pub(crate) use self::judge::judge;
use self::mix::Mix;
use self::program::Program;
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

    /// Two or three jobs, such as gemm:4096,copy:256; several times for several mixes
    #[arg(long = "mix", visible_alias = "pair", value_name = "JOB,JOB[,JOB]", required = true)]
    mixes: Vec<Mix>,

    /// A program that runs the jobs, and knows their names: a command and its arguments, with spaces
    /// between them. Without it, the jobs are those of `green-ctx tune`
    #[arg(long, value_name = "COMMAND")]
    program: Option<String>,

    /// How long the program may take for an answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    program_timeout: u64,

    /// The goals: throughput, makespan, keep:PERCENT and least:PERCENT. `keep:50` bounds the p99 of a job
    /// half of the way from its p99 alone to its best p99 without partitions; `least:80` has the other
    /// job keep 0.80 of its rate alone. Both are goals for each of two jobs, and with `:1` or `:2`
    /// at the end for the first or the second one alone; three jobs are measured without them. A bound
    /// that no arm of the grid meets with 10 % to spare is moved to where the best arm does
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

    /// Leave out partitions with one of two jobs first. Of three jobs they are not measured
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

    /// How often the tuner searches for each goal. The first choice is the one that is compared with the
    /// oracle's; the others show how much it differs
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: usize,

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

    /// The folder for the files, one a mix
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

    /// The combinations of three jobs and a goal that there must be
    #[arg(long, value_name = "N", default_value_t = 1)]
    triples: usize,

    /// The mixes for which the tuner must have searched 20 times
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeated: usize,

    /// Where to draw the throughput of every pair over the two ceilings
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// A page in Markdown, whose sections of figures are replaced
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Replace nothing in the page, and fail where its figures are not those of the files
    #[arg(long, requires = "page")]
    check: bool,
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

/// What runs the jobs.
enum Runs {
    Device(Builder),
    Model,
    Program(Program),
}

impl Runs {
    fn new(options: &Oracle, device: &Device, simulated: bool) -> Result<Runs> {
        Ok(match &options.program {
            Some(command) => {
                let timeout = Duration::from_secs(options.program_timeout);
                Runs::Program(Program::new(command, timeout, device)?)
            }
            None if simulated => Runs::Model,
            None => Runs::Device(Builder::new(device, options.cublas.as_deref())?),
        })
    }

    /// A mix that is ready to run.
    fn bed(&mut self, device: &Device, mix: &Mix, pieces: &Pieces) -> Result<Box<dyn Bed + '_>> {
        Ok(match self {
            Runs::Device(builder) => Box::new(Gpu::new(builder, device, mix)?),
            Runs::Model => Box::new(Modelled::new(mix, pieces)?),
            Runs::Program(program) => Box::new(program.prepare(mix, pieces)?),
        })
    }
}

/// Measures the mixes, one after the other. One that fails leaves the others alone.
pub(crate) fn run(options: &Oracle) -> Result<u8> {
    if options.program.is_none() {
        options.mixes.iter().try_for_each(|mix| mix.specs().map(drop))?;
    }
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
    let mut runs = Runs::new(options, &device, simulated)?;
    let progress = Progress::new();
    let mut status = 0;
    for mix in &options.mixes {
        progress.step(&mix.to_string());
        let measured = runs.bed(&device, mix, &pieces).and_then(|mut bed| {
            let file = MixFile::new(options, mix, &device, simulated, &*bed)?;
            measure::run(&mut *bed, file, options, out, &progress)
        });
        let whole = measured.unwrap_or_else(|failure| {
            eprintln!("green-ctx-bench: {mix}: {}", chain(&*failure));
            false
        });
        if !whole {
            status = FAILED;
        }
    }
    Ok(status)
}

/// Prints the table and the limits, draws the picture and fills the page.
pub(crate) fn report(options: &OracleReport) -> Result<u8> {
    let files = file::read_all(&options.paths)?;
    let &OracleReport { combinations, triples, repeated, .. } = options;
    let wanted = limits::Wanted { combinations, triples, repeated };
    let limits = limits::limits(&files, &wanted);
    print(&tables::render(&files, &limits))?;
    if let Some(path) = &options.svg {
        write(path, &plot::landscape::render(&files))?;
    }
    let mut holds = limits.iter().all(limits::Limit::holds);
    if let Some(path) = &options.page {
        holds &= fill(path, &files, options.check)?;
    }
    Ok(if holds { 0 } else { FAILED })
}

/// Fills a page, or says whether it is filled with these figures.
fn fill(path: &Path, files: &[MixFile], check: bool) -> Result<bool> {
    let about = |error: &dyn fmt::Display| Failure::from(format!("{}: {error}", path.display()));
    let page = std::fs::read_to_string(path).map_err(|error| about(&error))?;
    let filled = page::fill(&page, files).map_err(|error| about(&error))?;
    if filled == page {
        return Ok(true);
    }
    if !check {
        write(path, &filled)?;
        return Ok(true);
    }
    eprintln!("green-ctx-bench: the figures of {} are not those of the files", path.display());
    Ok(false)
}

//! `green-ctx-bench`: measures what partitions cost and what they buy, in one run.

#![deny(unsafe_code)]

mod arms;
mod check;
mod compare;
mod driver;
mod kernels;
mod load;
mod machine;
mod measure;
mod plans;
mod plot;
mod progress;
mod report;
mod setup;
mod slices;
mod table;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use green_ctx_cli::DriverChoice;

use crate::arms::Arm;
use crate::compare::Compare;
use crate::report::Report;
use crate::setup::{Bench, Failure, Result};

/// An arm failed, or a goal is not met.
const FAILED: u8 = 1;
/// The command line is wrong, or a file cannot be used.
const USAGE: u8 = 2;
/// The driver cannot be loaded, or has no such device.
const NO_DRIVER: u8 = 3;

/// Measures what partitions cost and what they buy, and draws, checks and tabulates the figures.
///
/// Exit status: 0 if done, and for `check` if every goal holds; 1 if an arm failed or a goal does not hold; 2
/// for bad usage or an unusable file; 3 without a usable driver.
#[derive(Parser)]
#[command(name = "green-ctx-bench", version)]
enum Command {
    /// Run the arms, print a table, and write the figures.
    Run(Run),
    /// Draw the figures as SVG.
    Plot {
        /// A file that `run` wrote
        file: PathBuf,
        /// The file to write the picture to
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Print each goal with its figure and whether it holds.
    Check {
        /// A file that `run` wrote
        file: PathBuf,
    },
    /// Print the figures as Markdown.
    Table {
        /// A file that `run` wrote
        file: PathBuf,
    },
    /// Run two builds in alternating time slices, and print each figure of the new build relative to the old.
    Compare(Compare),
}

#[derive(clap::Args)]
struct Run {
    /// The driver: `auto` (the installed one, or a simulated H200 if none is installed), `cuda`, `cuda:PATH`,
    /// `sim` or `sim:PROFILE[@VERSION]`. On a simulated driver every run is quick
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    driver: DriverChoice,

    /// The device, numbered as in CUDA_VISIBLE_DEVICES
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// Take few samples, to check that every arm runs
    #[arg(long)]
    quick: bool,

    /// Run only these arms
    #[arg(long, value_name = "ARM", value_enum, value_delimiter = ',')]
    arms: Vec<Arm>,

    /// The saturating loads of the latency arm. By default the FMA loads, and the matrix product if cuBLAS is found
    #[arg(long, value_name = "LOAD", value_enum, value_delimiter = ',')]
    load: Vec<load::Kind>,

    /// The cuBLAS library for the matrix product, or the folder that contains it
    #[arg(long, value_name = "PATH")]
    cublas: Option<PathBuf>,

    /// The commit that the binary was built from
    #[arg(long, value_name = "COMMIT", default_value = "unknown")]
    commit: String,

    /// The file to write the figures to, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print the figures as JSON instead of as a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    // clap reports help and version as errors too, and exits with 0 for them.
    let result = match Command::parse() {
        Command::Run(options) => run(&options),
        Command::Plot { file, out } => read(&file).and_then(|report| {
            write(&out, &plot::render(&report))?;
            Ok(0)
        }),
        Command::Check { file } => read(&file).and_then(|report| check::run(&report)),
        Command::Table { file } => {
            read(&file).and_then(|report| print(&table::render(&report)).map(|()| 0))
        }
        Command::Compare(options) => compare::run(&options).map(|()| 0),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("green-ctx-bench: {}", green_ctx::sys::with_sources(&*failure));
            ExitCode::from(USAGE)
        }
    }
}

fn run(options: &Run) -> Result<u8> {
    let bench = match driver::open(&options.driver) {
        Ok((driver, simulated)) => {
            let quick = options.quick || simulated;
            let loads = (options.load.as_slice(), options.cublas.as_deref());
            match driver.device(options.device) {
                Ok(device) => Bench::new(device, simulated, quick, loads)?,
                Err(error) => return no_driver(&error),
            }
        }
        Err(error) => return no_driver(&error),
    };
    let arms = if options.arms.is_empty() { Arm::all() } else { options.arms.clone() };
    let report = arms::run(&bench, &arms, &options.commit)?;
    let json = format!("{}\n", serde_json::to_string_pretty(&report)?);
    if let Some(path) = &options.out {
        write(path, &json)?;
    }
    print(&if options.json { json } else { table::render(&report) })?;
    Ok(if report.arms.iter().any(|arm| arm.error.is_some()) { FAILED } else { 0 })
}

fn no_driver(error: &green_ctx::Error) -> Result<u8> {
    eprintln!("green-ctx-bench: {}", green_ctx::sys::with_sources(error));
    Ok(NO_DRIVER)
}

fn read(path: &Path) -> Result<Report> {
    let about =
        |error: &dyn std::fmt::Display| Failure::from(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| about(&error))?;
    if report.format != report::FORMAT {
        let found = report.format;
        return Err(about(&format!("format {found}; this program reads {}", report::FORMAT)));
    }
    Ok(report)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| Failure::from(format!("{}: {error}", path.display())))
}

fn print(text: &str) -> Result<()> {
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

//! `green-ctx-bench`: what partitions cost and what they buy, measured in one run.

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

/// Something was measured and does not hold, or an arm broke off.
const FAILED: u8 = 1;
/// The command line was wrong, or a file cannot be used.
const USAGE: u8 = 2;
/// There is no such driver, or it has no device.
const NO_DRIVER: u8 = 3;

/// Measures what partitions cost and what they buy, and draws, checks and tabulates the figures.
///
/// Exit status: 0 done, and for `check` every goal holds; 1 an arm broke off, or a goal does not
/// hold; 2 bad usage, or a file that cannot be used; 3 no usable driver.
#[derive(Parser)]
#[command(name = "green-ctx-bench", version)]
enum Command {
    /// Run the arms, print a table, and write the figures.
    Run(Run),
    /// Draw the figures as SVG.
    Plot {
        /// What `run` wrote
        file: PathBuf,
        /// Where to write the picture
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Print each goal with its figure and whether it holds.
    Check {
        /// What `run` wrote
        file: PathBuf,
    },
    /// Print the figures as Markdown.
    Table {
        /// What `run` wrote
        file: PathBuf,
    },
    /// Run two builds in turn, several times, and print each figure of the second to that of the
    /// first.
    Compare(Compare),
}

#[derive(clap::Args)]
struct Run {
    /// The driver: `auto` (the installed one, or a simulated H200 where there is none), `cuda`,
    /// `cuda:PATH`, `sim` or `sim:PROFILE[@VERSION]`. On a simulated one every run is a quick one
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    driver: DriverChoice,

    /// The device, as CUDA_VISIBLE_DEVICES numbers them
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,

    /// Take few samples, to see that everything runs
    #[arg(long)]
    quick: bool,

    /// Run only these arms
    #[arg(long, value_name = "ARM", value_enum, value_delimiter = ',')]
    arms: Vec<Arm>,

    /// The saturating loads of the latency arm; without this, those of FMA and, where cuBLAS is
    /// found, the matrix product
    #[arg(long, value_name = "LOAD", value_enum, value_delimiter = ',')]
    load: Vec<load::Kind>,

    /// The cuBLAS library, or the folder that it is in, for the matrix product
    #[arg(long, value_name = "PATH")]
    cublas: Option<PathBuf>,

    /// The commit that the binary was built from
    #[arg(long, value_name = "COMMIT", default_value = "unknown")]
    commit: String,

    /// Where to write the figures, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print the figures as JSON in place of the table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    // Help and the version are errors of clap's too, of those that it exits from with 0.
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
            eprintln!("green-ctx-bench: {}", setup::chain(&*failure));
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
    eprintln!("green-ctx-bench: {}", setup::chain(error));
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

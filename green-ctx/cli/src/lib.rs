//! The command `green-ctx`: what a GPU's SMs can be split into, and proof of where partitions run.
//!
//! ```text
//! cargo run -q -p green-ctx-cli -- verify --counts 16,24 --svg partitions.svg
//! cargo run -q -p green-ctx-cli -- verify --group decode=32.. --group prefill=..100
//! ```
//!
//! The library is for programs that offer the command as their own, as `python -m green_ctx_torch`
//! does: [`run`] is the whole of it, [`DriverChoice`] its option `--driver`, and the other functions
//! are what it prints and draws.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim_0_1::Sim};
//! use green_ctx::verify;
//!
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! let report = verify::split(&driver.device(0)?, [16, 24], verify::DEFAULT_STAY)?;
//! let picture = green_ctx_cli::svg(&report);
//! assert!(picture.starts_with("<svg "));
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod driver;
mod failure;
mod findings;
mod info;
pub mod jobs;
mod output;
mod picture;
mod request;
mod split;
mod svg;
mod tune;
mod verify;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use green_ctx::Driver;
use green_ctx::verify::Report;

pub use self::driver::DriverChoice;
use self::failure::Failure;
use self::output::Outcome;

/// Splits a GPU's SMs into partitions, and proves where each one runs.
#[derive(Parser)]
#[command(name = "green-ctx", version, after_help = EXIT_STATUS)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(clap::Args)]
struct Options {
    /// Which driver to use: auto, cuda, cuda:PATH, sim or sim:PROFILE[@VERSION].
    ///
    /// `auto` is the installed NVIDIA driver. On a machine without a driver library it is the simulated
    /// h200, and every output says so. An installed driver that does not work is an error. `cuda` is the
    /// installed driver and nothing else, `cuda:PATH` the driver library at that path. `sim:h200@12.4` is a simulated H200 with a driver for CUDA 12.4;
    /// of a wrong profile or version the error lists those that there are.
    #[arg(long, global = true, value_name = "DRIVER", default_value = "auto", display_order = 100)]
    driver: DriverChoice,
    /// The device, as CUDA_VISIBLE_DEVICES numbers them; 0 unless given, every device for info.
    #[arg(
        long,
        global = true,
        value_name = "N",
        value_parser = ordinal,
        allow_negative_numbers = true,
        display_order = 100
    )]
    device: Option<u32>,
    /// Prints one JSON object instead of text, errors included.
    #[arg(long, global = true, display_order = 100)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the driver, the devices, and what they can be split into.
    #[command(after_help = EXIT_STATUS)]
    Info,
    /// Computes a split of a device into groups of SMs, and shows what each would get. It creates nothing.
    #[command(after_help = with_shares())]
    Split(split::Arguments),
    /// Splits a device, runs a kernel in all partitions at once, and shows on which SMs it ran.
    ///
    /// The SMs that no group may use are a partition too, named remainder, unless a group has no
    /// ceiling or asks for the rest.
    #[command(after_help = with_shares())]
    Verify(verify::Arguments),
    /// Measures jobs beside each other, and says how to divide the device between them, or not to.
    ///
    /// It tries them one after the other, in plain streams, with priorities, and in partitions of every size
    /// that may be best, and compares the best partition with the best of the others at the end.
    #[command(after_help = with_jobs())]
    Tune(tune::Arguments),
}

const EXIT_STATUS: &str = "Exit status:
  0  done; for verify, the partitions are verified
  1  verification failed: a partition did not keep to its share, or did not have all of it; for tune, a
     bound cannot be met
  2  bad usage: a wrong argument, a split that does not fit, a file that cannot be written
  3  no usable driver, a driver too old for the request, or a driver that failed";

const JSON_ERRORS: &str = "Errors with --json:
  One object on standard output: {\"error\": {\"kind\", \"message\"}}. Where a request does not fit,
  \"shortage\" stands beside them: the shares requested, how many of them fit, the SMs that are free
  and shareable, and the nearest shares that would fit. Shares are text there: \"16\", \"32..\".";

/// What stands under the help of a command that takes shares.
fn with_shares() -> String {
    [request::SHARES, JSON_ERRORS, EXIT_STATUS].join("\n\n")
}

/// What stands under the help of tune.
fn with_jobs() -> String {
    [tune::HELP, EXIT_STATUS].join("\n\n")
}

/// Runs the command with its arguments, of which the first is the program's name, and returns the
/// exit status. It prints to the process's standard output and error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let json = output::json_is_wanted(&arguments);
    // Help and version go to standard output, everything else is bad usage.
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && json => {
            return output::fail(&Failure::Usage(error), true);
        }
        Err(error) if error.use_stderr() => {
            // Where standard error is closed, the exit status has to do.
            let _ = error.print();
            return failure::BAD_USAGE;
        }
        Err(help) => {
            return output::print_help(&help)
                .map_or_else(|failure| output::fail(&failure, json), |()| 0);
        }
    };
    let json = arguments.options.json;
    match answer(&arguments).and_then(|outcome| output::finish(&outcome)) {
        Ok(status) => status,
        Err(failure) => output::fail(&failure, json),
    }
}

/// What `green-ctx --json info` prints of a driver, for the device of this ordinal or for all.
///
/// # Errors
///
/// [`Error::NoSuchDevice`](green_ctx::Error::NoSuchDevice) and
/// [`Error::Driver`](green_ctx::Error::Driver).
pub fn info_json(driver: &Driver, device: Option<u32>) -> green_ctx::Result<String> {
    Ok(to_json(&info::Info::of(driver, device)?))
}

/// What `green-ctx --json verify` prints of a report.
#[must_use]
pub fn report_json(report: &Report) -> String {
    to_json(&verify::Answer::of(report))
}

/// A picture of a report, as `green-ctx verify --svg` draws it: the SM map, coloured by partition, over a
/// timeline of blocks.
///
/// The same report gives the same text, which refers to nothing outside of it.
#[must_use]
pub fn svg(report: &Report) -> String {
    svg::render(report)
}

/// What `green-ctx --json tune --show` prints of a file with this outcome: all that `green-ctx --json tune`
/// prints, without the device's ordinal.
#[must_use]
pub fn tuning_json(outcome: &green_ctx_tune::Outcome) -> String {
    to_json(&tune::Answer::of(tune::of_file(outcome), outcome))
}

/// How far a search is, in a line of at most 100 characters: the bar that `green-ctx tune` draws.
#[must_use]
pub fn tuning_line(progress: &green_ctx_tune::Progress<'_>) -> String {
    tune::line(progress)
}

/// A picture of a search: a point for each arm, which shows what it brings to one job and to the others.
///
/// The same outcome gives the same text, which refers to nothing outside of it. A browser shows an
/// arm's shares and figures where the pointer is on its mark.
///
/// # Example
///
/// ```
/// use green_ctx_tune::{self as tune, Goal, Model, ModelJob, Pieces, Profile, Request};
///
/// let pieces = Pieces { sms: 132, unit: 8, odd: 12 };
/// let mut model = Model::new(pieces.clone(), vec![ModelJob::default(); 2], 1);
/// let (jobs, request) = ([Profile::new("a"), Profile::new("b")], Request::new(Goal::throughput()));
/// let outcome = tune::with(&mut model, &jobs, &pieces, &request, &mut |_| true)?;
/// let picture = green_ctx_cli::tuning_svg(&outcome);
/// assert!(picture.starts_with("<svg "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn tuning_svg(outcome: &green_ctx_tune::Outcome) -> String {
    svg::render_tuning(outcome)
}

/// Numbers, text and lists of them: nothing that cannot be JSON.
fn to_json(object: &impl serde::Serialize) -> String {
    serde_json::to_string(object).unwrap_or_default()
}

fn ordinal(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a device is a number, 0 or greater".to_owned())
}

fn parse(arguments: Vec<OsString>) -> Result<Arguments, clap::Error> {
    let matches = Arguments::command().try_get_matches_from(&arguments);
    Arguments::from_arg_matches(&matches.map_err(|error| request::explained(error, &arguments))?)
}

fn answer(arguments: &Arguments) -> Result<Outcome, Failure> {
    let Arguments { options, command } = arguments;
    match command {
        Command::Info => info::run(options),
        Command::Split(arguments) => split::run(options, arguments),
        Command::Verify(arguments) => verify::run(options, arguments),
        Command::Tune(arguments) => tune::run(options, arguments),
    }
}

//! The command `green-ctx`: what a GPU's SMs can be split into, and proof of where partitions run.
//!
//! ```text
//! cargo run -q -p green-ctx-cli -- verify --counts 16,24 --svg partitions.svg
//! cargo run -q -p green-ctx-cli -- verify --group decode=32.. --group prefill=..100
//! ```
//!
//! The library is for programs that offer the command as their own, as `python -m green_ctx_torch`
//! does: [`run`] is the whole of it, and [`DriverChoice`] its option `--driver`. What it prints and draws is
//! green-ctx-report's.
//!
//! Without the feature `sim`, which is on by default, the command has no simulated driver.

#![deny(unsafe_code)]

mod driver;
mod failure;
mod info;
pub mod jobs;
mod output;
mod picture;
mod request;
mod split;
mod tune;
mod verify;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

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
    /// of a wrong profile or version the error lists those that there are. The command that pip installs
    /// has no simulated driver.
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
    /// Prints a script that completes the command's arguments in a shell.
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

const COMPLETIONS: &str = "Examples:
  source <(green-ctx completions bash)
  green-ctx completions fish > ~/.config/fish/completions/green-ctx.fish";

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
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "green-ctx", &mut script);
            Ok(Outcome { text: String::from_utf8_lossy(&script).into_owned(), status: 0 })
        }
    }
}

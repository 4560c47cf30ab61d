//! The command `green-ctx`, which shows how a GPU's SMs can be split, verifies where partitions run, recommends how to
//! divide the SMs between jobs, and runs other programs on some of the SMs.
//!
//! ```text
//! cargo run -q -p green-ctx-cli -- verify --counts 16,24 --svg partitions.svg
//! cargo run -q -p green-ctx-cli -- verify --group decode=32.. --group prefill=..100
//! ```
//!
//! The library is for programs that embed the command, such as `python -m green_ctx_torch`. [`run`] runs the command,
//! and [`DriverChoice`] represents the option `--driver`. The crate green-ctx-report formats the output.
//!
//! Without the feature `sim`, which is enabled by default, the command has no simulated driver.

#![deny(unsafe_code)]

mod curve;
mod driver;
mod failure;
mod fields;
mod hinted;
mod info;
pub mod jobs;
mod output;
mod picture;
mod request;
mod run;
mod split;
mod tune;
mod verify;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::driver::DriverChoice;
use self::failure::Failure;
use self::output::Outcome;

/// Splits a GPU's SMs into partitions, and verifies where each one runs.
#[derive(Parser)]
#[command(name = "green-ctx", version, after_help = EXIT_STATUS)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

/// The options that every command accepts.
#[derive(clap::Args)]
struct Options {
    #[arg(
        long,
        global = true,
        value_name = "DRIVER",
        env = "GREEN_CTX_DRIVER",
        hide_env_values = true,
        default_value = "auto",
        value_parser = hinted::Hinted::<DriverChoice>::new(driver::names()),
        hide_possible_values = true,
        display_order = 100,
        help = format!("The driver to use: {}", driver::CHOICES),
        long_help = format!("The driver to use: {}.\n\n{}", driver::CHOICES, driver::ABOUT)
    )]
    driver: DriverChoice,
    /// The number of the device among the devices that CUDA_VISIBLE_DEVICES makes visible, counted from 0. By default,
    /// info shows all devices, run limits all of them, and the other commands use device 0.
    #[arg(
        long,
        global = true,
        value_name = "N",
        value_parser = ordinal,
        allow_negative_numbers = true,
        display_order = 100
    )]
    device: Option<u32>,
    /// Prints results and errors as one JSON object instead of text.
    #[arg(long, global = true, display_order = 100)]
    json: bool,
    /// Prints the table as comma-separated values: the devices of info, the groups of split, the partitions of verify, the
    /// points of curve, and the arms of tune. The columns are the fields in the JSON. Notes and warnings, and a note if
    /// the driver is simulated, go to standard error.
    #[arg(long, global = true, display_order = 100, conflicts_with = "json")]
    csv: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the driver, the devices, and the units of SMs that each device can be split into.
    #[command(after_help = EXIT_STATUS, after_long_help = fields::with(&[fields::INFO, fields::GPUS].concat(), EXIT_STATUS))]
    Info(info::Arguments),
    /// Computes a split of a device into groups of SMs, and shows what each group would get. The command creates no
    /// partitions.
    #[command(after_help = with_shares(), after_long_help = fields::with(fields::SPLIT, &with_shares()))]
    Split(split::Arguments),
    /// Splits a device, runs a kernel in all partitions at the same time, and shows which SMs the kernel ran on.
    ///
    /// SMs that no group may use form an additional partition named remainder. There is no such partition if a group
    /// has no ceiling or requests the rest.
    #[command(after_help = with_shares(), after_long_help = fields::with(fields::VERIFY, &with_shares()))]
    Verify(verify::Arguments),
    /// Measures how a job scales with its SMs: the job runs alone in partitions of several sizes.
    ///
    /// The table shows the median time of an iteration on each number of SMs, the difference between the slowest and the
    /// fastest block, the speed compared with the whole device, and the speed compared with half of the SMs.
    #[command(after_help = with_curve(), after_long_help = fields::with(fields::CURVE, &with_curve()))]
    Curve(curve::Arguments),
    /// Measures how jobs run together, and recommends whether and how to divide the device between the jobs.
    ///
    /// The command runs the jobs in different ways: one after the other, in plain streams, in streams with priorities,
    /// and in partitions of many sizes. At the end, the command compares the best partitions with the best alternative
    /// without partitions.
    #[command(after_help = with_jobs(), after_long_help = fields::with(fields::TUNE, &with_jobs()))]
    Tune(tune::Arguments),
    /// Runs a program on a number of SMs. The program and its children see a device with this number of SMs, and all of
    /// their work runs there.
    ///
    /// The program replaces the command, so its exit status, signals and terminal are its own.
    #[command(after_help = run::HELP)]
    Run(run::Arguments),
    /// Prints a shell script that completes the arguments of green-ctx.
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

const COMPLETIONS: &str = "Examples:
  source <(green-ctx completions bash)
  mkdir -p ~/.config/fish/completions
  green-ctx completions fish > ~/.config/fish/completions/green-ctx.fish";

const EXIT_STATUS: &str = "Exit status:
  0  success; for verify, the partitions are verified
  1  verification failed: a partition violated its share, or did not get all of it; for tune,
     a bound cannot be met, there were too few iterations to know whether it is met, or a job
     cannot keep up with its arrivals even alone; for tune and curve, an interruption before
     there was a result
  2  bad usage: an invalid argument, a split that does not fit, a file that cannot be written
  3  no usable driver, a driver too old for the request, or a driver failure
  130  a second interruption of tune or curve, which ends it at once";

const JSON_ERRORS: &str = "Errors with --json:
  One object on standard output: {\"error\": {\"kind\", \"message\"}}. The kinds, by exit status:
  1 not_met; 2 usage, invalid_request, unavailable; 3 unsupported, no_driver, driver; and io,
  with 2, or with 126 or 127 for a program that does not start. If a request does not fit,
  \"error\" also has \"shortage\":
    within         the name of the group that was to be split; null for the device
    requested      the requested shares, as text, such as \"16\" or \"32..\"
    fit            how many of them fit, counted from the first
    free           the SMs that are free for floors
    shareable      the SMs that are in no floor
    total, unit    the SMs of the device, and of its smallest unit
    nearest        the nearest shares that would fit, as text
    holders        name and sm_count of the groups whose floors hold SMs
    sharers        name and sm_count of the groups that share SMs, which can be in no floor
    quarantined    the SMs that are held back, because work on them may still run
    local          whether a group was limited to a locality domain
    floors         the sum of the requested floors in SMs, with percentages rounded";

/// Returns the text at the end of the help of split and verify.
fn with_shares() -> String {
    [request::SHARES, JSON_ERRORS, EXIT_STATUS].join("\n\n")
}

/// Returns the text at the end of the help of curve.
fn with_curve() -> String {
    format!("{}\n\n{EXIT_STATUS}\n{}", curve::HELP, curve::STATUS)
}

/// Returns the text at the end of the help of tune.
fn with_jobs() -> String {
    [tune::HELP, EXIT_STATUS].join("\n\n")
}

/// Runs the command and returns the exit status. The first argument is the program's name. Output goes to the process's
/// standard output and standard error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let json = output::json_is_wanted(&arguments);
    // Help and version go to standard output. All other clap errors are bad usage.
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && json => {
            return output::fail(&Failure::Usage(error), true);
        }
        Err(error) if error.use_stderr() => {
            // If standard error is closed, only the exit status reports the error.
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
    text.parse().map_err(|_| "a device must be a number, 0 or greater".to_owned())
}

fn parse(arguments: Vec<OsString>) -> Result<Arguments, clap::Error> {
    let matches = Arguments::command().try_get_matches_from(&arguments);
    Arguments::from_arg_matches(&matches.map_err(|error| request::explained(error, &arguments))?)
}

fn answer(arguments: &Arguments) -> Result<Outcome, Failure> {
    let Arguments { options, command } = arguments;
    let refused = |words: &str| Err(Failure::Request(words.to_owned()));
    // These print nothing that the options could change.
    match command {
        Command::Run(_) if options.csv => return refused("--csv does not apply to run"),
        Command::Completions { .. } if options.csv || options.json => {
            return refused("--json and --csv do not apply to completions");
        }
        _ => {}
    }
    match command {
        Command::Info(arguments) => info::run(options, arguments),
        Command::Split(arguments) => split::run(options, arguments),
        Command::Verify(arguments) => verify::run(options, arguments),
        Command::Curve(arguments) => curve::run(options, arguments),
        Command::Tune(arguments) => tune::run(options, arguments),
        Command::Run(arguments) => run::run(options, arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "green-ctx", &mut script);
            // clap_complete 4.6.11 takes the hyphen of the name for a subcommand in some labels of bash's script
            // (https://github.com/clap-rs/clap/issues/6421).
            let script =
                String::from_utf8_lossy(&script).replace("green__subcmd__ctx", "green__ctx");
            Ok(Outcome { text: script, status: 0 })
        }
    }
}

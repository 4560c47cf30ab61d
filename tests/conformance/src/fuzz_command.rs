//! `conformance fuzz`, `fuzz-compare` and `fuzz-shrink`.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use green_ctx_conformance::fuzz::{self, Answers, Program};
use green_ctx_conformance::{ChildError, Choice, Options, RunError};

use crate::{INCOMPLETE, NO_DRIVER, RAN, USAGE, report};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Put random programs to a driver and print its answers, one JSON line a call
    ///
    /// Exit status: 0 every program was answered to its end, 1 a process ended in one, 2 bad usage,
    /// 3 no driver.
    Fuzz(Fuzz),
    /// Compare two drivers' answers to the same programs
    ///
    /// Exit status: 0 fewer than one call in 10,000 was answered differently, and of no function more
    /// than one in 1,000; 1 otherwise; 2 bad usage.
    FuzzCompare(Compare),
    /// Print a shorter program that two drivers still answer differently, or candidates for one
    FuzzShrink(Shrink),
}

#[derive(Args)]
pub(crate) struct Fuzz {
    /// The driver, as without a subcommand
    #[arg(long, value_name = "DRIVER", default_value = "cuda")]
    driver: Choice,

    /// The seeds, from the first up to but without the last
    #[arg(long, value_name = "A..B", default_value = "0..220", value_parser = seeds)]
    seeds: Range<u64>,

    /// How many calls a program makes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    calls: usize,

    /// Run these programs instead, one JSON line each, or those of a file of answers
    #[arg(long, value_name = "FILE")]
    programs: Option<PathBuf>,

    /// How many processes run at a time; the number of processors without it
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,

    /// How long a program may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = fuzz::LIMIT.as_secs())]
    limit: u64,

    /// Write the answers to a file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print the programs and run nothing
    #[arg(long)]
    list: bool,

    /// Let the first call of this function fail in each program, on a simulated driver
    #[arg(long, value_name = "FUNCTION", hide = true)]
    fault: Option<String>,

    /// Be the process that runs a program: it is read from stdin, the answers go to stdout
    #[arg(long, hide = true)]
    child: bool,
}

#[derive(Args)]
pub(crate) struct Compare {
    /// The answers that are right, such as a GPU's
    first: PathBuf,

    /// The answers that are held against them
    second: PathBuf,

    /// How many differences to print
    #[arg(long, value_name = "N", default_value_t = 50)]
    show: usize,

    /// Name the functions that were called less often than this, or hardly with success
    #[arg(long, value_name = "N", default_value_t = 0)]
    rare: u64,

    /// Print counts and differences as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Shrink {
    /// The seed of the program
    #[arg(long, value_name = "N")]
    seed: u64,

    /// The step that is answered differently
    #[arg(long, value_name = "N")]
    step: u32,

    /// How many calls the program makes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    calls: usize,

    /// Both drivers; with one alone, candidates are printed that its answer stays the same for, to be
    /// run on the other with `fuzz --programs`
    #[arg(long, value_name = "DRIVER", required = true, num_args = 1..=2)]
    driver: Vec<Choice>,

    /// How many candidates to print
    #[arg(long, value_name = "N", default_value_t = 64)]
    candidates: usize,

    /// Let the first call of this function fail with the last driver
    #[arg(long, value_name = "FUNCTION", hide = true)]
    fault: Option<String>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (first, last) = text.split_once("..").ok_or("expected A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    Ok(number(first)?..number(last)?)
}

/// Runs a command and returns the exit status.
pub(crate) fn run(command: &Command) -> u8 {
    let result = match command {
        Command::Fuzz(arguments) if arguments.child => {
            return match fuzz::child(&arguments.driver, arguments.fault.as_deref()) {
                Ok(()) => RAN,
                Err(error) => {
                    report(&error);
                    if matches!(error, ChildError::Open(_)) { NO_DRIVER } else { INCOMPLETE }
                }
            };
        }
        Command::Fuzz(arguments) => fuzz(arguments),
        Command::FuzzCompare(arguments) => compare(arguments),
        Command::FuzzShrink(arguments) => shrink(arguments),
    };
    result.unwrap_or_else(|error| {
        report(&*error);
        match error.downcast_ref() {
            Some(RunError::Open(_)) => NO_DRIVER,
            Some(_) => INCOMPLETE,
            None => USAGE,
        }
    })
}

fn fuzz(arguments: &Fuzz) -> Result<u8, Box<dyn Error>> {
    let programs: Vec<Program> = match &arguments.programs {
        Some(path) => {
            let text = read(path)?;
            match Answers::parse(&text) {
                Ok(answers) => answers.asked(),
                Err(_) => text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?,
            }
        }
        None => arguments.seeds.clone().map(|seed| fuzz::program(seed, arguments.calls)).collect(),
    };
    let mut out: Box<dyn Write> = match &arguments.out {
        Some(path) => Box::new(BufWriter::new(File::create(path)?)),
        None => Box::new(std::io::stdout().lock()),
    };
    if arguments.list {
        print(&programs, &mut out)?;
        return Ok(RAN);
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let options = options(&arguments.driver, arguments.fault.as_ref())?;
    let limit = Duration::from_secs(arguments.limit);
    let summary = fuzz::run(&options, &programs, arguments.jobs.unwrap_or(jobs), limit, &mut out)?;
    eprintln!("{} calls answered, {} programs ended early", summary.answered, summary.failed);
    Ok(if summary.failed == 0 { RAN } else { INCOMPLETE })
}

fn compare(arguments: &Compare) -> Result<u8, Box<dyn Error>> {
    let first = Answers::parse(&read(&arguments.first)?)?;
    let second = Answers::parse(&read(&arguments.second)?)?;
    let comparison = fuzz::compare(&first, &second)?;
    let rare = comparison.rare(arguments.rare);
    if arguments.json {
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        let (calls, successes, differences) = ("calls", "successes", "differences");
        println!("{:<56} {calls:>8} {successes:>10} {differences:>12} {:>10}", "", "dependent");
        print!("{comparison}");
        for difference in comparison.shortest().into_iter().take(arguments.show) {
            println!("{difference}");
        }
        if arguments.rare > 0 && !rare.is_empty() {
            println!(
                "called less than {} times, or hardly with success: {}",
                arguments.rare,
                rare.join(" ")
            );
        }
    }
    let frequent = arguments.rare == 0 || rare.is_empty();
    Ok(if comparison.holds() && frequent { RAN } else { INCOMPLETE })
}

fn shrink(arguments: &Shrink) -> Result<u8, Box<dyn Error>> {
    let program = fuzz::program(arguments.seed, arguments.calls);
    let mut out = std::io::stdout().lock();
    let first = options(&arguments.driver[0], None)?;
    match arguments.driver.get(1) {
        Some(second) => {
            let second = options(second, arguments.fault.as_ref())?;
            match fuzz::shrink_on(&first, &second, &program, arguments.step)? {
                Some(shorter) => print(&[shorter], &mut out)?,
                None => return Err("both drivers give the same answer".into()),
            }
        }
        None => {
            let most = arguments.candidates;
            print(&fuzz::candidates_on(&first, &program, arguments.step, most)?, &mut out)?;
        }
    }
    Ok(RAN)
}

fn options(driver: &Choice, fault: Option<&String>) -> std::io::Result<Options> {
    let program = std::env::current_exe()?;
    Ok(Options { driver: driver.clone(), program, fault: fault.cloned() })
}

fn print(programs: &[Program], out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    for program in programs {
        writeln!(out, "{}", serde_json::to_string(program)?)?;
    }
    out.flush()?;
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

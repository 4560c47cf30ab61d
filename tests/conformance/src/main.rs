//! `conformance`: runs the cases on a driver and prints the record.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use green_ctx_conformance::{Case, ChildError, Choice, Options, RunError, all, child, run};

/// Every case was answered.
const RAN: u8 = 0;
/// A case could not be run, or the run failed.
const INCOMPLETE: u8 = 1;
/// The command line is wrong.
const USAGE: u8 = 2;
/// The driver cannot be loaded, or has no device.
const NO_DRIVER: u8 = 3;

/// Records how a CUDA driver answers about green contexts, case by case. Prints a line about the driver, then
/// one JSON line per case.
///
/// Exit status: 0 if every case was answered, 1 if a case could not be run, 2 for bad usage, 3 without a driver.
#[derive(Parser)]
#[command(name = "conformance", version)]
struct Arguments {
    /// The driver: `cuda` (the installed one), `cuda:PATH` (a library), or a simulated one such as `sim:h200`
    /// or `sim:h200@13.0`
    #[arg(long, value_name = "DRIVER", default_value = "cuda")]
    driver: Choice,

    /// Print the names of the cases and run none
    #[arg(long)]
    list: bool,

    /// Run only this case or, if the name ends with a slash, every case whose name begins with it; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Write the record to a file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Run as the process that calls the driver: names on stdin, answers on stdout
    #[arg(long, hide = true)]
    child: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap reports help and version as errors too, but prints those to stdout.
            let code = if error.use_stderr() { USAGE } else { RAN };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::from(INCOMPLETE),
            };
        }
    };
    ExitCode::from(if arguments.child { ask(&arguments.driver) } else { record(&arguments) })
}

/// Runs as a child process.
fn ask(driver: &Choice) -> u8 {
    match child(driver) {
        Ok(()) => RAN,
        Err(error) => {
            report(&error);
            if matches!(error, ChildError::Open(_)) { NO_DRIVER } else { INCOMPLETE }
        }
    }
}

/// Runs as the parent process.
fn record(arguments: &Arguments) -> u8 {
    let cases = all();
    let chosen = match choose(&cases, &arguments.case) {
        Ok(chosen) => chosen,
        Err(name) => {
            eprintln!("conformance: there is no case {name}; --list prints the names");
            return USAGE;
        }
    };
    let result = match &arguments.out {
        _ if arguments.list => list(&chosen, &mut io::stdout().lock()).map_err(RunError::Write),
        None => put(arguments, &chosen, &mut io::stdout().lock()),
        Some(path) => File::create(path)
            .map_err(RunError::Write)
            .and_then(|mut file| put(arguments, &chosen, &mut file)),
    };
    match result {
        Ok(0) => RAN,
        Ok(_) => INCOMPLETE,
        Err(error) => {
            report(&error);
            if matches!(error, RunError::Open(_)) { NO_DRIVER } else { INCOMPLETE }
        }
    }
}

/// Runs the cases and returns the number that could not be run.
fn put(arguments: &Arguments, cases: &[&Case], out: &mut dyn Write) -> Result<usize, RunError> {
    let program = std::env::current_exe().map_err(RunError::Child)?;
    let options = Options { driver: arguments.driver.clone(), program };
    let summary = run(&options, cases, out)?;
    eprintln!("{} cases answered, {} could not be run", summary.answered, summary.failed);
    Ok(summary.failed)
}

/// Prints the names of the cases; returns 0.
fn list(cases: &[&Case], out: &mut dyn Write) -> io::Result<usize> {
    for case in cases {
        writeln!(out, "{}", case.name())?;
    }
    Ok(0)
}

/// Returns the cases with these names, or all cases if no name is given. Returns a name that matches no case as
/// an error.
fn choose<'a>(cases: &'a [Case], names: &[String]) -> Result<Vec<&'a Case>, String> {
    let fits = |case: &Case, name: &String| {
        case.name() == name || (name.ends_with('/') && case.name().starts_with(name))
    };
    match names.iter().find(|name| !cases.iter().any(|case| fits(case, name))) {
        Some(name) => Err(name.clone()),
        None => Ok(cases
            .iter()
            .filter(|case| names.is_empty() || names.iter().any(|name| fits(case, name)))
            .collect()),
    }
}

/// Prints an error and its sources in one line.
fn report(error: &dyn Error) {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    eprintln!("conformance: {text}");
}

//! `conformance`: asks a driver every case and prints the record.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use green_ctx_conformance::{Case, ChildError, Choice, Options, RunError, all, child, run};

/// Every case was answered.
const RAN: u8 = 0;
/// A case could not be put to the driver, or the run broke off.
const INCOMPLETE: u8 = 1;
/// The command line was wrong.
const USAGE: u8 = 2;
/// There is no such driver, or it has no device.
const NO_DRIVER: u8 = 3;

/// Asks a CUDA driver how it answers about green contexts, case by case, and prints one JSON line a
/// case, after a line that says which driver it was.
///
/// Exit status: 0 every case was answered, 1 a case could not be put to the driver, 2 bad usage,
/// 3 no driver.
#[derive(Parser)]
#[command(name = "conformance", version)]
struct Arguments {
    /// The driver: `cuda` (the installed one), `cuda:PATH` (a library), or a simulated one such as
    /// `sim:h200` or `sim:h200@13.0`
    #[arg(long, value_name = "DRIVER", default_value = "cuda")]
    driver: Choice,

    /// Print the names of the cases and ask nothing
    #[arg(long)]
    list: bool,

    /// Ask only this case, or with a final slash every case whose name begins so; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Write the record to a file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Be the process that asks the driver: names on stdin, answers on stdout
    #[arg(long, hide = true)]
    child: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and the version are errors too, of the kind that goes to stdout.
            let code = if error.use_stderr() { USAGE } else { RAN };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::from(INCOMPLETE),
            };
        }
    };
    ExitCode::from(if arguments.child { ask(&arguments.driver) } else { record(&arguments) })
}

/// The child's part.
fn ask(driver: &Choice) -> u8 {
    match child(driver) {
        Ok(()) => RAN,
        Err(error) => {
            report(&error);
            if matches!(error, ChildError::Open(_)) { NO_DRIVER } else { INCOMPLETE }
        }
    }
}

/// The parent's part.
fn record(arguments: &Arguments) -> u8 {
    let cases = all();
    let chosen = match choose(&cases, &arguments.case) {
        Ok(chosen) => chosen,
        Err(name) => {
            eprintln!("conformance: no case {name}; --list names them");
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

/// Puts the cases to the driver and returns how many could not be.
fn put(arguments: &Arguments, cases: &[&Case], out: &mut dyn Write) -> Result<usize, RunError> {
    let program = std::env::current_exe().map_err(RunError::Child)?;
    let options = Options { driver: arguments.driver.clone(), program };
    let summary = run(&options, cases, out)?;
    eprintln!("{} cases answered, {} could not be asked", summary.answered, summary.failed);
    Ok(summary.failed)
}

/// Prints the names; none of them fails.
fn list(cases: &[&Case], out: &mut dyn Write) -> io::Result<usize> {
    for case in cases {
        writeln!(out, "{}", case.name())?;
    }
    Ok(0)
}

/// The cases of these names, all of them without any; a name that fits none is returned.
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

/// Prints an error and what it came from, one line.
fn report(error: &dyn Error) {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    eprintln!("conformance: {text}");
}

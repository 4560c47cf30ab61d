//! Prints results and errors as text or JSON.

use std::ffi::OsString;
use std::io::{self, Write};

use green_ctx::{Driver, Result, resource::NotEnoughSms};
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::{DriverChoice, Options};

/// The result of a command.
pub(crate) struct Outcome {
    /// The complete text for standard output.
    pub(crate) text: String,
    /// The exit status.
    pub(crate) status: u8,
}

impl Outcome {
    /// Adds a line to the end of text output if the command was to use the installed driver, but the driver is simulated.
    /// JSON output has a field with the same information.
    pub(crate) fn marked(mut self, options: &Options, driver: &Driver) -> Outcome {
        if options.driver == DriverChoice::Auto && driver.is_simulated() {
            let what = match Driver::load() {
                Ok(_) => "the driver library that was loaded simulates a GPU",
                Err(_) => "no NVIDIA driver was found",
            };
            self.text.push_str(&format!("simulated: {what}, and no GPU was used\n"));
        }
        self
    }

    /// Returns a result as JSON, or its list `list` as comma-separated values, if an option requests this. With these
    /// values, prints the notes and warnings of the result to standard error.
    pub(crate) fn data(
        options: &Options,
        object: &impl Serialize,
        list: &str,
        status: u8,
    ) -> Result<Option<Outcome>, Failure> {
        Ok(match (options.json, options.csv) {
            (true, _) => Some(Outcome::json(object, status)?),
            (false, true) => {
                // If standard error is closed, the table is still wanted.
                let _ = io::stderr().write_all(remarks(options, object)?.as_bytes());
                Some(Outcome { text: green_ctx_report::to_csv(object, list), status })
            }
            (false, false) => None,
        })
    }

    /// Returns a result that is one JSON object on one line.
    pub(crate) fn json(object: &impl Serialize, status: u8) -> Result<Outcome, Failure> {
        let mut text = serde_json::to_string(object).map_err(io::Error::from)?;
        text.push('\n');
        Ok(Outcome { text, status })
    }
}

/// Returns what the JSON of a result says about all of its table: that it was simulated, the notes, the warnings, and that
/// it is not complete.
fn remarks(options: &Options, object: &impl Serialize) -> Result<String, Failure> {
    let object = serde_json::to_value(object).map_err(io::Error::from)?;
    let mut text = String::new();
    let is_simulated = |driver: &Value| match driver["kind"].as_str() {
        // A note has already said so if there is no driver library.
        Some(kind) => {
            kind == "simulated" && (options.driver != DriverChoice::Auto || Driver::load().is_ok())
        }
        // A saved outcome of jobs in a model has no driver.
        None => true,
    };
    if object.get("driver").is_some_and(is_simulated) {
        text.push_str("note: this is a simulation, and no GPU was used\n");
    }
    for (list, word) in [("notes", "note"), ("warnings", "warning")] {
        let lines = object[list].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.for_each(|line| text.push_str(&format!("{word}: {line}\n")));
    }
    if object["complete"] == false {
        text.push_str("warning: the measurement was interrupted: these are the results so far\n");
    }
    Ok(text)
}

/// Prints the result and returns its exit status.
pub(crate) fn finish(outcome: &Outcome) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    written(out.write_all(outcome.text.as_bytes()).and_then(|()| out.flush()))?;
    Ok(outcome.status)
}

/// Prints help or the version.
pub(crate) fn print_help(help: &clap::Error) -> Result<(), Failure> {
    written(help.print().and_then(|()| io::stdout().flush()))
}

/// Returns an error if output could not be written. A pipe that its reader closed does not count as an error.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        // The reader needs no more output.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Reports a failure, as text on standard error or as JSON on standard output. Returns the exit status.
pub(crate) fn fail(failure: &Failure, json: bool) -> u8 {
    let status = failure.status();
    let layers = failure.chain();
    let reported = json && {
        let (kind, message) = (failure.kind(), layers.join(": "));
        let error = ErrorBody { kind, message, shortage: failure.shortage() };
        let outcome = Outcome::json(&ErrorObject { error }, status);
        outcome.and_then(|outcome| finish(&outcome)).is_ok()
    };
    if !reported {
        let text = format!("error: {}\n", layers.join("\n  caused by: "));
        // If standard error is closed, only the exit status reports the error.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    status
}

/// Returns whether the arguments contain `--json`, even if clap cannot parse the arguments.
pub(crate) fn json_is_wanted(arguments: &[OsString]) -> bool {
    let mut options = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    options.any(|argument| argument == "--json")
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    kind: &'static str,
    message: String,
    /// The details of the shortage if a request does not fit. A program can use these details to adjust the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    shortage: Option<&'a NotEnoughSms>,
}

//! What commands print at their end: text, JSON, errors.

use std::ffi::OsString;
use std::io::{self, Write};

use green_ctx::{Driver, Result, resource::NotEnoughSms};
use serde::Serialize;

use crate::failure::Failure;
use crate::{DriverChoice, Options};

/// What a command has to show in the end.
pub(crate) struct Outcome {
    /// The whole of standard output.
    pub(crate) text: String,
    /// The exit status.
    pub(crate) status: u8,
}

impl Outcome {
    /// Adds a last line to text if the command fell back to a simulated driver. JSON has a field for it.
    pub(crate) fn marked(mut self, options: &Options, driver: &Driver) -> Outcome {
        if !options.json && options.driver == DriverChoice::Auto && driver.is_simulated() {
            self.text.push_str("simulated: no NVIDIA driver was found, and no GPU was used\n");
        }
        self
    }

    /// One JSON object on a line.
    pub(crate) fn json(object: &impl Serialize, status: u8) -> Result<Outcome, Failure> {
        let mut text = serde_json::to_string(object).map_err(io::Error::from)?;
        text.push('\n');
        Ok(Outcome { text, status })
    }
}

/// Prints the outcome, and returns its exit status.
pub(crate) fn finish(outcome: &Outcome) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    written(out.write_all(outcome.text.as_bytes()).and_then(|()| out.flush()))?;
    Ok(outcome.status)
}

/// Prints help or the version.
pub(crate) fn print_help(help: &clap::Error) -> Result<(), Failure> {
    written(help.print().and_then(|()| io::stdout().flush()))
}

/// Whether output was written, to a reader that may have gone before its end.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Reports a failure: in words on standard error, or as JSON on standard output.
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
        // Where standard error is closed, the exit status has to do.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    status
}

/// Whether `--json` is among arguments that could not be read.
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
    /// The numbers of a request that does not fit, for programs that ask again.
    #[serde(skip_serializing_if = "Option::is_none")]
    shortage: Option<&'a NotEnoughSms>,
}

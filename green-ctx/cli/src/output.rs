//! What commands print: tables, JSON, errors.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};

use green_ctx::{
    Device, Driver, Result, Share, driver::DriverInfo, resource::NotEnoughSms, resource::ShareKind,
};
use serde::Serialize;

use crate::failure::Failure;
use crate::{DriverChoice, Options};

/// The SMs that a share asks for, as `requested` in JSON: `null` for a share that asks for no count.
pub(crate) fn count(share: Share) -> Option<u32> {
    match share.kind() {
        ShareKind::Count(count) => Some(count),
        ShareKind::Between { .. } | ShareKind::Regular | ShareKind::Rest => None,
    }
}

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

/// The driver in JSON.
#[derive(Serialize)]
pub(crate) struct DriverObject {
    kind: &'static str,
    version: String,
    profile: Option<String>,
}

impl DriverObject {
    pub(crate) fn of(driver: &Driver) -> DriverObject {
        DriverObject::from(driver.info())
    }
}

impl From<DriverInfo> for DriverObject {
    fn from(info: DriverInfo) -> DriverObject {
        DriverObject {
            kind: if info.is_simulated() { "simulated" } else { "cuda" },
            version: info.version.to_string(),
            profile: info.profile,
        }
    }
}

/// A device in JSON.
#[derive(Serialize)]
pub(crate) struct DeviceObject {
    /// `None` of a device that a file names.
    pub(crate) ordinal: Option<u32>,
    pub(crate) name: String,
    pub(crate) sm_count: u32,
    pub(crate) compute_capability: String,
}

impl DeviceObject {
    pub(crate) fn of(device: &Device) -> Result<DeviceObject> {
        Ok(DeviceObject {
            ordinal: Some(device.ordinal()),
            name: device.name()?,
            sm_count: device.sm_count()?,
            compute_capability: device.compute_capability()?.to_string(),
        })
    }
}

/// The lines that every text output begins with.
pub(crate) fn heading(driver: &DriverInfo, device: &DeviceObject) -> String {
    let DeviceObject { ordinal, name, sm_count, compute_capability } = device;
    let ordinal = ordinal.map_or_else(String::new, |ordinal| format!("{ordinal}: "));
    format!(
        "driver  {driver}\ndevice  {ordinal}{name}, {sm_count} SMs, compute capability {compute_capability}\n"
    )
}

/// How a column stands.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    /// As words do.
    Left,
    /// As numbers do.
    Right,
}

/// Rows under a heading, with columns as wide as their widest cell.
pub(crate) fn table<const N: usize>(columns: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let heading = columns.map(|(title, _)| title.to_owned());
    let lines = || std::iter::once(&heading).chain(rows);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines() {
        let cells =
            line.iter().zip(columns).zip(widths).map(|((cell, (_, align)), width)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Ids with runs drawn together: `0-3,16,18-19`.
pub(crate) fn ranges(ids: &BTreeSet<u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match runs.last_mut() {
            Some((_, last)) if id - *last == 1 => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let text = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Ids in a sentence: `SM 7`, `SMs 0-3,16`.
pub(crate) fn sms(ids: &BTreeSet<u32>) -> String {
    format!("{} {}", if ids.len() == 1 { "SM" } else { "SMs" }, ranges(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ids_are_drawn_together() {
        let text = |ids: &[u32]| ranges(&ids.iter().copied().collect());
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[7]), "7");
        assert_eq!(text(&[0, 1, 16, 17, 32, 33]), "0-1,16-17,32-33");
        assert_eq!(text(&[3, 0, 2, 1, 5, 131]), "0-3,5,131");
        assert_eq!(text(&[u32::MAX - 1, u32::MAX]), "4294967294-4294967295");
        assert_eq!([sms(&[7].into()), sms(&[7, 8].into())], ["SM 7", "SMs 7-8"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["p0".to_owned(), "8".to_owned()], ["remainder".to_owned(), "124".to_owned()]];
        let text = table([("group", Align::Left), ("SMs", Align::Right)], &rows);
        assert_eq!(text, "group      SMs\np0           8\nremainder  124\n");
    }
}

//! `green-ctx info`: shows the driver, the devices, and the units of SMs that each device can be split into.

#[cfg(feature = "sim")]
use std::collections::BTreeMap;

use green_ctx_report::Info;

use crate::Options;
use crate::failure::Failure;
use crate::output::Outcome;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Shows a table of all GPUs that can be simulated instead: their SMs, units, and what percentages give.
    #[cfg(feature = "sim")]
    #[arg(long, conflicts_with = "device")]
    all: bool,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    #[cfg(feature = "sim")]
    if arguments.all {
        let gpus = green_ctx_report::Gpu::all()?;
        let data = Outcome::data(options, &BTreeMap::from([("gpus", &gpus)]), "gpus", 0)?;
        let text = || Outcome { text: green_ctx_report::gpus_text(&gpus), status: 0 };
        return Ok(data.unwrap_or_else(text));
    }
    #[cfg(not(feature = "sim"))]
    let Arguments {} = arguments;
    let driver = options.driver.load()?;
    let info = Info::of(&driver, options.device)?;
    if let Some(data) = Outcome::data(options, &info, "devices", 0)? {
        return Ok(data);
    }
    Ok(Outcome { text: info.text(&driver), status: 0 }.marked(options, &driver))
}

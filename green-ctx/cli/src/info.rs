//! `green-ctx info`: shows the driver, the devices, and the units of SMs that each device can be split into.

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
    /// Prints the table as comma-separated values.
    #[cfg(feature = "sim")]
    #[arg(long, requires = "all", conflicts_with = "json")]
    csv: bool,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    #[cfg(feature = "sim")]
    if arguments.all {
        let gpus = green_ctx_report::Gpu::all()?;
        if options.json {
            return Outcome::json(&serde_json::json!({ "gpus": gpus }), 0);
        }
        let text = match arguments.csv {
            true => green_ctx_report::gpus_csv(&gpus),
            false => green_ctx_report::gpus_text(&gpus),
        };
        return Ok(Outcome { text, status: 0 });
    }
    #[cfg(not(feature = "sim"))]
    let Arguments {} = arguments;
    let driver = options.driver.load()?;
    let info = Info::of(&driver, options.device)?;
    if options.json {
        return Outcome::json(&info, 0);
    }
    Ok(Outcome { text: info.text(&driver), status: 0 }.marked(options, &driver))
}

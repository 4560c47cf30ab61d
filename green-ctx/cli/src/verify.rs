//! `green-ctx verify`: shows that each partition runs on its own SMs.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use green_ctx::verify;
use green_ctx_report::{DeviceObject, Verification, heading};

use crate::Options;
use crate::failure::{Failure, NOT_VERIFIED};
use crate::output::Outcome;
use crate::picture::Picture;
use crate::request::Request;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: Request,
    /// The time that each block of the probe kernel stays on its SM, in milliseconds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(1..=1000),
        allow_negative_numbers = true
    )]
    stay_ms: u64,
    /// Draws a picture with a map of the SMs and a timeline of the blocks. Colours show partitions, and hatching shows
    /// shared SMs.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    // Before anything is loaded or runs on the device, so that an invalid request or file name fails immediately.
    let request = arguments.request.with_remainder()?;
    let device = options.driver.device(options.device)?;
    if let Some(name) = arguments.request.rest_name()
        && device.resources().sm()?.dry_run(request.clone())?.remainder == 0
    {
        return Err(Failure::Request(format!(
            "group {name} gets no SMs, because the other groups take all of them; leave it out, or give them fewer"
        )));
    }
    let picture = arguments.svg.clone().map(Picture::open).transpose()?;
    let report = verify::split(&device, request, Duration::from_millis(arguments.stay_ms))?;
    if let Some(picture) = picture {
        picture.write(&green_ctx_report::verification_svg(&report))?;
    }

    let status = if report.ok() { 0 } else { NOT_VERIFIED };
    if let Some(data) = Outcome::data(options, &Verification::of(&report), "partitions", status)? {
        return Ok(data);
    }
    let mut text = heading(&device.driver().info(), &DeviceObject::of(&device)?);
    text.push_str(&green_ctx_report::verification_text(&report));
    if let Some(path) = &arguments.svg {
        // Writing to a string does not fail.
        let _ = writeln!(text, "picture             {}", path.display());
    }
    Ok(Outcome { text, status }.marked(options, device.driver()))
}

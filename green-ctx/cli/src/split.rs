//! `green-ctx split`: shows the SMs that each group of a split would get.

use green_ctx::{error::ErrorKind, resource::Granularity};
use green_ctx_report::Split;

use crate::Options;
use crate::failure::Failure;
use crate::output::Outcome;
use crate::request::Request;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: Request,
}

pub(crate) fn run(options: &Options, arguments: &Arguments) -> Result<Outcome, Failure> {
    // Before the driver is loaded, so that an invalid request fails immediately.
    let request = arguments.request.to_split()?;
    let device = options.driver.device(options.device)?;
    let sms = device.resources().sm()?;
    let dry = sms.dry_run(request.clone()).map_err(|error| {
        let is_finer = arguments.request.is_coarse() && error.kind() != ErrorKind::Unsupported;
        match is_finer && sms.dry_run(request.granularity(Granularity::Fine)).is_ok() {
            true => Failure::FitsFinely(error),
            false => Failure::Library(error),
        }
    })?;
    let answer = Split::of(&device, &dry, arguments.request.rest_name())?;
    if let Some(data) = Outcome::data(options, &answer, "groups", 0)? {
        return Ok(data);
    }
    Ok(Outcome { text: answer.text(&device), status: 0 }.marked(options, device.driver()))
}

//! `green-ctx info`: shows the driver, the devices, and the units of SMs that each device can be split into.

use green_ctx_report::Info;

use crate::Options;
use crate::failure::Failure;
use crate::output::Outcome;

pub(crate) fn run(options: &Options) -> Result<Outcome, Failure> {
    let driver = options.driver.load()?;
    let info = Info::of(&driver, options.device)?;
    if options.json {
        return Outcome::json(&info, 0);
    }
    Ok(Outcome { text: info.text(&driver), status: 0 }.marked(options, &driver))
}

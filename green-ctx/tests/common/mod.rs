//! What the integration tests share.

use green_ctx::sim_0_1::Sim;
use green_ctx::{Device, Driver, context::Context, resource::SmGroup};

/// Any test's result: `?` on every error.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A device to test on: of the installed driver with `GREEN_CTX_DRIVER=cuda`, of a simulated H200 of
/// the test's own otherwise.
#[allow(dead_code, reason = "not every test binary runs on hardware")]
pub(crate) fn device() -> Result<Device, Box<dyn std::error::Error>> {
    let driver =
        if is_real() { Driver::load()? } else { Driver::simulated(&Sim::new("h200@13.0")?)? };
    Ok(driver.device(0)?)
}

/// Whether the tests are to run on the installed driver.
#[allow(dead_code, reason = "not every test binary runs on hardware")]
pub(crate) fn is_real() -> bool {
    std::env::var("GREEN_CTX_DRIVER").is_ok_and(|driver| driver == "cuda")
}

/// A simulated driver and its device.
#[allow(dead_code, reason = "not every test binary runs on the simulator alone")]
pub(crate) fn simulated(spec: &str) -> Result<(Sim, Device), Box<dyn std::error::Error>> {
    let sim = Sim::new(spec)?;
    let device = Driver::simulated(&sim)?.device(0)?;
    Ok((sim, device))
}

/// One group of this count.
pub(crate) fn group(device: &Device, sm_count: u32) -> green_ctx::Result<SmGroup> {
    let split = device.resources().sm()?.split([sm_count])?;
    Ok(split.groups.into_iter().next().expect("a split gives as many groups as asked for"))
}

/// A partition of this count.
#[allow(dead_code, reason = "not every test binary makes partitions one by one")]
pub(crate) fn partition(device: &Device, sm_count: u32) -> green_ctx::Result<Context> {
    Ok(device.create_context(group(device, sm_count)?)?)
}

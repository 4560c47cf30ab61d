//! Fixtures of the integration tests.
#![allow(dead_code, reason = "no test binary uses all of it")]

pub(crate) mod kernels;
pub(crate) mod plans;
pub(crate) mod raw;

use green_ctx::sim::Sim;
use green_ctx::{Device, Driver, Stream, StreamOptions, context::Context, resource::SmGroup};

/// The result of a test; `?` converts every error.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Returns a device to test on: one of the installed driver with `GREEN_CTX_DRIVER=cuda`, otherwise a simulated
/// H200 that no other test uses.
pub(crate) fn device() -> Result<Device, Box<dyn std::error::Error>> {
    let driver =
        if is_real() { Driver::load()? } else { Driver::simulated(&Sim::new("h200@13.0")?)? };
    Ok(driver.device(0)?)
}

/// Returns whether the tests run on the installed driver.
pub(crate) fn is_real() -> bool {
    std::env::var("GREEN_CTX_DRIVER").is_ok_and(|driver| driver == "cuda")
}

/// Creates a simulated driver and returns it with its first device.
pub(crate) fn simulated(spec: &str) -> Result<(Sim, Device), Box<dyn std::error::Error>> {
    let sim = Sim::new(spec)?;
    let device = Driver::simulated(&sim)?.device(0)?;
    Ok((sim, device))
}

/// Splits off one group of `sm_count` SMs.
pub(crate) fn group(device: &Device, sm_count: u32) -> green_ctx::Result<SmGroup> {
    let split = device.resources().sm()?.split([sm_count])?;
    Ok(split.groups.into_iter().next().expect("a split gives as many groups as asked for"))
}

/// Creates a partition's context with `sm_count` SMs.
pub(crate) fn partition(device: &Device, sm_count: u32) -> green_ctx::Result<Context> {
    Ok(device.create_context(group(device, sm_count)?)?)
}

pub(crate) fn stream(context: &Context) -> green_ctx::Result<Stream> {
    context.create_stream(StreamOptions::default())
}

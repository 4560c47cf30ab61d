//! Which driver is measured.

use green_ctx::sim::{Sim, Spec};
use green_ctx::{Driver, Result};
use green_ctx_cli::DriverChoice;

use crate::kernels;

/// Loads the driver, and returns whether it is a simulated one, whose times mean nothing.
pub(crate) fn open(choice: &DriverChoice) -> Result<(Driver, bool)> {
    let driver = choice.load_with(simulated)?;
    let is_simulated = driver.is_simulated();
    Ok((driver, is_simulated))
}

fn simulated(spec: Spec) -> Result<Driver> {
    // What was launched is not looked at, and would be a lot.
    let sim = Sim::builder(spec).trace(0).build()?;
    kernels::register(&sim);
    Driver::simulated(&sim)
}

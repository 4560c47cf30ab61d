//! The driver to measure.

use green_ctx::sim::{Sim, Spec};
use green_ctx::{Driver, Result};
use green_ctx_cli::DriverChoice;

use crate::kernels;

/// Loads the driver. Returns it, and whether it is simulated, in which case times mean nothing.
pub(crate) fn open(choice: &DriverChoice) -> Result<(Driver, bool)> {
    let driver = choice.load_with(simulated)?;
    let is_simulated = driver.is_simulated();
    Ok((driver, is_simulated))
}

fn simulated(spec: Spec) -> Result<Driver> {
    // The trace of launches would be large, and no arm reads it.
    let sim = Sim::builder(spec).trace(0).build()?;
    kernels::register(&sim);
    Driver::simulated(&sim)
}

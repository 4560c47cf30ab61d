//! `cargo xtask test`: what the README's test command runs.

use crate::clients::{self, Options};
use crate::{Failure, cargo};

/// Runs unit, integration and documentation tests of every crate with every feature, and the
/// clients of the simulated `libcuda.so.1`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    clients::check(options)?;
    let status = cargo()
        .args(["test", "--workspace", "--all-features"])
        .status()
        .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
    if !status.success() {
        return Err(Failure::new("tests failed".to_owned()));
    }
    clients::run(options)
}

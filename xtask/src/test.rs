//! `cargo xtask test`: what the README's test command runs.

use crate::{Failure, cargo};

/// Runs unit, integration and documentation tests of every crate with every feature.
pub(crate) fn run() -> Result<(), Failure> {
    let status = cargo()
        .args(["test", "--workspace", "--all-features"])
        .status()
        .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure::new("tests failed".to_owned())) }
}

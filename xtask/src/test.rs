//! `cargo xtask test`: the README's test command.

use crate::clients;
use crate::{Failure, cargo};

#[derive(clap::Args)]
pub(crate) struct Selection {
    /// Run only the Rust tests whose path contains this, such as `plans` or `ledger::share`, and no clients
    #[arg(conflicts_with = "complete")]
    filter: Option<String>,
    #[command(flatten)]
    clients: clients::Options,
}

/// Runs unit, integration and documentation tests of every crate with every feature, and the clients of the
/// simulated `libcuda.so.1`.
pub(crate) fn run(options: &Selection) -> Result<(), Failure> {
    if options.filter.is_none() {
        clients::check(&options.clients)?;
    }
    let status = cargo()
        .args(["test", "--workspace", "--all-features"])
        .args(&options.filter)
        .status()
        .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
    if !status.success() {
        return Err(Failure::new("tests failed".to_owned()));
    }
    match options.filter {
        Some(_) => Ok(()),
        None => clients::run(&options.clients),
    }
}

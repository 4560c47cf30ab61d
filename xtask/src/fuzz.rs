//! `cargo xtask fuzz`: random operations on simulated drivers, until one breaks the promise or the time is over.

use clap::Args;

use crate::{Failure, cargo};

#[derive(Args)]
pub(crate) struct Options {
    /// The fuzzer's arguments, such as `--seconds N` and `--seed S`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let status = cargo()
        .args(["run", "--release", "--package", "green-ctx-fuzz", "--"])
        .args(&options.arguments)
        .status()
        .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure::new("the fuzzer failed".to_owned())) }
}

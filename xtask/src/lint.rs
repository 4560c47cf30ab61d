//! `cargo xtask lint`: formatting, and the lints of clippy and rustdoc, as in CI.

use crate::{Failure, cargo};

pub(crate) fn run() -> Result<(), Failure> {
    for arguments in [
        "fmt --all --check",
        "clippy --workspace --all-targets --all-features --locked -- -D warnings",
        "doc --workspace --all-features --no-deps --locked",
    ] {
        println!("cargo {arguments}");
        let mut command = cargo();
        command.args(arguments.split(' ')).env("RUSTDOCFLAGS", "-D warnings");
        let status = command.status();
        let status =
            status.map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
        if !status.success() {
            return Err(Failure::new(format!("cargo {arguments} failed")));
        }
    }
    Ok(())
}

//! `green-ctx`: what a GPU's SMs can be split into, and proof of where partitions run.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    green_ctx_cli::run(std::env::args_os()).into()
}

//! The command `green-ctx`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    green_ctx_cli::run(std::env::args_os()).into()
}

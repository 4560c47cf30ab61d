//! Development tasks: `cargo xtask --help` lists them.

mod regen;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of green-ctx")]
enum Task {
    /// Generate bindings.rs and api.rs of green-ctx-sys from NVIDIA's headers.
    RegenBindings(regen::Options),
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::RegenBindings(options) => regen::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Why a task failed, in words for the person who ran it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: String) -> Failure {
        Failure(message)
    }

    pub(crate) fn from_display(error: impl std::fmt::Display) -> Failure {
        Failure(error.to_string())
    }

    pub(crate) fn io(doing: &str, path: &Path, error: std::io::Error) -> Failure {
        Failure(format!("{doing} {}: {error}", path.display()))
    }
}

/// The folder of the workspace's Cargo.toml.
pub(crate) fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

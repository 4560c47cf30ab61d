//! Development tasks: `cargo xtask --help` lists them.

mod bundle;
mod regen;
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of green-ctx")]
enum Task {
    /// Generate bindings.rs and api.rs of green-ctx-sys from NVIDIA's headers.
    RegenBindings(regen::Options),
    /// Run every test, on the simulated driver: no GPU is needed.
    Test,
    /// Gather in target/gpu-bundle what runs on a GPU host that has no Rust.
    GpuBundle,
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::RegenBindings(options) => regen::run(&options),
        Task::Test => test::run(),
        Task::GpuBundle => bundle::run(),
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

/// The cargo that runs this task, in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root());
    command
}

//! Development tasks; `cargo xtask --help` lists them.

mod bundle;
mod clients;
mod fuzz;
mod interface;
mod lint;
mod metadata;
mod packages;
mod regen;
mod rooms;
mod sim_lib;
mod site;
mod test;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of green-ctx")]
enum Task {
    /// Generate the bindings of green-ctx-sys and the list of all driver functions from NVIDIA's headers.
    RegenBindings(regen::Options),
    /// Run every test on the simulated driver; no GPU is needed.
    Test(test::Selection),
    /// Check the formatting, and run the lints of clippy and rustdoc.
    Lint,
    /// Run programs without knowledge of the simulator on its libcuda.so.1.
    Clients(clients::Options),
    /// Run random operations on simulated drivers and check each with a model.
    #[command(disable_help_flag = true)]
    Fuzz(fuzz::Options),
    /// Build the simulated driver as a libcuda.so.1, and print its path and how to use it.
    SimLib(sim_lib::Options),
    /// Build the documentation site in target/site, with the pages that rustdoc has written, and check its links.
    Site,
    /// Build the Python module as a wheel for other machines, in target/wheels.
    Wheel(wheel::Options),
    /// Check that the packages can be published: contents, features, oldest Rust, dependencies.
    CheckPackages,
    /// List the public items of the packages in xtask/interface.
    Interface(interface::Options),
    /// Check that no file imports from a later room (a top-level module), and that no import cycle has more than two files.
    CheckRooms,
    /// Collect the programs for a GPU host without Rust in target/gpu-bundle.
    GpuBundle,
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::RegenBindings(options) => regen::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Lint => lint::run(),
        Task::Clients(options) => clients::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::SimLib(options) => sim_lib::run(&options),
        Task::Site => site::run(),
        Task::Wheel(options) => wheel::run(&options),
        Task::CheckPackages => packages::run(),
        Task::Interface(options) => interface::run(&options),
        Task::CheckRooms => rooms::run(),
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

/// Why a task failed, as a message for its user.
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

/// Returns the folder of the workspace's Cargo.toml.
pub(crate) fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Returns a command for the cargo that runs this task, in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root());
    command
}

/// Runs a cargo command that builds, and returns its messages.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Value>, Failure> {
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
    if !output.status.success() {
        return Err(Failure::new(format!("{command:?} failed")));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

//! `cargo xtask sim-lib`: builds the simulated driver as a `libcuda.so.1`.

pub(crate) mod torch;

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{Failure, artifacts, cargo, workspace_root};

/// The package of the library.
const PACKAGE: &str = "green-ctx-sim-cuda";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also make an environment with PyTorch and green_ctx_torch that runs on the library
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = torch::VERSIONS[0])]
    #[arg(value_parser = torch::VERSIONS)]
    torch: Option<String>,
}

/// Builds the library and prints how to run programs on it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let library = build()?;
    println!("{}", library.display());
    let Some(version) = &options.torch else {
        let folder = library.parent().unwrap_or(&library).display();
        println!("LD_LIBRARY_PATH={folder} GREEN_CTX_SIM=h200@13.1 PROGRAM");
        return Ok(());
    };
    torch::install(version)?;
    let folders = torch::build(version, &library)?;
    let folder = torch::folder(version);
    println!(
        "\nRun programs with PyTorch {version} like this; the last lines say where their kernels ran:"
    );
    println!(
        "LD_LIBRARY_PATH={} GREEN_CTX_SIM=h200@13.0 GREEN_CTX_SIM_LAUNCHES=1 {folder}/bin/python PROGRAM",
        folders.display()
    );
    Ok(())
}

/// Builds the library into its own folder, and returns its path.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let built = compiled(PACKAGE, "cdylib")?;
    let folder = workspace_root().join("target/sim-lib");
    fs::create_dir_all(&folder).map_err(|error| Failure::io("creating", &folder, error))?;
    let library = folder.join("libcuda.so.1");
    // A new file replaces the old one, so that programs that run on the old one are not disturbed. Several commands may
    // do this at the same time.
    let fresh = folder.join(format!("libcuda.so.1.{}", std::process::id()));
    fs::copy(&built, &fresh).map_err(|error| Failure::io("copying", &built, error))?;
    fs::rename(&fresh, &library).map_err(|error| Failure::io("replacing", &library, error))?;
    // The name that linkers look for, and that some programs load.
    link_to("libcuda.so.1", &folder.join("libcuda.so"))?;
    Ok(library)
}

/// Compiles an optimised library, and returns the file that cargo wrote.
fn compiled(package: &str, kind: &str) -> Result<PathBuf, Failure> {
    let messages = artifacts(cargo().args(["build", "--profile", "quick", "--package", package]))?;
    let files = messages
        .iter()
        .filter(|message| message["target"]["kind"][0] == kind)
        .find_map(|message| Some(message["filenames"][0].as_str()?.into()));
    files.ok_or_else(|| Failure::new(format!("cargo reported no library of {package}")))
}

/// Adds another name for a file in the same folder.
#[cfg(unix)]
fn link_to(file: &str, link: &Path) -> Result<(), Failure> {
    match std::os::unix::fs::symlink(file, link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure::io("linking", link, error))
        }
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn link_to(_: &str, _: &Path) -> Result<(), Failure> {
    Ok(())
}

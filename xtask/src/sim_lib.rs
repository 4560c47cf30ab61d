//! `cargo xtask sim-lib`: builds the simulated driver as a `libcuda.so.1`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{Failure, artifacts, cargo, workspace_root};

/// The package of the library.
const PACKAGE: &str = "green-ctx-sim-cuda";

/// Builds the library and prints how to run programs on it.
pub(crate) fn run() -> Result<(), Failure> {
    let library = build()?;
    let folder = library.parent().unwrap_or(&library).display();
    println!("{}", library.display());
    println!("LD_LIBRARY_PATH={folder} GREEN_CTX_SIM=h200@13.1 PROGRAM");
    Ok(())
}

/// Builds the library into its own folder, and returns its path.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let built = compile()?;
    let folder = workspace_root().join("target/sim-lib");
    fs::create_dir_all(&folder).map_err(|error| Failure::io("creating", &folder, error))?;
    let library = folder.join("libcuda.so.1");
    // A new file replaces the old one, so that programs that run on the old one are not disturbed. Several commands may
    // do this at the same time.
    let fresh = folder.join(format!("libcuda.so.1.{}", std::process::id()));
    fs::copy(&built, &fresh).map_err(|error| Failure::io("copying", &built, error))?;
    fs::rename(&fresh, &library).map_err(|error| Failure::io("replacing", &library, error))?;
    link_name(&folder)?;
    Ok(library)
}

/// Compiles the library in release mode, and returns the file that cargo wrote.
fn compile() -> Result<PathBuf, Failure> {
    let messages = artifacts(cargo().args(["build", "--release", "--package", PACKAGE]))?;
    let files = messages
        .iter()
        .filter(|message| message["target"]["kind"][0] == "cdylib")
        .find_map(|message| Some(message["filenames"][0].as_str()?.into()));
    files.ok_or_else(|| Failure::new(format!("cargo reported no library of {PACKAGE}")))
}

/// Adds the name that linkers look for, and that some programs load.
#[cfg(unix)]
fn link_name(folder: &Path) -> Result<(), Failure> {
    let link = folder.join("libcuda.so");
    match std::os::unix::fs::symlink("libcuda.so.1", &link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure::io("linking", &link, error))
        }
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn link_name(_: &Path) -> Result<(), Failure> {
    Ok(())
}

//! Builds that only a package's users see: with few features, and with an old Rust.

use std::ffi::OsStr;
use std::process::Command;

use crate::clients::{answers, succeed};
use crate::metadata::Package;
use crate::{Failure, cargo, workspace_root};

/// Checks each package without features and with each feature alone. A build of the workspace never does this,
/// since its packages enable each other's features.
pub(super) fn each_feature(published: &[&Package]) -> Result<(), Failure> {
    for package in published {
        let features = package.features.keys().filter(|name| *name != "default");
        for feature in std::iter::once("").chain(features.map(String::as_str)) {
            let mut command = cargo();
            command.args(["clippy", "--quiet", "--locked", "--package", &package.name]);
            command.args(["--no-default-features", "--features", feature]);
            command.args(["--", "--deny", "warnings"]);
            succeed(&mut command)?;
        }
    }
    Ok(())
}

/// Checks the packages with the oldest Rust that they support. Returns what was not checked.
pub(super) fn oldest_rust(published: &[&Package]) -> Result<Option<String>, Failure> {
    // The workspace gives all packages the same version.
    let mut versions = published.iter().filter_map(|package| package.rust_version.as_deref());
    let Some(version) = versions.next() else { return Ok(None) };
    if !answers(OsStr::new("rustup"), &["run", version, "cargo", "--version"]) {
        return Ok(Some(format!(
            "a build with Rust {version}, which `rustup toolchain install {version} --profile minimal` \
             installs; only the versions that dependencies state were checked"
        )));
    }
    let mut command = Command::new("rustup");
    command
        .args(["run", version, "cargo", "check", "--quiet", "--locked", "--all-features"])
        .current_dir(workspace_root());
    for package in published {
        command.args(["--package", &package.name]);
    }
    succeed(&mut command)?;
    println!("all packages build with Rust {version}");
    Ok(None)
}

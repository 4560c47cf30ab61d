//! Builds that only users of a package meet: with few features, and with an old Rust.

use std::ffi::OsStr;
use std::process::Command;

use crate::clients::{answers, succeed};
use crate::metadata::Package;
use crate::{Failure, cargo, workspace_root};

/// Checks each package without features and with each one alone. A build of the workspace never has
/// these: its packages turn on each other's features.
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

/// Checks the packages with the oldest Rust that they name, or says why not.
pub(super) fn oldest_rust(published: &[&Package]) -> Result<Option<String>, Failure> {
    // One version, which the packages have from the workspace.
    let mut versions = published.iter().filter_map(|package| package.rust_version.as_deref());
    let Some(version) = versions.next() else { return Ok(None) };
    if !answers(OsStr::new("rustup"), &["run", version, "cargo", "--version"]) {
        return Ok(Some(format!(
            "a build with Rust {version}, which `rustup toolchain install {version} --profile minimal` \
             installs; what dependencies state was checked"
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
    println!("they build with Rust {version}");
    Ok(None)
}

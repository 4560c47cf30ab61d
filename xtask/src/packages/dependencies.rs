//! The packages' dependencies: licences, advisories, duplicates, sources, and the Rust version that they need.

use std::ffi::OsStr;

use crate::clients::{answers, succeed};
use crate::metadata::Metadata;
use crate::{Failure, cargo};

/// Fails immediately if cargo-deny is not installed.
pub(super) fn find_tool() -> Result<(), Failure> {
    if answers(OsStr::new("cargo"), &["deny", "--version"]) {
        return Ok(());
    }
    Err(Failure::new(
        "cargo-deny was not found; install it with `cargo install --locked cargo-deny`".into(),
    ))
}

/// Checks the dependencies with deny.toml, and that none states a newer Rust version than the packages. Returns
/// what was not checked.
pub(super) fn check(metadata: &Metadata) -> Result<Option<String>, Failure> {
    rust_versions(metadata)?;
    succeed(deny().args(["check", "licenses", "bans", "sources"]))?;
    // The database is a Git repository, which may be unreachable behind a registry mirror.
    let fetched = deny().args(["fetch", "db"]).output();
    if !fetched.is_ok_and(|output| output.status.success()) {
        return Ok(Some("advisories, since their database could not be fetched".to_owned()));
    }
    succeed(deny().args(["check", "advisories"]))?;
    Ok(None)
}

fn deny() -> std::process::Command {
    let mut command = cargo();
    command.args(["deny", "--workspace", "--locked", "--log-level", "error"]);
    command
}

/// Fails if Cargo.lock has a version that needs a newer Rust.
fn rust_versions(metadata: &Metadata) -> Result<(), Failure> {
    let stated = metadata.members().filter_map(|package| parse(package.rust_version.as_deref()?));
    let Some(ours) = stated.min() else { return Ok(()) };
    let newer: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| package.rust_version.as_deref().and_then(parse) > Some(ours))
        .map(|package| {
            let needs = package.rust_version.as_deref().unwrap_or_default();
            format!("{} {} needs Rust {needs}", package.name, package.version)
        })
        .collect();
    if newer.is_empty() { Ok(()) } else { Err(Failure::new(newer.join("\n"))) }
}

/// Parses the first two numbers of a version.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next().unwrap_or(Ok(0)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse("1.88"), Some((1, 88)));
        assert!(parse("1.100.0") > parse("1.88"));
        assert!(parse("1") < parse("1.88"));
    }
}

//! `cargo xtask interface`: the list of all public items, which a review of a change can see.

use std::ffi::OsStr;
use std::process::Command;

use crate::clients::{answers, succeed};
use crate::{Failure, workspace_root};

/// The Rust whose rustdoc writes the format that the package public-api reads.
const RUST: &str = "1.95.0";
const PACKAGES: [&str; 3] = ["green-ctx", "green-ctx-tune", "green-ctx-torch"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a list differs from the committed one.
    #[arg(long)]
    check: bool,
}

/// Writes or compares the lists in `xtask/interface`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if !answers(OsStr::new("rustup"), &["run", RUST, "cargo", "--version"]) {
        let cure = format!("`rustup toolchain install {RUST} --profile minimal` installs it");
        if !options.check {
            return Err(Failure::new(format!("Rust {RUST} is missing; {cure}")));
        }
        println!("not checked: the public items, without Rust {RUST}; {cure}");
        return Ok(());
    }
    let mut differ = false;
    for package in PACKAGES {
        println!("reading the documentation of {package}");
        let list = list(package)?;
        let path = workspace_root().join("xtask/interface").join(format!("{package}.txt"));
        if !options.check {
            std::fs::write(&path, &list).map_err(|error| Failure::io("writing", &path, error))?;
            println!("{}: {} public items", path.display(), list.lines().count());
            continue;
        }
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        for (sign, one, other) in [('-', &known, &list), ('+', &list, &known)] {
            for line in one.lines().filter(|line| !other.lines().any(|known| known == *line)) {
                println!("{sign} {line}");
                differ = true;
            }
        }
    }
    match differ {
        true => Err(Failure::new(
            "the public items differ from the lists; if this is intended, run `cargo xtask interface`, \
             and name the change in CHANGELOG.md"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// Returns the public items of a package with all features, one per line.
fn list(package: &str) -> Result<String, Failure> {
    // Another Rust than usual, so another folder.
    let target = workspace_root().join("target/interface");
    let mut command = Command::new("rustup");
    command.args(["run", RUST, "cargo", "rustdoc", "--quiet", "--locked", "--all-features"]);
    command.args(["--lib", "--package", package, "--"]);
    command.args(["-Zunstable-options", "--output-format=json", "--cap-lints=allow"]);
    command.current_dir(workspace_root()).env("CARGO_TARGET_DIR", &target);
    // The JSON is unstable, but its format is fixed in this version of Rust.
    command.env("RUSTC_BOOTSTRAP", "1");
    succeed(&mut command)?;
    let json = target.join("doc").join(format!("{}.json", package.replace('-', "_")));
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .map_err(Failure::from_display)?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

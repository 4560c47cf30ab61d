//! `cargo xtask wheel`: builds the Python module as a wheel for other machines.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::module::{self, Environment};
use crate::clients::succeed;
use crate::{Failure, workspace_root};

/// The maximum size of the wheel, in bytes.
const LIMIT: u64 = 5 << 20;

/// The oldest C library that the wheel runs with, as a platform tag. Zig links against the symbols of that
/// version, whatever this machine has, and maturin checks the symbols of the result.
const COMPATIBILITY: &str = "manylinux_2_28";

/// The folder for wheels.
const FOLDER: &str = "target/wheels";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build for GH200, GB10 and Thor, in target/wheels-aarch64. This needs the Rust target aarch64-unknown-linux-gnu and
    /// the package libgcc-s1-arm64-cross
    #[arg(long)]
    arm: bool,
}

/// Builds the wheel and prints its path. `cargo xtask test --complete` tests the one for this machine.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let environment = module::make_environment()?;
    let wheel = if options.arm { build_for_arm(&environment)? } else { build(&environment)? };
    println!("{}: {:.1} MiB", wheel.display(), size(&wheel)? as f64 / f64::from(1 << 20));
    Ok(())
}

/// Builds the wheel in an emptied folder, and returns its path.
pub(crate) fn build(environment: &Environment) -> Result<PathBuf, Failure> {
    build_in(FOLDER, environment, &[], &unwinder()?)
}

fn build_for_arm(environment: &Environment) -> Result<PathBuf, Failure> {
    let target = "aarch64-unknown-linux-gnu";
    // Where Debian's and Ubuntu's package has it.
    let unwinder = Path::new("/usr/aarch64-linux-gnu/lib/libgcc_s.so.1");
    if !unwinder.exists() {
        let words =
            format!("{} is missing; the package libgcc-s1-arm64-cross has it", unwinder.display());
        return Err(Failure::new(words));
    }
    build_in(&format!("{FOLDER}-aarch64"), environment, &["--target", target], unwinder)
}

fn build_in(
    folder: &str,
    environment: &Environment,
    target: &[&str],
    unwinder: &Path,
) -> Result<PathBuf, Failure> {
    let to = folder;
    let folder = workspace_root().join(folder);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .map_err(|error| Failure::io("emptying", &folder, error))?;
    }
    let mut command = environment.python();
    command
        .args(["-m", "maturin", "build", "--release", "--strip", "--locked", "--zig"])
        .args(["--compatibility", COMPATIBILITY, "--manifest-path"])
        .arg("green-ctx-torch/python/Cargo.toml")
        .args(["--out", to])
        .args(target)
        .args(["--", "-C"])
        .arg(format!("link-arg={}", unwinder.display()));
    succeed(&mut command)?;
    let wheel = only_wheel(&folder)?;
    let size = size(&wheel)?;
    if size > LIMIT {
        let wheel = wheel.display();
        return Err(Failure::new(format!("{wheel} has {size} bytes, the limit is {LIMIT}")));
    }
    Ok(wheel)
}

/// Returns the path of GCC's unwinder, the shared library that CPython, PyTorch and `pthread_exit` use.
///
/// Zig replaces it with LLVM's, linked statically. Up to Python 3.13, a thread that requests the GIL of an
/// interpreter that is shutting down leaves through `pthread_exit`. GCC's unwinder then calls Rust's code with
/// its own context structure, LLVM's functions read it as theirs, and the process ends with SIGSEGV.
fn unwinder() -> Result<PathBuf, Failure> {
    let name = "libgcc_s.so.1";
    let output =
        Command::new("cc").arg(format!("-print-file-name={name}")).output().map_err(|error| {
            Failure::new(format!("cc could not report the path of {name}: {error}"))
        })?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    match path.is_absolute() {
        true => Ok(path),
        false => {
            Err(Failure::new(format!("cc does not find {name}; install GCC's runtime library")))
        }
    }
}

fn only_wheel(folder: &Path) -> Result<PathBuf, Failure> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| Failure::io("listing", folder, error))?;
    let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match paths.as_slice() {
        [wheel] if wheel.to_string_lossy().contains(COMPATIBILITY) => Ok(wheel.clone()),
        _ => Err(Failure::new(format!("maturin wrote {paths:?}, not one {COMPATIBILITY} wheel"))),
    }
}

fn size(path: &Path) -> Result<u64, Failure> {
    let about = std::fs::metadata(path).map_err(|error| Failure::io("reading", path, error))?;
    Ok(about.len())
}

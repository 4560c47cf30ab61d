//! `cargo xtask gpu-bundle`: the programs to run on a GPU host, and a script that runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::clients::module;
use crate::metadata::{Metadata, Target};
use crate::{Failure, artifacts, cargo, wheel, workspace_root};

/// The maximum size of the folder, in bytes.
const LIMIT: u64 = 60 << 20;

/// The programs in the bundle: name and kind of the target in cargo's output, and the file name in the bundle.
const PARTS: &[(&str, &str, &str)] = &[
    ("green-ctx", "bin", "green-ctx"),
    ("conformance", "bin", "conformance"),
    ("hardware", "test", "hardware"),
    ("calls", "bench", "calls"),
    ("green-ctx-bench", "bin", "green-ctx-bench"),
    ("cudarc_gemm", "example", "cudarc_gemm"),
    ("00-everything", "example", "everything"),
    ("in_front", "example", "in_front"),
];

/// The folder with the Python module and its scripts, for hosts with PyTorch.
const TORCH: &str = "torch";

/// The scripts that run with PyTorch, and the CUDA C++ that one of them compiles.
const SCRIPTS: &[&str] = &[
    "tests/python/gpu/test_torch.py",
    "tests/python/gpu/placement.py",
    "tests/python/gpu/placement_alone.py",
    "tests/python/gpu/placement_graphs.py",
    "tests/python/gpu/placement_runtime.py",
    "tests/python/gpu/placed.py",
    "tests/python/gpu/entering.py",
    "tests/python/gpu/captures.py",
    "tests/python/gpu/curves.py",
    "tests/python/gpu/reserved.py",
    "tests/python/gpu/reserved_clients.py",
    "tests/python/gpu/reserved_programs.py",
    "tests/python/gpu/reserved_in_python.py",
    "tests/python/gpu/reserve/common.cuh",
    "tests/python/gpu/reserve/contexts.cu",
    "tests/python/gpu/reserve/costs.cu",
    "tests/python/gpu/reserve/graphs.cu",
    "tests/python/gpu/reserve/memory.cu",
    "tests/python/gpu/reserve/order.cu",
    "tests/python/gpu/reserve/rate.cu",
    "tests/python/gpu/reserve/replays.cu",
    "tests/python/gpu/reserve/reset.cu",
    "tests/python/gpu/reserve/threads.cu",
    "tests/python/gpu/exits.py",
    "tests/python/gpu/libraries.py",
    "tests/python/gpu/measurements.py",
    "tests/python/gpu/memory.py",
    "tests/python/gpu/harness.py",
    "tests/python/gpu/probe.py",
    "tests/python/gpu/kernels.py",
    "tests/python/gpu/stamped.py",
    "tests/python/gpu/workloads.py",
    "tests/python/gpu/persistent.py",
    "tests/python/gpu/compiling.py",
    "tests/python/gpu/distributed.py",
    "tests/python/gpu/run_programs.py",
    "tests/python/gpu/sglang_shares.py",
    "tests/python/gpu/sglang_urgent.py",
    "tests/python/gpu/tuning.py",
    "tests/python/gpu/pages.py",
    "tests/python/gpu/pairs.py",
    "tests/python/gpu/judge.py",
    "green-ctx-torch/examples/everything.py",
    "green-ctx-torch/examples/decode_beside_prefill.py",
    "green-ctx-torch/examples/serving_loop.py",
];

/// The pages whose Python code `pages.py` runs.
const PAGES: &[&str] = &[
    "README.md",
    "green-ctx-torch/README.md",
    "docs/curve.md",
    "docs/reserve.md",
    "docs/pytorch.md",
    "docs/pytorch-libraries.md",
    "docs/nccl.md",
];

/// Builds everything in release mode and writes the folder anew.
pub(crate) fn run() -> Result<(), Failure> {
    // Check first that nothing is missing: the builds take a quarter of an hour.
    find_sources()?;
    let environment = module::make_environment()?;

    let folder = workspace_root().join("target/gpu-bundle");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .map_err(|error| Failure::io("emptying", &folder, error))?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| Failure::io("creating", &folder, error))?;

    let built = build()?;
    let mut total = 0;
    for (name, kind, file) in PARTS {
        let (_, _, source) = built
            .iter()
            .find(|(built_name, built_kind, _)| built_name == name && built_kind == kind)
            .ok_or_else(|| Failure::new(format!("cargo built no {kind} {name}")))?;
        total += add(&folder, file, source)?;
    }
    let (wheel, torch) = (wheel::build(&environment)?, folder.join(TORCH));
    std::fs::create_dir_all(&torch).map_err(|error| Failure::io("creating", &torch, error))?;
    let file = wheel.file_name().unwrap_or_default().to_string_lossy();
    total += add(&torch, &file, &wheel)?;
    for script in SCRIPTS {
        let (_, file) = script.rsplit_once('/').unwrap_or_default();
        total += add(&torch, file, &workspace_root().join(script))?;
    }
    for page in PAGES {
        let path = folder.join("pages").join(page);
        let parent = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).map_err(|error| Failure::io("creating", parent, error))?;
        total += add(&folder.join("pages"), page, &workspace_root().join(page))?;
    }
    write_script(&folder)?;
    if total > LIMIT {
        return Err(Failure::new(format!("the bundle has {total} bytes, the limit is {LIMIT}")));
    }
    println!("{}: {:.1} MiB", folder.display(), total as f64 / f64::from(1 << 20));
    Ok(())
}

/// Fails if a target or a script does not exist under its name.
fn find_sources() -> Result<(), Failure> {
    let metadata = Metadata::read()?;
    let targets: Vec<_> = metadata.members().flat_map(|package| &package.targets).collect();
    for (name, kind, _) in PARTS {
        let is_part = |target: &&Target| target.name == *name && target.kind == [*kind];
        if !targets.iter().any(is_part) {
            return Err(Failure::new(format!("no package has a {kind} named {name}")));
        }
    }
    for script in SCRIPTS {
        let path = workspace_root().join(script);
        std::fs::metadata(&path).map_err(|error| Failure::io("reading", &path, error))?;
    }
    Ok(())
}

/// Copies a file into the bundle, and returns its size in bytes.
fn add(folder: &Path, file: &str, source: &Path) -> Result<u64, Failure> {
    let target = folder.join(file);
    let size = std::fs::copy(source, &target)
        .map_err(|error| Failure::io("copying to", &target, error))?;
    println!("{:>6.1} MiB  {file}", size as f64 / f64::from(1 << 20));
    Ok(size)
}

/// Builds all targets, and returns each executable with its target's name and kind.
fn build() -> Result<Vec<(String, String, PathBuf)>, Failure> {
    let mut executables = Vec::new();
    for arguments in [
        "build --release --bins",
        "build --release --example cudarc_gemm --example 00-everything --example in_front",
        "test --release --no-run --test hardware",
        "bench --no-run --bench calls",
    ] {
        let mut command = cargo();
        command
            .args(arguments.split(' '))
            .args(["--workspace", "--exclude", "xtask", "--all-features"])
            // Debug information is most of a binary, and not needed on the GPU host.
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env("CARGO_PROFILE_BENCH_STRIP", "symbols");
        executables.extend(artifacts(&mut command)?.iter().filter_map(executable));
    }
    Ok(executables)
}

/// Returns the executable in one of cargo's messages.
fn executable(message: &Value) -> Option<(String, String, PathBuf)> {
    let path = message.get("executable")?.as_str()?;
    let target = message.get("target")?;
    let name = target.get("name")?.as_str()?;
    let kind = target.get("kind")?.get(0)?.as_str()?;
    Some((name.to_owned(), kind.to_owned(), PathBuf::from(path)))
}

/// Writes the script, which contains the commit for the names of the results, and the processor that it is for.
fn write_script(folder: &Path) -> Result<(), Failure> {
    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(workspace_root())
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    let script = include_str!("bundle/run.sh").replace("@COMMIT@", &commit);
    let script = script.replace("@HOST@", std::env::consts::ARCH);
    let path = folder.join("run.sh");
    std::fs::write(&path, script).map_err(|error| Failure::io("writing", &path, error))?;
    make_executable(&path)
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| Failure::io("marking as executable", path, error))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<(), Failure> {
    Ok(())
}

//! NVIDIA's crate `cuda-core`, with this project's package for it. No other command checks the package's lints and
//! documentation, because it is outside of the workspace.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Bench, DEFAULT, NEWER, answers, succeed};
use crate::regen::headers;
use crate::{Failure, cargo, workspace_root};

const MANIFEST: &str = "green-ctx/cuda-core/Cargo.toml";

/// The folder that the package is built in.
const BUILD: &str = "target/clients-cuda-core";

/// The folder that cuda-core takes for a CUDA toolkit.
const TOOLKIT: &str = "target/clients-cuda-toolkit";

/// The part of cuRAND's header that cuda-core needs to compile. The package of the pinned headers does not contain
/// this header, and the tests call no function of cuRAND.
const CURAND: &str = "\
#include <cuda.h>
#include <stddef.h>
typedef enum curandStatus { CURAND_STATUS_NOT_INITIALIZED = 101 } curandStatus_t;
typedef enum curandRngType { CURAND_RNG_PSEUDO_DEFAULT = 100 } curandRngType_t;
typedef struct curandGenerator_st *curandGenerator_t;
curandStatus_t curandCreateGenerator(curandGenerator_t *, curandRngType_t);
curandStatus_t curandDestroyGenerator(curandGenerator_t);
curandStatus_t curandSetStream(curandGenerator_t, CUstream);
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t, unsigned long long);
curandStatus_t curandGenerateUniform(curandGenerator_t, float *, size_t);
curandStatus_t curandGenerateUniformDouble(curandGenerator_t, double *, size_t);
curandStatus_t curandGenerateNormal(curandGenerator_t, float *, size_t, float, float);
curandStatus_t curandGenerateNormalDouble(curandGenerator_t, double *, size_t, double, double);
";

/// The second number of the oldest Rust version that cuda-core supports: 1.89.
const OLDEST_RUST: u32 = 89;

/// Returns what cuda-core's build needs and this machine lacks.
pub(super) fn missing() -> Option<String> {
    if rust_version().is_some_and(|second| second < OLDEST_RUST) {
        return Some(format!("Rust 1.{OLDEST_RUST} or newer was not found"));
    }
    if !answers(OsStr::new("cc"), &["--version"]) {
        return Some("cc was not found".to_owned());
    }
    if std::env::var_os("LIBCLANG_PATH").is_none() {
        return Some("LIBCLANG_PATH is not set to the folder of libclang.so".to_owned());
    }
    headers::locate(None).err().map(|failure| failure.to_string())
}

/// Returns the second number of the version of Rust.
fn rust_version() -> Option<u32> {
    let output = cargo().arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).split('.').nth(1)?.parse().ok()
}

impl Bench {
    /// Checks the package, and runs its tests, also under a reserve, and its example.
    pub(super) fn cuda_core(&self) -> Result<(), Failure> {
        succeed(cargo().args(["fmt", "--check", "--manifest-path", MANIFEST]))?;
        let lints = self.with_package(&["clippy", "--quiet", "--all-targets"])?;
        succeed(&mut with_arguments(lints, &["-D", "warnings"]))?;
        let mut documentation = self.with_package(&["doc", "--quiet", "--no-deps"])?;
        succeed(documentation.env("RUSTDOCFLAGS", "-D warnings"))?;
        self.cuda_core_on(&[DEFAULT, NEWER], &[])?;
        // The rests of both devices, and the streams that otherwise end with the primary context.
        let left = ["green_contexts: 2", "primary_retains: 2", "streams"];
        let under_a_reserve = Bench { has_partitions: true, ..self.reserving()? };
        under_a_reserve.cuda_core_on(&[DEFAULT], &left)?;
        // Its contexts stay for the next partitions, which its process does not create.
        let mut example = self.with_package(&["test", "--quiet", "--doc"])?;
        succeed(example.env("GREEN_CTX_SIM", DEFAULT))
    }

    fn cuda_core_on(&self, specs: &[&str], leaves: &[&str]) -> Result<(), Failure> {
        for spec in specs {
            let mut tests = self.with_package(&["test", "--test", "partitions"])?;
            self.check_memory(&mut tests);
            let mut tests = with_arguments(tests, &["--test-threads=1"]);
            self.run_on(spec, tests.env("GREEN_CTX_SIM_DEVICES", "2"), leaves)?;
        }
        Ok(())
    }

    /// Returns a task of cargo for the package.
    fn with_package(&self, task: &[&str]) -> Result<Command, Failure> {
        let mut command = cargo();
        command.args(task).args(["--locked", "--manifest-path", MANIFEST]);
        command.arg("--target-dir").arg(workspace_root().join(BUILD));
        command.env("CUDA_TOOLKIT_PATH", toolkit()?);
        command.env("BINDGEN_EXTRA_CLANG_ARGS", builtin_headers()?);
        self.load_library(&mut command);
        Ok(command)
    }
}

/// Adds arguments for the program that cargo runs.
fn with_arguments(mut command: Command, arguments: &[&str]) -> Command {
    command.arg("--").args(arguments);
    command
}

/// Makes the folder with the headers, and returns its path. Files that are up to date stay as they are, because cargo
/// would otherwise generate the bindings again.
fn toolkit() -> Result<PathBuf, Failure> {
    let toolkit = workspace_root().join(TOOLKIT);
    let include = toolkit.join("include");
    fs::create_dir_all(&include).map_err(|error| Failure::io("creating", &include, error))?;
    let driver = headers::locate(None)?.join("cuda.h");
    let driver = fs::read(&driver).map_err(|error| Failure::io("reading", &driver, error))?;
    for (name, text) in [("cuda.h", driver.as_slice()), ("curand.h", CURAND.as_bytes())] {
        let path = include.join(name);
        if fs::read(&path).is_ok_and(|old| old == text) {
            continue;
        }
        fs::write(&path, text).map_err(|error| Failure::io("writing", &path, error))?;
    }
    Ok(toolkit)
}

/// Returns bindgen's option for the compiler's own headers (`stddef.h`), which Python's libclang lacks.
fn builtin_headers() -> Result<String, Failure> {
    let mut ask = Command::new("cc");
    let answer = ask.arg("-print-file-name=include").output().map_err(Failure::from_display)?;
    Ok(format!("-isystem {}", String::from_utf8_lossy(&answer.stdout).trim()))
}

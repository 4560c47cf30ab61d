//! The Python module `green_ctx_torch`: installed as users install it, tested, and type-checked.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::{Bench, DEFAULT, RESERVED_OF_TORCH, answers, astray, races, succeed};
use crate::sim_lib::torch;
use crate::{Failure, workspace_root};

/// The virtual environment with the packages in `REQUIREMENTS`.
const ENVIRONMENT: &str = "target/python-venv";
const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// The folder that `pip install` builds.
pub(crate) const PROJECT: &str = "green-ctx-torch";

/// Objects that stay while the module is loaded: contexts that the next partitions on the same SMs reuse; their
/// streams, since torch may use a stream that it has seen at any later time; the kernel that the tests launch;
/// the allocator's pool with its stream and context; and the memory that is written behind graphs. The tests
/// limit the number of streams.
const LEAVES: &[&str] = &[
    "green_contexts",
    "streams",
    "libraries",
    "memory_pools: 1",
    "primary_retains: 1",
    "allocations: 1",
    "allocated_bytes: 4096",
];

/// The programs of `exits.py` that always end in the same way. The others need many runs.
const ENDINGS: &str = "work runs,a captured graph runs,plans live,a pool lives,sys.exit in a block,an exception in a block,at exit a block,a generator stays in a block,a tensor of a block goes last";

/// Returns the environment's Python, or what the environment lacks.
pub(crate) fn environment() -> Result<Environment, String> {
    let environment = Environment::at(ENVIRONMENT);
    match environment.can_run("import greenlet, maturin, mypy, pytest, ziglang") {
        true => Ok(environment),
        false => Err(format!(
            "{ENVIRONMENT} does not exist or lacks a package of {REQUIREMENTS}; run \
             `python3 -m venv {ENVIRONMENT}` and `{ENVIRONMENT}/bin/pip install -r {REQUIREMENTS}`"
        )),
    }
}

/// Returns the environment's Python. Creates the environment if it does not exist, for builds that need it.
pub(crate) fn make_environment() -> Result<Environment, Failure> {
    if let Ok(environment) = environment() {
        return Ok(environment);
    }
    println!("installing {REQUIREMENTS} into {ENVIRONMENT}");
    install(ENVIRONMENT, &["--requirement", REQUIREMENTS])?;
    environment().map_err(Failure::new)
}

/// Creates an environment with packages.
pub(crate) fn install(folder: &str, packages: &[&str]) -> Result<(), Failure> {
    let mut create = Command::new("python3");
    succeed(create.args(["-m", "venv", "--clear", folder]).current_dir(workspace_root()))?;
    let mut install = Environment::at(folder).python();
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    succeed(install.args(packages))
}

/// A Python virtual environment.
pub(crate) struct Environment {
    binaries: PathBuf,
}

impl Environment {
    /// Returns the environment in a folder of the workspace, whether it exists or not.
    pub(crate) fn at(folder: &str) -> Environment {
        Environment { binaries: workspace_root().join(folder).join("bin") }
    }

    /// Returns whether the environment exists and its Python runs this program without an error.
    pub(crate) fn can_run(&self, program: &str) -> bool {
        answers(self.binary("python").as_os_str(), &["-c", program])
    }

    /// Returns the folder of the installed packages.
    pub(crate) fn site_packages(&self) -> Result<PathBuf, Failure> {
        let path = "import sysconfig; print(sysconfig.get_path('platlib'), end='')";
        let output = self.python().args(["-c", path]).output().map_err(Failure::from_display)?;
        Ok(String::from_utf8_lossy(&output.stdout).as_ref().into())
    }

    fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }

    /// Returns a command for Python that also finds the environment's programs, as in an activated environment.
    pub(crate) fn python(&self) -> Command {
        let mut command = Command::new(self.binary("python"));
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.binaries.clone()).chain(std::env::split_paths(&inherited));
        if let Ok(path) = std::env::join_paths(paths) {
            command.env("PATH", path);
        }
        command.current_dir(workspace_root()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Installs the module: a wheel, or a folder that pip builds.
    pub(crate) fn install(&self, source: &Path) -> Result<(), Failure> {
        /// maturin copies what it builds to one place.
        static BUILDS: Mutex<()> = Mutex::new(());
        let _one_at_a_time = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = self.python();
        command
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            // With the environment's maturin, whose version is fixed.
            .args(["--no-deps", "--no-build-isolation", "--force-reinstall"])
            .arg(source)
            .env("MATURIN_PEP517_ARGS", "--profile dev --locked");
        succeed(&mut command)
    }
}

impl Bench {
    /// Tests the module with a version of PyTorch, on two devices. Programs that end and torch's CUDA sanitizer, which
    /// checks the order of all work, are tested with one version only.
    pub(super) fn torch(&self, version: &str, spec: &str) -> Result<(), Failure> {
        let environment = torch::environment(version).map_err(Failure::new)?;
        environment.install(&self.module)?;
        let folders = torch::build(version, &self.library)?;
        let run = |arguments: &[&str], variables: &[(&str, &str)]| {
            let mut command = environment.python();
            command
                .args(["-X", "faulthandler"])
                .args(arguments)
                .env("LD_LIBRARY_PATH", &folders)
                .env("GREEN_CTX_SIM_DEVICES", "2")
                .envs(variables.iter().copied())
                // torch's Python code takes seconds to compile.
                .env_remove("PYTHONDONTWRITEBYTECODE");
            let report = self.report(spec, &mut command)?;
            let is_reserved = variables.iter().any(|(name, _)| *name == "GREEN_CTX_RESERVE");
            let astray = match is_reserved {
                true => astray(&report, RESERVED_OF_TORCH, true),
                false => Vec::new(),
            };
            match races(&report).chain(astray).next() {
                Some(wrong) => Err(Failure::new(format!("PyTorch {version}: {wrong}"))),
                None => Ok(()),
            }
        };
        run(&["tests/python/gpu/placement.py"], &[])?;
        if version == torch::VERSIONS[0] {
            run(&["tests/python/gpu/placement.py"], &[("TORCH_CUDA_SANITIZER", "1")])?;
            let reserved = RESERVED_OF_TORCH.to_string();
            run(&["tests/python/gpu/placement.py"], &[("GREEN_CTX_RESERVE", &reserved)])?;
            run(&["tests/python/gpu/exits.py", "--times", "1", "--only", ENDINGS], &[])?;
        }
        Ok(())
    }

    /// Tests this project's own module, without torch.
    pub(super) fn module(&self) -> Result<(), Failure> {
        let environment = environment().map_err(Failure::new)?;
        if self.module.is_file() {
            // pip builds from this on machines for which there is no wheel.
            let mut sdist = environment.python();
            sdist.args(["-m", "maturin", "sdist", "--manifest-path"]);
            sdist.args(["green-ctx-torch/python/Cargo.toml", "--out", "target/sdist"]);
            succeed(&mut sdist)?;
        }
        environment.install(&self.module)?;

        let mut tests = environment.python();
        tests
            .args(["-X", "faulthandler", "-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
            .arg("tests/python");
        self.load_library(&mut tests);
        self.run_on(DEFAULT, &mut tests, LEAVES)?;

        let project = workspace_root().join(PROJECT);
        let check = |arguments: &[&str]| {
            let mut command = environment.python();
            command.arg("-m").args(arguments);
            self.load_library(&mut command);
            // mypy looks for its configuration in the current folder.
            succeed(command.current_dir(&project))
        };
        check(&[
            "mypy",
            "python/green_ctx_torch",
            "python/green_ctx_command",
            "python/green_ctx_sglang",
        ])?;
        check(&[
            "mypy.stubtest",
            "green_ctx_torch",
            "--mypy-config-file",
            "pyproject.toml",
            "--allowlist",
            "stubtest-allowlist.txt",
            // With Python 3.10 some entries of the list are unused.
            "--ignore-unused-allowlist",
        ])
    }
}

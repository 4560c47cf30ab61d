//! The Python module `green_ctx_torch`: installed as users install it, tested, and type-checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Bench, DEFAULT, answers, succeed};
use crate::{Failure, wheel, workspace_root};

/// The virtual environment with the packages in `REQUIREMENTS`.
const ENVIRONMENT: &str = "target/python-venv";
const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// The folder that `pip install` builds.
const PROJECT: &str = "green-ctx-torch";

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

/// Returns the environment's Python, or what the environment lacks.
pub(crate) fn environment() -> Result<Environment, String> {
    let binaries = workspace_root().join(ENVIRONMENT).join("bin");
    let environment = Environment { binaries };
    let needed = "import maturin, mypy, pytest, ziglang";
    match answers(environment.binary("python").as_os_str(), &["-c", needed]) {
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
    let mut create = Command::new("python3");
    succeed(create.args(["-m", "venv", ENVIRONMENT]).current_dir(workspace_root()))?;
    let python = workspace_root().join(ENVIRONMENT).join("bin/python");
    let mut install = Command::new(python);
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--requirement", REQUIREMENTS])
        .current_dir(workspace_root());
    succeed(&mut install)?;
    environment().map_err(Failure::new)
}

/// A Python virtual environment.
pub(crate) struct Environment {
    binaries: PathBuf,
}

impl Environment {
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
    fn install(&self, source: &Path) -> Result<(), Failure> {
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
    /// Tests this project's own module, without torch.
    pub(super) fn module(&self) -> Result<(), Failure> {
        let environment = environment().map_err(Failure::new)?;
        match self.takes_wheel {
            true => {
                // pip builds from this on machines for which there is no wheel.
                let mut sdist = environment.python();
                sdist.args(["-m", "maturin", "sdist", "--manifest-path"]);
                sdist.args(["green-ctx-torch/python/Cargo.toml", "--out", "target/sdist"]);
                succeed(&mut sdist)?;
                environment.install(&wheel::build(&environment)?)?;
            }
            false => environment.install(&workspace_root().join(PROJECT))?,
        }

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
        check(&["mypy", "python/green_ctx_torch", "python/green_ctx_sglang"])?;
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

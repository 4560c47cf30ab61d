//! The Python module `green_ctx_torch`: installed as users install it, tested, and its types checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Bench, DEFAULT, answers, succeed};
use crate::{Failure, wheel, workspace_root};

/// The environment that holds what the file lists.
const ENVIRONMENT: &str = "target/python-venv";
const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// The folder that `pip install` is given.
const PROJECT: &str = "green-ctx-torch";

/// What stays for as long as the module is loaded: contexts for the next partitions of the same SMs,
/// their streams, since torch may use to the end what it has seen, the kernel that the tests launch,
/// the allocator's pool with its stream and context, and the memory that is set behind graphs. The tests bound
/// how many streams there are.
const LEAVES: &[&str] = &[
    "green_contexts",
    "streams",
    "libraries",
    "memory_pools: 1",
    "primary_retains: 1",
    "allocations: 1",
    "allocated_bytes: 4096",
];

/// The environment's Python, or what it lacks.
pub(crate) fn environment() -> Result<Environment, String> {
    let binaries = workspace_root().join(ENVIRONMENT).join("bin");
    let environment = Environment { binaries };
    let needed = "import maturin, mypy, pytest, ziglang";
    match answers(environment.binary("python").as_os_str(), &["-c", needed]) {
        true => Ok(environment),
        false => Err(format!(
            "{ENVIRONMENT} is not there, or lacks something of {REQUIREMENTS}; \
             `python3 -m venv {ENVIRONMENT}` and `{ENVIRONMENT}/bin/pip install -r {REQUIREMENTS}` \
             make it"
        )),
    }
}

/// The environment's Python, made where it is not there, for a build that has no use without it.
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

/// A virtual environment for Python.
pub(crate) struct Environment {
    binaries: PathBuf,
}

impl Environment {
    fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }

    /// A Python whose programs are found too, as when the environment is activated.
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

    /// Puts the module into the environment: a wheel, or a folder that pip builds one from.
    fn install(&self, source: &Path) -> Result<(), Failure> {
        let mut command = self.python();
        command
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            // With the environment's maturin, of a version that is known.
            .args(["--no-deps", "--no-build-isolation", "--force-reinstall"])
            .arg(source)
            .env("MATURIN_PEP517_ARGS", "--profile dev --locked");
        succeed(&mut command)
    }
}

impl Bench {
    /// This project's own module, without torch.
    pub(super) fn module(&self) -> Result<(), Failure> {
        let environment = environment().map_err(Failure::new)?;
        match self.takes_wheel {
            true => environment.install(&wheel::build(&environment)?)?,
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
            // mypy finds its configuration in the current folder.
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
            // Python 3.10 has less to differ from.
            "--ignore-unused-allowlist",
        ])
    }
}

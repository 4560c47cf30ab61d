//! The Python module `green_ctx_torch`: installed as users install it, tested, and its types checked.

use std::path::PathBuf;
use std::process::Command;

use super::{Bench, DEFAULT, Outcome, answers, succeed};
use crate::{Failure, workspace_root};

/// The environment that holds what tests/python/requirements.txt lists.
const ENVIRONMENT: &str = "target/python-venv";

/// The folder that `pip install` is given.
const PROJECT: &str = "green-ctx-torch";

/// What stays for as long as the module is loaded: contexts for the next partitions of the same SMs,
/// the kernel that the tests launch, and the allocator's pool with its stream and context.
const LEAVES: &[&str] =
    &["green_contexts", "libraries", "memory_pools: 1", "streams: 1", "primary_retains: 1"];

/// The environment's Python, or what it lacks.
pub(crate) fn environment() -> Result<Environment, String> {
    let binaries = workspace_root().join(ENVIRONMENT).join("bin");
    let environment = Environment { binaries };
    let needed = "import maturin, mypy, pytest, ziglang";
    match answers(environment.binary("python").as_os_str(), &["-c", needed]) {
        true => Ok(environment),
        false => Err(format!(
            "{ENVIRONMENT} is not there, or lacks something of tests/python/requirements.txt; \
             CONTRIBUTING.md says how to make it"
        )),
    }
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

    /// Builds the module and puts it into the environment.
    fn install(&self) -> Result<(), Failure> {
        let mut command = self.python();
        command
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            // With the environment's maturin, of a version that is known.
            .args(["--no-deps", "--no-build-isolation", "--force-reinstall"])
            .arg(workspace_root().join(PROJECT))
            .env("MATURIN_PEP517_ARGS", "--profile dev --locked");
        succeed(&mut command)
    }
}

impl Bench {
    /// This project's own module, without torch.
    pub(super) fn module(&self) -> Outcome {
        let environment = match environment() {
            Ok(environment) => environment,
            Err(missing) => return Ok(Some(missing)),
        };
        environment.install()?;

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
        check(&["mypy", "python/green_ctx_torch"])?;
        check(&["mypy.stubtest", "green_ctx_torch", "--mypy-config-file", "pyproject.toml"])?;
        Ok(None)
    }
}

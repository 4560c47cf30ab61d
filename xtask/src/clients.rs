//! `cargo xtask clients`: programs without knowledge of the simulator, run on its `libcuda.so.1`.

mod cuda_core;
pub(crate) mod module;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::regen::headers;
use crate::sim_lib::torch;
use crate::{Failure, artifacts, cargo, sim_lib, wheel, workspace_root};

/// The virtual environment with the packages in `REQUIREMENTS`.
const ENVIRONMENT: &str = "target/clients-venv";
const REQUIREMENTS: &str = "tests/clients/python/requirements.txt";

/// The driver that most clients run on, and a newer one with more functions.
const DEFAULT: &str = "h200@13.0";
const NEWER: &str = "h200@13.1";

/// The answers of real hardware with the driver that most clients run on.
const RECORD: &str = "tests/conformance/records/h200-driver-580.159.04.jsonl";

/// The number of SMs that clients run under a reserve of. PyTorch's checks need more, for three partitions at a time.
const RESERVED: u32 = 16;
const RESERVED_OF_TORCH: u32 = 48;

/// The memory checker. It fails on every invalid access and on every definite leak.
const VALGRIND: &str = "valgrind --quiet --leak-check=full --show-leak-kinds=definite \
                        --errors-for-leak-kinds=definite --error-exitcode=9";

/// Options for clients that cannot run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fail if something that a client needs is missing, instead of skipping the client, and test the Python
    /// module as the wheel for other machines.
    #[arg(long)]
    pub(crate) complete: bool,
}

/// A client program, or a group of them.
struct Client {
    name: &'static str,
    /// Returns what the client needs and this machine lacks, or `None`.
    missing: fn() -> Option<String>,
    run: fn(&Bench) -> Result<(), Failure>,
}

/// Groups of clients that run at the same time.
const GROUPS: [&[Client]; 3] = [CLIENTS, MODULE, TORCH];

const CLIENTS: &[Client] = &[
    Client { name: "library.py", missing: no_python, run: Bench::library },
    Client { name: "the conformance cases", missing: || None, run: Bench::conformance },
    Client { name: "the C program", missing: no_c, run: Bench::c },
    Client {
        name: "cuda.core with NVRTC",
        missing: no_packages,
        // cuda.core never unloads a library.
        run: |bench| bench.script("cuda_core.py", &["libraries"]),
    },
    Client {
        name: "numba-cuda",
        missing: no_packages,
        run: |bench| bench.script("numba_kernels.py", &[]),
    },
    Client {
        name: "Triton",
        missing: no_triton,
        // Triton keeps the modules of its kernels, and never releases the primary context.
        run: |bench| bench.script("triton_kernels.py", &["modules", "primary_retains"]),
    },
    Client { name: "cudarc", missing: || None, run: Bench::cudarc },
    Client { name: "cuda-core", missing: cuda_core::missing, run: Bench::cuda_core },
    Client { name: "a reserve", missing: || None, run: Bench::reserve },
    Client { name: "green-ctx run", missing: no_python, run: Bench::programs },
    Client {
        name: "these clients under a reserve",
        missing: || no_c().or_else(no_triton),
        run: Bench::under_a_reserve,
    },
];

const MODULE: &[Client] = &[Client {
    name: "the Python module green_ctx_torch",
    missing: || module::environment().err(),
    run: Bench::module,
}];

const TORCH: &[Client] = &[
    Client {
        name: "PyTorch 2.11.0",
        missing: || torch::environment("2.11.0").err(),
        run: |bench| bench.torch("2.11.0", DEFAULT),
    },
    Client {
        name: "PyTorch 2.15.0",
        missing: || torch::environment("2.15.0").err(),
        run: |bench| bench.torch("2.15.0", NEWER),
    },
];

/// Fails with `--complete` if this machine lacks something. Called before anything is built.
pub(crate) fn check(options: &Options) -> Result<(), Failure> {
    if !options.complete {
        return Ok(());
    }
    let cannot: Vec<String> = GROUPS
        .into_iter()
        .flatten()
        .filter_map(|client| Some(format!("{} cannot run: {}", client.name, (client.missing)()?)))
        .collect();
    if cannot.is_empty() { Ok(()) } else { Err(Failure::new(cannot.join("\n"))) }
}

/// Builds the library and runs every client on it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    check(options)?;
    let bench = Bench {
        library: sim_lib::build()?,
        front: None,
        has_partitions: false,
        folder: workspace_root().join("tests/clients"),
        module: match options.complete {
            true => wheel::build(&module::make_environment()?)?,
            false => workspace_root().join(module::PROJECT),
        },
    };
    let run_each = |clients: &[Client]| {
        let run_one = |client: &Client| match (client.missing)() {
            Some(missing) => {
                println!("skipped: {}: {missing}", client.name);
                Ok(1)
            }
            None => (client.run)(&bench).map(|()| 0),
        };
        clients.iter().try_fold(0, |left_out, client| Ok(left_out + run_one(client)?))
    };
    let run_each = &run_each;
    let left_out = thread::scope(|scope| {
        let groups = GROUPS.map(|group| scope.spawn(move || run_each(group)));
        let panicked = |_| Err(Failure::new("a client panicked".to_owned()));
        groups
            .into_iter()
            .map(|group| group.join().unwrap_or_else(panicked))
            .sum::<Result<u32, _>>()
    });
    match left_out? {
        0 => println!("all clients ran"),
        left_out => {
            println!("{left_out} clients were skipped; CONTRIBUTING.md lists what they need")
        }
    }
    Ok(())
}

fn no_python() -> Option<String> {
    let there = answers(OsStr::new("python3"), &["--version"]);
    (!there).then(|| "python3 was not found".to_owned())
}

/// Returns a message if the environment lacks a package.
fn no_packages() -> Option<String> {
    let needed = "import cuda.core, numba_cuda, triton\n\
                  from cuda.pathfinder import load_nvidia_dynamic_lib as load\n\
                  load('nvrtc')";
    let there = answers(python().as_os_str(), &["-c", needed]);
    (!there).then(|| {
        format!(
            "{ENVIRONMENT} does not exist or lacks a package of {REQUIREMENTS}; run \
             `python3 -m venv {ENVIRONMENT}` and \
             `{ENVIRONMENT}/bin/pip install --no-deps -r {REQUIREMENTS}`"
        )
    })
}

/// Triton compiles its launcher with the machine's C compiler.
fn no_triton() -> Option<String> {
    if !answers(OsStr::new("cc"), &["--version"]) {
        return Some("cc was not found".to_owned());
    }
    let header = "import sysconfig; open(sysconfig.get_path('include') + '/Python.h')";
    no_packages().or_else(|| {
        let there = answers(python().as_os_str(), &["-c", header]);
        (!there).then(|| "Python.h was not found; install a package such as python3-dev".to_owned())
    })
}

/// Returns the environment's Python.
fn python() -> PathBuf {
    workspace_root().join(ENVIRONMENT).join("bin/python")
}

fn no_c() -> Option<String> {
    let absent = |tool: &&&str| !answers(OsStr::new(tool), &["--version"]);
    if let Some(tool) = ["cc", "valgrind"].iter().find(absent) {
        return Some(format!("{tool} was not found"));
    }
    headers::locate(None).err().map(|failure| failure.to_string())
}

/// The paths and options that the clients need.
#[derive(Clone)]
struct Bench {
    /// The simulated `libcuda.so.1`.
    library: PathBuf,
    /// The folder with a library in front of it that reserves [`RESERVED`] SMs.
    front: Option<PathBuf>,
    /// Whether the clients use green-ctx, whose partitions may be on reserved SMs.
    has_partitions: bool,
    /// The folder of the clients.
    folder: PathBuf,
    /// The Python module: its folder, or the wheel for other machines.
    module: PathBuf,
}

impl Bench {
    /// Returns these paths with a library in front that reserves SMs.
    fn reserving(&self) -> Result<Bench, Failure> {
        let front = workspace_root().join("target/reserve");
        let mut write = cargo();
        write.args(["run", "--quiet", "-p", "green-ctx-reserve", "--example", "in_front", "--"]);
        self.load_library(&mut write);
        succeed(write.arg(&front).arg(RESERVED.to_string()))?;
        Ok(Bench { front: Some(front), ..self.clone() })
    }

    /// Runs clients with a library in front that reserves SMs. The report must say that no kernel left its SMs.
    fn under_a_reserve(&self) -> Result<(), Failure> {
        let bench = self.reserving()?;
        bench.c_on(&[DEFAULT])?;
        bench.names()?;
        for (script, leaves) in [
            ("cuda_core.py", &["libraries"] as &[_]),
            ("numba_kernels.py", &[]),
            ("triton_kernels.py", &["modules", "primary_retains"]),
        ] {
            bench.script_on(&[DEFAULT], script, leaves)?;
        }
        Bench { has_partitions: true, ..bench }.cudarc_on(&[DEFAULT])
    }

    /// Calls the library directly from plain Python.
    fn library(&self) -> Result<(), Failure> {
        let mut command = self.on_library(OsStr::new("python3"));
        command.arg(self.folder.join("python/library.py"));
        succeed(&mut command)
    }

    /// Runs every case that was recorded on hardware, and this project's own command.
    fn conformance(&self) -> Result<(), Failure> {
        let driver = format!("cuda:{}", self.library.display());
        let ours = self.library.with_file_name("record.jsonl");
        let (conformance, green_ctx) = programs()?;
        let mut command = Command::new(conformance);
        command
            .args(["--driver", &driver, "--out"])
            .arg(&ours)
            .env("GREEN_CTX_SIM", DEFAULT)
            .current_dir(workspace_root());
        // The program prints each case that it runs. A failing case is reported below.
        succeed(command.stderr(Stdio::null()))?;
        let (recorded, answered) = (cases(&workspace_root().join(RECORD))?, cases(&ours)?);
        // Cases that were not recorded on hardware cannot differ.
        let answered: HashSet<&str> = answered.lines().collect();
        if let Some(differs) = recorded.lines().find(|case| !answered.contains(case)) {
            return Err(Failure::new(format!(
                "{}: differs from the record: {differs}",
                ours.display()
            )));
        }
        println!("conformance: {} cases as recorded", recorded.lines().count());

        let mut command = Command::new(green_ctx);
        command
            .args(["--driver", &driver, "verify", "--counts", "16,24"])
            .current_dir(workspace_root());
        self.run_on(NEWER, &mut command, &[])
    }

    /// Runs a script in the environment's Python. `leaves` names the objects that its packages never free.
    fn script(&self, script: &str, leaves: &[&str]) -> Result<(), Failure> {
        self.script_on(&[DEFAULT, NEWER], script, leaves)
    }

    fn script_on(&self, specs: &[&str], script: &str, leaves: &[&str]) -> Result<(), Failure> {
        for spec in specs {
            let mut command = self.on_library(python().as_os_str());
            // For a crash in native code, prints the Python line that led there.
            command.args(["-X", "faulthandler"]).arg(self.folder.join("python").join(script));
            self.run_on(spec, &mut command, leaves)?;
        }
        Ok(())
    }

    /// Runs a C program that uses NVIDIA's header, under a memory checker.
    fn c(&self) -> Result<(), Failure> {
        let program = self.c_on(&[DEFAULT, NEWER])?;
        // Without the wait between the two partitions, the report must name the race.
        let report = self.report(DEFAULT, self.on_library(program.as_os_str()).arg("unordered"))?;
        let races: Vec<&str> = races(&report).collect();
        println!("{}", races.join("\n"));
        match races.as_slice() {
            [race] if race.matches("a memset").count() == 2 => Ok(()),
            _ => Err(Failure::new(format!("the report does not name the missing wait:\n{report}"))),
        }
    }

    fn c_on(&self, specs: &[&str]) -> Result<PathBuf, Failure> {
        let include = headers::locate(None)?;
        let reserved = if self.front.is_some() { RESERVED } else { 0 };
        let program = self.library.with_file_name(format!("partitions-{reserved}"));
        let mut compile = Command::new("cc");
        compile
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-isystem"])
            .arg(include)
            .arg(format!("-DSMS=(132 - {reserved})"))
            .arg(self.folder.join("c/partitions.c"))
            .arg(&self.library)
            .arg("-o")
            .arg(&program);
        succeed(&mut compile)?;
        for spec in specs {
            let mut checker = VALGRIND.split_whitespace();
            let mut command = self.on_library(OsStr::new(checker.next().unwrap_or_default()));
            command.args(checker).arg(&program);
            self.run_on(spec, &mut command, &[])?;
        }
        Ok(program)
    }

    /// Runs a C program that defines the names of the driver's functions.
    fn names(&self) -> Result<(), Failure> {
        let program = self.library.with_file_name("names");
        let mut compile = Command::new("cc");
        compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-rdynamic"]);
        succeed(compile.arg(self.folder.join("c/names.c")).arg("-o").arg(&program).arg("-ldl"))?;
        succeed(self.on_library(program.as_os_str()).env("GREEN_CTX_SIM", DEFAULT))
    }

    /// Runs the Rust crate cudarc, under the memory checker if there is one.
    fn cudarc(&self) -> Result<(), Failure> {
        self.cudarc_on(&[DEFAULT, NEWER])
    }

    fn cudarc_on(&self, specs: &[&str]) -> Result<(), Failure> {
        for spec in specs {
            let mut command = cargo();
            command
                .args(["test", "--locked", "--manifest-path"])
                .arg(self.folder.join("cudarc/Cargo.toml"))
                .arg("--target-dir")
                .arg(workspace_root().join("target/clients-cudarc"));
            self.check_memory(&mut command);
            // One test at a time: a wait in one test would invalidate the capture of another.
            command.args(["--", "--test-threads=1"]).env("GREEN_CTX_SIM_DEVICES", "2");
            self.load_library(&mut command);
            self.run_on(spec, &mut command, &[])?;
        }
        Ok(())
    }

    /// Makes cargo run tests under the memory checker, if there is one.
    fn check_memory(&self, command: &mut Command) {
        // With two libraries of one name, glibc's loader itself loses a list, which the checker would report.
        if self.front.is_none() && answers(OsStr::new("valgrind"), &["--version"]) {
            let runner = format!("target.'cfg(all())'.runner = '{VALGRIND}'");
            command.args(["--config", &runner]);
        }
    }

    /// Runs the tests of the library in front of the driver, with the simulated one behind it.
    fn reserve(&self) -> Result<(), Failure> {
        let mut command = cargo();
        command.args(["test", "--quiet", "-p", "green-ctx", "--features", "reserve"]);
        command.args(["--test", "reserved"]);
        self.load_library(&mut command);
        command.env("GREEN_CTX_SIM", DEFAULT);
        succeed(&mut command)
    }

    /// Runs the tests of `green-ctx run`, whose programs load the library.
    fn programs(&self) -> Result<(), Failure> {
        let mut command = cargo();
        command.args(["test", "--quiet", "-p", "green-ctx-cli", "--test", "cli", "run::"]);
        command.args(["--", "--include-ignored"]);
        self.load_library(&mut command);
        succeed(command.env("GREEN_CTX_SIM", DEFAULT))
    }

    /// Returns a command for a program that loads the library.
    fn on_library(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        self.load_library(&mut command);
        command
    }

    /// Makes a program load the library.
    fn load_library(&self, command: &mut Command) {
        let folder = self.library.parent().unwrap_or(Path::new(".")).as_os_str();
        self.load_from(command, folder);
        command.current_dir(workspace_root());
    }

    /// Makes a program load libraries from these folders, after the library in front.
    fn load_from(&self, command: &mut Command, folders: &OsStr) {
        let mut path = OsString::new();
        if let Some(front) = &self.front {
            path.push(front);
            path.push(":");
            command.env("RESERVED_SMS", RESERVED.to_string());
        }
        path.push(folders);
        command.env("LD_LIBRARY_PATH", path);
    }

    /// Runs a program on a driver. It must succeed, order its memory accesses, and leave no objects except
    /// those in `leaves` (a name, or a name with its count).
    fn run_on(&self, spec: &str, command: &mut Command, leaves: &[&str]) -> Result<(), Failure> {
        let report = self.report(spec, command)?;
        // The rest, and its reference to the primary context.
        let rest: &[&str] = match self.front {
            Some(_) => &["green_contexts: 1", "primary_retains: 1"],
            None => &[],
        };
        let expected = |name, line: &str| {
            let is_in = |leaves: &[&str]| {
                leaves.contains(&name) || leaves.contains(&line.trim_end_matches(','))
            };
            is_in(leaves) || is_in(rest)
        };
        let left =
            left(&report).filter(|(name, line)| !expected(*name, line)).map(|(_, line)| line);
        let astray = match self.front {
            Some(_) => astray(&report, RESERVED, self.has_partitions),
            None => Vec::new(),
        };
        let wrong: Vec<&str> = races(&report).chain(left).chain(astray).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{command:?} has races, left objects, or left its SMs:\n{}",
            wrong.join("\n")
        )))
    }

    /// Runs a program on a driver, and returns the library's report.
    fn report(&self, spec: &str, command: &mut Command) -> Result<String, Failure> {
        static REPORTS: AtomicU32 = AtomicU32::new(0);
        let name = format!("report-{}", REPORTS.fetch_add(1, Ordering::Relaxed));
        let path = self.library.with_file_name(name);
        // Remove an earlier report, which must not pass for this program's.
        let _ = std::fs::remove_file(&path);
        succeed(command.env("GREEN_CTX_SIM", spec).env("GREEN_CTX_SIM_REPORT", &path))?;
        std::fs::read_to_string(&path)
            .map_err(|error| Failure::io("reading the report", &path, error))
    }
}

/// Builds and returns this project's programs. The profile and the features of the whole workspace are the same as for
/// the tests; others would compile most dependencies again.
fn programs() -> Result<(PathBuf, PathBuf), Failure> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--profile", "test", "--workspace", "--all-features"]);
    command.args(["--bin", "conformance", "--bin", "green-ctx"]);
    let messages = artifacts(&mut command)?;
    let program = |name: &str| {
        let of_name = messages.iter().find(|message| message["target"]["name"] == name);
        let path = of_name.and_then(|message| message["executable"].as_str());
        path.map(PathBuf::from).ok_or_else(|| Failure::new(format!("cargo built no {name}")))
    };
    Ok((program("conformance")?, program("green-ctx")?))
}

/// Returns the lines of a record that are cases. The first line describes the device.
fn cases(record: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(record)
        .map_err(|error| Failure::io("reading the record", record, error))?;
    Ok(text.split_once('\n').map(|(_, cases)| cases.to_owned()).unwrap_or_default())
}

/// Returns the lines of a report about unordered memory accesses.
fn races(report: &str) -> impl Iterator<Item = &str> {
    report.lines().filter(|line| line.starts_with("race: "))
}

/// Returns the lines of a report about contexts in which a kernel ran on a reserved SM of a simulated H200. If the program
/// has partitions, these are the primary contexts and those with as many SMs as the rest. A program without kernels shows
/// nothing, so this is wrong too.
fn astray(report: &str, reserved: u32, has_partitions: bool) -> Vec<&str> {
    let rest = format!(" of {} SMs: ", 132 - reserved);
    // A unit has two neighbours in each of four groups of 16.
    let is_reserved =
        move |id: &str| id.parse::<u32>().is_ok_and(|id| id < 64 && id % 16 < reserved / 4);
    let ran: Vec<&str> = report.lines().filter(|line| line.starts_with("ran: ")).collect();
    if ran.is_empty() {
        return vec!["no kernel ran"];
    }
    let is_wrong = |line: &&str| {
        let ids = line.rsplit(": ").next().unwrap_or_default();
        let may_not = !has_partitions || line.contains(&rest) || line.contains(" primary context ");
        may_not && ids.split(' ').any(is_reserved)
    };
    ran.into_iter().filter(is_wrong).collect()
}

/// Returns the lines of a report about objects that were left, with the names of the objects.
fn left(report: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = report.lines().skip_while(|line| !line.starts_with("Live")).skip(1);
    lines.take_while(|line| !line.starts_with('}')).map(str::trim).filter_map(|line| {
        let (name, count) = line.split_once(": ")?;
        (count != "0,").then_some((name, line))
    })
}

/// Returns whether a program exists and succeeds with these arguments.
pub(crate) fn answers(program: &OsStr, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub(crate) fn succeed(command: &mut Command) -> Result<(), Failure> {
    let status = command
        .status()
        .map_err(|error| Failure::new(format!("{command:?} could not be run: {error}")))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("{command:?} failed: {status}")))
    }
}

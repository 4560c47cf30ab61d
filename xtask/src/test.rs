//! `cargo xtask test`: the README's test command, and the tests that a filter means.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::clients;
use crate::metadata::{Metadata, Target};
use crate::{Failure, cargo};

#[derive(clap::Args)]
pub(crate) struct Selection {
    /// Run only the Rust tests whose path contains this, such as `plans` or `ledger::share`, and no clients
    #[arg(conflicts_with = "complete")]
    filter: Option<String>,
    #[command(flatten)]
    clients: clients::Options,
}

/// Runs unit, integration and documentation tests of every crate with every feature, and the clients of the
/// simulated `libcuda.so.1`.
pub(crate) fn run(options: &Selection) -> Result<(), Failure> {
    if let Some(filter) = &options.filter {
        return filtered(filter);
    }
    clients::check(&options.clients)?;
    let status = cargo()
        .args(["test", "--workspace", "--all-features"])
        .status()
        .map_err(|error| Failure::new(format!("cargo could not be run: {error}")))?;
    if !status.success() {
        return Err(Failure::new("tests failed".to_owned()));
    }
    clients::run(&options.clients)
}

/// Runs the tests whose path contains a text. Builds only the programs in which there may be such a test.
fn filtered(filter: &str) -> Result<(), Failure> {
    let metadata = Metadata::read()?;
    let (programs, of_clients) = programs(&metadata, filter)?;
    let (mut passed, mut failed, mut ignored, mut ends_well) = (0, 0, 0, true);
    for (package, names) in programs {
        let mut command = cargo();
        command.args(["test", "--all-features", "--package", package]);
        command.args(names).args(["--", filter]).stdout(Stdio::piped());
        let no_cargo = |error| Failure::new(format!("cargo could not be run: {error}"));
        let mut child = command.spawn().map_err(no_cargo)?;
        let lines = child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines());
        let lines = lines.map_while(Result::ok).inspect(|line| println!("{line}"));
        let counts = counts(lines);
        passed += counts[0];
        failed += counts[1];
        ignored += counts[2];
        ends_well &= child.wait().map_err(no_cargo)?.success();
    }
    if ends_well && passed + failed == 0 {
        return Err(Failure::new(match ignored {
            0 if !of_clients.is_empty() => format!(
                "no test ran: `cargo xtask clients` runs the tests of {}, on the simulated libcuda.so.1",
                of_clients.join(", ")
            ),
            0 => format!(
                "no test has a path that contains {filter:?}; a path is like `ledger::share::tests::name`, without \
                 the package, and CONTRIBUTING.md has the commands for one package, its documentation and Python"
            ),
            _ => "no test ran: the lines above say what runs these".to_owned(),
        }));
    }
    if failed == 0 && !ends_well {
        return Err(Failure::new("a program of tests was not built, or ended early".to_owned()));
    }
    println!("{passed} tests passed, {failed} failed, {ignored} ignored");
    if ends_well { Ok(()) } else { Err(Failure::new("tests failed".to_owned())) }
}

/// A package, and the arguments that select one of its programs.
type Program<'a> = (&'a str, Vec<&'a str>);

/// Returns the programs in which there may be a test whose path contains a text, and the names of those that only
/// `cargo xtask clients` runs.
fn programs<'a>(
    metadata: &'a Metadata,
    filter: &str,
) -> Result<(Vec<Program<'a>>, Vec<&'a str>), Failure> {
    let (mut programs, mut of_clients) = (Vec::new(), Vec::new());
    for package in metadata.members() {
        for target in &package.targets {
            let names = match target.kind.first().map_or("", String::as_str) {
                "test" => vec!["--test", &target.name],
                "lib" | "rlib" | "cdylib" | "proc-macro" => vec!["--lib"],
                "bin" => vec!["--bin", &target.name],
                _ => continue,
            };
            if !may_contain(target, filter)? {
                continue;
            }
            if target.test {
                programs.push((package.name.as_str(), names));
            } else if names[0] == "--test" {
                of_clients.push(target.name.as_str());
            }
        }
    }
    Ok((programs, of_clients))
}

/// Returns how many tests of a program passed, failed and were ignored. The program's last line says so, such as
/// "test result: ok. 3 passed; 0 failed; 1 ignored; …". A test may print such a line of a program that it runs.
fn counts(lines: impl Iterator<Item = String>) -> [usize; 3] {
    let last = lines.filter(|line| !line.is_empty()).last().unwrap_or_default();
    let counts = last.strip_prefix("test result: ").unwrap_or_default();
    [" passed", " failed", " ignored"].map(|what| {
        let before = counts.split_once(what).map_or("", |(before, _)| before);
        before.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
    })
}

/// Returns whether a program may have a test whose path contains a text.
fn may_contain(target: &Target, filter: &str) -> Result<bool, Failure> {
    let main = &target.src_path;
    // Otherwise, it is a program of one file.
    let has_folder = ["lib.rs", "main.rs"].iter().any(|name| main.ends_with(name));
    let root = main.parent().filter(|_| has_folder);
    any_path(root.unwrap_or(main), root, &|path| path.contains(filter))
}

/// Returns whether `is_it` is true for the path of a function in a file, or in the files of a folder, that have tests.
/// The path follows from the file's name, as modules usually have it, a module within the file, and the function's name.
fn any_path(
    file: &Path,
    root: Option<&Path>,
    is_it: &dyn Fn(&str) -> bool,
) -> Result<bool, Failure> {
    let failure = |error| Failure::io("reading", file, error);
    if file.is_dir() {
        for entry in file.read_dir().map_err(failure)? {
            if any_path(&entry.map_err(failure)?.path(), root, is_it)? {
                return Ok(true);
            }
        }
    }
    if file.extension().is_none_or(|extension| extension != "rs") {
        return Ok(false);
    }
    let text = std::fs::read_to_string(file).map_err(failure)?;
    if !text.contains("test") {
        return Ok(false);
    }
    let within = root.and_then(|root| file.strip_prefix(root).ok()).unwrap_or(Path::new(""));
    let module = within.with_extension("").to_string_lossy().replace('/', "::");
    let module = ["lib", "main", "mod"].iter().fold(&*module, |module, name| {
        module.strip_suffix(name).map_or(module, |outer| outer.trim_end_matches(':'))
    });
    let named = |keyword: &str| -> Vec<String> {
        let begins = text.lines().filter_map(|line| Some(line.split_once(keyword)?.1));
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        begins.map(|rest| rest.chars().take_while(|letter| is_part(*letter)).collect()).collect()
    };
    let inner = named("mod ");
    let mut modules = inner.iter().map(|name| format!("{module}::{name}::")).collect::<Vec<_>>();
    modules.push(format!("{module}::"));
    let functions = named("fn ");
    Ok(modules.iter().any(|module| functions.iter().any(|name| is_it(&format!("{module}{name}")))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_clients_are_not_run() {
        let metadata = Metadata::read().expect("cargo metadata");
        let simulated = ("green-ctx", vec!["--test", "simulated"]);
        let (found, of_clients) = programs(&metadata, "percentages").expect("sources");
        assert!(found.contains(&simulated), "{found:?}");
        assert!(!found.iter().any(|(_, names)| names.contains(&"reserved")), "{found:?}");
        assert_eq!(of_clients, ["reserved"]);
    }

    #[test]
    fn results_that_a_test_prints_do_not_count() {
        let printed = "running 2 tests\n\
                       test a ... FAILED\n\
                       test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n\
                       test b ... ok\n\n\
                       test result: FAILED. 1 passed; 1 failed; 3 ignored; 0 measured\n\n";
        assert_eq!(counts(printed.lines().map(str::to_owned)), [1, 1, 3]);
        assert_eq!(counts(std::iter::once("error: no such test".to_owned())), [0; 3]);
    }
}

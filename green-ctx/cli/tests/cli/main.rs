//! The command `green-ctx` as a user runs it, on the simulated H200.

mod curve;
mod driver;
mod fields;
mod info;
mod pages;
mod process;
mod refusals;
#[cfg(target_os = "linux")]
mod run;
mod split;
mod tune;
mod verify;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const DRIVER: &str = r#""driver":{"kind":"simulated","version":"13.0","profile":"h200"}"#;
const DEVICE: &str = concat!(
    r#""device":{"ordinal":0,"name":"NVIDIA H200","#,
    r#""sm_count":132,"compute_capability":"9.0"}"#
);

/// The note on standard error with `--csv`.
const SIMULATED: &str = "note: this is a simulation, and no GPU was used\n";

/// The result of running the command.
struct Run {
    status: i32,
    out: String,
    err: String,
}

impl Run {
    fn of(output: Output) -> Run {
        Run {
            // A command without a status was ended by a signal, which no test expects.
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("output is text"),
            err: String::from_utf8(output.stderr).expect("errors are text"),
        }
    }

    fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "one object on one line: {}", self.out);
        serde_json::from_str(&self.out).expect("output is JSON")
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_green-ctx"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Run {
    Run::of(command(arguments).output().expect("the command starts"))
}

/// Runs the command with a simulated driver.
fn simulated(arguments: &[&str]) -> Run {
    run(&[&["--driver", "sim"], arguments].concat())
}

/// An empty folder for one test, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("green-ctx-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path of plain characters").to_owned()
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).expect("the folder is there").next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns whether this machine has an NVIDIA driver. Tests that need a machine without one are skipped and say so.
fn driver_is_here(test: &str) -> bool {
    let answer = run(&["--driver", "cuda", "--json", "info"]).json();
    // `cuda` never selects the simulated driver.
    assert_ne!(answer["driver"]["kind"], "simulated");
    let missing = answer["error"]["kind"] == "no_driver";
    if !missing {
        println!("skipped {test}: this machine has an NVIDIA driver");
    }
    !missing
}

/// Runs with and without `--json`, compares the status, the kind and a part of the message, and returns the error.
#[track_caller]
fn refused(arguments: &[&str], status: i32, kind: &str, part: &str) -> Value {
    let answer = run(arguments);
    assert_eq!((answer.status, answer.out.as_str()), (status, ""), "{}", answer.err);
    assert!(answer.err.starts_with("error: "), "{}", answer.err);
    assert!(answer.err.contains(part), "{part:?} is not in: {}", answer.err);

    let answer = run(&[&["--json"], arguments].concat());
    assert_eq!((answer.status, answer.err.as_str()), (status, ""), "{}", answer.out);
    let error = answer.json()["error"].clone();
    let message = error["message"].as_str().expect("a message").to_owned();
    assert!(message.contains(part), "{part:?} is not in: {message}");
    assert!(!message.contains('\n') && !message.starts_with("error"), "{message}");
    // The whole object in order, except for the figures of a shortage.
    let expected = format!(r#"{{"error":{{"kind":"{kind}","message":{}"#, error["message"]);
    let rest = answer.out.trim_end().strip_prefix(expected.as_str()).expect("kind and message");
    match error.get("shortage") {
        Some(_) => assert!(rest.starts_with(r#","shortage":{"within":"#), "{rest}"),
        None => assert_eq!(rest, "}}"),
    }
    error
}

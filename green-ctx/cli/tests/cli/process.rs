//! Help, options, and output that cannot be written.

use std::fs::File;
use std::process::Stdio;

use serde_json::Value;

use crate::{Folder, Run, SIMULATED, command, run, simulated};

#[test]
fn help_and_version_are_printed_as_ever() {
    for arguments in [&["--help"][..], &["verify", "--help"], &["--json", "split", "--help"]] {
        let answer = run(arguments);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""));
        for line in ["Exit status:", "  1  verification failed", "  3  no usable driver"] {
            assert!(answer.out.contains(line), "{line}\n{}", answer.out);
        }
    }
    let answer = run(&["--version"]);
    assert_eq!(answer.out, format!("green-ctx {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn options_stand_before_and_after_the_command() {
    let before = run(&["--driver", "sim", "--device", "0", "--json", "split", "--counts", "8"]);
    let after = run(&["split", "--counts", "8", "--json", "--device", "0", "--driver", "sim"]);
    assert_eq!((before.status, before.out), (after.status, after.out));
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let mut child = command(&["--driver", "sim", "verify", "--counts", "16"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let answer = Run::of(child.wait_with_output().expect("the command ends"));
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
}

#[test]
fn the_help_says_what_shares_are() {
    for command in ["split", "verify"] {
        let answer = run(&[command, "--help"]);
        for line in [
            "  A floor is the SMs that no other group may use. A ceiling is the maximum number of SMs of a group.",
            "    16..48   floor 16, ceiling 48; also written 16..=48",
            "    25%      25 % of the SMs, exclusive; 25%.., ..75% and 16..50% work too",
            "  green-ctx verify --group decode=32.. --group prefill=..100 --svg shares.svg",
        ] {
            assert!(answer.out.lines().any(|printed| printed == line), "{line}\n{}", answer.out);
        }
        assert!(answer.out.contains("\"error\" also has \"shortage\""), "{}", answer.out);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_reported() {
    for arguments in [
        &["--driver", "sim", "info"][..],
        &["--driver", "sim", "info", "--json"],
        &["--help"],
        &["verify", "-h"],
        &["--version"],
    ] {
        let Ok(full) = File::options().write(true).open("/dev/full") else {
            println!("skipped: this system has no /dev/full");
            return;
        };
        let answer = Run::of(command(arguments).stdout(full).output().expect("the command starts"));
        assert_eq!(answer.status, 2, "{arguments:?}");
        assert!(answer.err.starts_with("error: cannot write the output\n"), "{}", answer.err);
    }
}

#[test]
fn completions_are_scripts_of_the_shell() {
    for (shell, words) in
        [("bash", "complete -F"), ("zsh", "#compdef green-ctx"), ("fish", "complete -c green-ctx")]
    {
        let answer = run(&["completions", shell]);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""));
        assert!(
            answer.out.contains(words) && answer.out.contains("--counts") || shell == "fish",
            "{}",
            answer.out
        );
    }
    // Jobs, goals, ways and simulated GPUs, though other values are accepted too.
    let script = run(&["completions", "fish"]).out;
    for word in ["attention", "makespan", "keep:", "sequential", "sim:thor"] {
        assert!(script.contains(word), "{word} is not completed");
    }
    assert!(!run(&["tune", "--help"]).out.contains("possible values"));
    // Every state of bash's script has its case.
    let script = run(&["completions", "bash"]).out;
    let states = script.split("cmd=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let states: Vec<&str> = states.map(|(state, _)| state).filter(|it| !it.is_empty()).collect();
    assert!(states.len() > 4, "{script}");
    for state in states {
        assert!(script.contains(&format!("        {state})\n")), "{state} has no case");
    }
    assert_eq!(run(&["completions", "tcsh"]).status, 2);
}

/// The same list as `--json` has.
#[test]
fn every_table_is_there_as_csv() {
    let all = [
        (&["info"][..], "devices"),
        (&["split", "--group", "a=16..", "--group", "b=..64"], "groups"),
        (&["verify", "--counts", "16,24"], "partitions"),
        (&["curve", "--job", "gemm", "--sms", "16"], "points"),
        (&["tune", "--job", "gemm", "--job", "copy", "--budget", "1"], "arms"),
    ];
    for (arguments, list) in all {
        let csv = simulated(&[arguments, &["--csv"]].concat());
        assert!(csv.status == 0 && csv.err.starts_with(SIMULATED), "{arguments:?}: {}", csv.err);
        let json = simulated(&[arguments, &["--json"]].concat()).json();
        let rows = json[list].as_array().expect(list);
        let columns: Vec<&str> = csv.out.lines().next().expect("a header").split(',').collect();
        for row in rows {
            let row = row.as_object().expect("an object");
            assert!(row.keys().all(|key| columns.contains(&key.as_str())), "{columns:?}");
        }
        assert_eq!(csv.out.lines().count(), rows.len() + 1, "{arguments:?}");
        let help = run(&[arguments[0], "--help"]).out;
        for key in keys(&json) {
            let is_there =
                help.split(|it: char| !it.is_alphanumeric() && it != '_').any(|word| word == key);
            assert!(is_there, "the help of {} does not have {key}", arguments[0]);
        }
    }
}

#[test]
fn what_is_no_column_of_csv_is_on_standard_error() {
    let mut info = command(&["--driver", "sim", "info", "--csv"]);
    let info = info.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G").output();
    let lines = Run::of(info.expect("the command starts")).err;
    let warning = "warning: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is set: ";
    assert!(lines.starts_with(&format!("{SIMULATED}{warning}")), "{lines}");

    let folder = Folder::new("csv");
    let file = folder.file("outcome.json");
    let jobs = ["--job", "small", "--job", "gemm:8192", "--goal", "keep:small:p99:500us"];
    let tuned = simulated(&[&["tune", "--csv", "--out", &file], &jobs[..]].concat());
    let note = "\nnote: with plain streams, the score was higher than with priorities, small first";
    assert!(tuned.err.starts_with(SIMULATED) && tuned.err.contains(note), "{}", tuned.err);
    assert_eq!(run(&["tune", "--csv", "--show", &file]).err, tuned.err);
    assert_eq!(run(&["info", "--all", "--csv"]).err, "");
}

/// Returns the names of all fields of a value, without those that are data: numbers of SMs, and the names of jobs.
fn keys(value: &Value) -> Vec<String> {
    let is_data = |key: &str| {
        key.starts_with(|it: char| it.is_ascii_digit()) || ["gemm", "copy"].contains(&key)
    };
    match value {
        Value::Array(items) => items.iter().flat_map(keys).collect(),
        Value::Object(fields) => {
            let own = fields.keys().filter(|key| !is_data(key)).cloned();
            own.chain(fields.values().flat_map(keys)).collect()
        }
        _ => Vec::new(),
    }
}

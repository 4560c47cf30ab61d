//! The command line: its output and exit status.

use std::process::{Command, Output};

use green_ctx_conformance::Record;

fn conformance(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_conformance")).args(arguments).output()
}

#[test]
fn bad_usage_is_2() -> std::io::Result<()> {
    for arguments in [
        ["--driver", "opencl"].as_slice(),
        &["--driver", "sim:"],
        &["--case", "no/such-case", "--list"],
        &["--no-such-option"],
    ] {
        let output = conformance(arguments)?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    Ok(())
}

#[test]
fn no_driver_is_3() -> std::io::Result<()> {
    for driver in ["cuda:/no/such/libcuda.so.1", "sim:abacus"] {
        let output = conformance(&["--driver", driver])?;
        assert_eq!(output.status.code(), Some(3), "{driver}");
        assert!(output.stdout.is_empty(), "{driver}");
    }
    Ok(())
}

#[test]
fn the_list_needs_no_driver() -> std::io::Result<()> {
    let output = conformance(&["--driver", "cuda:/no/such/libcuda.so.1", "--list"])?;
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<&str> = text.lines().collect();
    let cases = green_ctx_conformance::all();
    assert_eq!(names, cases.iter().map(|case| case.name()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_final_slash_names_a_topic() -> std::io::Result<()> {
    let output = conformance(&["--list", "--case", "memory/", "--case", "event/elapsed"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().any(|name| name == "memory/free-null"));
    assert!(text.lines().all(|name| name.starts_with("memory/") || name == "event/elapsed"));
    assert!(text.lines().any(|name| name == "event/elapsed"));
    Ok(())
}

/// A case that ends its process is reported as such, and the cases before and after it are answered.
#[test]
fn a_case_that_dies_takes_no_other_with_it() -> Result<(), Box<dyn std::error::Error>> {
    let names = [
        "resource/describe-nothing",
        "split/flags=0-min=0",
        "misuse/double-destroy",
        "misuse/push-context-of-destroyed-green",
        "misuse/ctx-destroy-on-green",
        "graph/child-of-itself",
        "graph/move-with-none-current",
    ];
    let mut arguments = vec!["--driver", "sim:h200@13.0"];
    names.iter().for_each(|name| arguments.extend(["--case", name]));
    let output = conformance(&arguments)?;
    assert_eq!(output.status.code(), Some(0));
    let record = Record::parse(&String::from_utf8(output.stdout)?)?;
    let died = |name: &&&str| record.cases[**name].get("died").is_some();
    let died: Vec<&str> = names.iter().filter(died).copied().collect();
    assert_eq!(died, [names[0], names[5], names[6]]);
    assert_eq!(record.cases.len(), names.len());
    assert_eq!(record.cases[names[4]]["green_destroy"], "CUDA_SUCCESS");
    Ok(())
}

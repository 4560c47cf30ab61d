//! `oracle --program`: jobs that another program runs, and programs that fail.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::{Outcome, bench, file};

const MIXES: [&str; 2] = ["waves:500,reads:300", "waves:200,reads:90"];

/// Measures mixes in a run of a few blocks, whose files are in a folder of this name. The program notes
/// its process ids there.
fn oracle(name: &str, how: &str, mixes: &[&str]) -> std::io::Result<(Output, Vec<u32>)> {
    let folder = file(name);
    // Of the last time, if there was one.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let ids = folder.join("ids");
    let program = format!("{} {} {how}", env!("CARGO_BIN_EXE_modelled-jobs"), ids.display());
    let folder = folder.display().to_string();
    let few = "oracle --driver sim --step 64 --no-priorities --passes 1 --block-ms 1 --blocks 2 --most-blocks 2 \
        --final-ms 1 --goals throughput,least:80:1 --budget 0.5 --program-timeout 1";
    let mut arguments: Vec<&str> = few.split_whitespace().collect();
    arguments.extend(["--out", &folder, "--program", &program]);
    mixes.iter().for_each(|mix| arguments.extend(["--mix", mix]));
    let output = bench(&arguments)?;
    let ids = fs::read_to_string(ids).unwrap_or_default();
    Ok((output, ids.lines().filter_map(|id| id.parse().ok()).collect()))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has_ended(id: &u32) -> bool {
    !Path::new("/proc").join(id.to_string()).exists()
}

fn read(name: &str, mix: &str) -> Result<Value, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&fs::read_to_string(file(name).join(format!("{mix}.json")))?)?)
}

#[test]
fn one_program_runs_all_mixes() -> Outcome {
    let (output, ids) = oracle("program", "", &MIXES)?;
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(ids.len() == 1 && ids.iter().all(has_ended), "{ids:?}");
    // Before the grid, and before the tuner and the comparison of each of two goals.
    let notes = fs::read_to_string(file("program").join("ids"))?;
    assert_eq!(notes.matches("again").count(), MIXES.len() * (1 + 2 * 2));
    for mix in ["waves500-reads300", "waves200-reads90"] {
        let file = read("program", mix)?;
        assert_eq!(file["program"], "made-up jobs 1.0");
        let jobs: Vec<&Value> = file["jobs"].as_array().into_iter().flatten().collect();
        assert_eq!(jobs[0]["name"], *mix.split_once('-').expect("two jobs").0);
        assert!(jobs.iter().all(|job| job["rate"].as_f64() > Some(0.0)));
        for combination in file["combinations"].as_array().expect("combinations") {
            assert_eq!(combination["error"], Value::Null);
            assert!(combination["finalists"].as_array().map(Vec::len) >= Some(2));
        }
    }
    Ok(())
}

#[test]
fn a_program_that_fails_is_an_error_and_leaves_nothing() -> Outcome {
    for (how, words) in [
        (
            "elsewhere",
            "another device, NVIDIA H100 80GB HBM3 with 132 SMs and not NVIDIA H200 with 132",
        ),
        ("chatters", "its line \"Loading jobs ...\" is not understood"),
        ("ends:3", "it has ended with exit status: 7"),
        ("rambles:3", "the other process did not answer"),
        ("stops:3", "it is too hot"),
        ("hangs:3", "it has not answered for 1 s"),
    ] {
        let (output, ids) =
            oracle(&format!("program-{}", how.replace(':', "-")), how, &MIXES[..1])?;
        let error = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{how}: {error}");
        let line =
            error.lines().find(|line| line.starts_with("green-ctx-bench: waves500-reads300: "));
        assert!(line.is_some_and(|line| line.contains(words)), "{how}: {error}");
        assert!(ids.len() == 1 && ids.iter().all(has_ended), "{how}: {ids:?}");
    }
    Ok(())
}

#[test]
fn what_is_refused_leaves_other_mixes_alone() -> Outcome {
    let mixes = ["waves:500,writes", MIXES[1]];
    let (output, ids) = oracle("program-refused", "", &mixes)?;
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("waves500-writes: ") && error.contains("no job is named writes"),
        "{error}"
    );
    assert_eq!(
        read("program-refused", "waves200-reads90")?["combinations"][0]["error"],
        Value::Null
    );
    assert!(ids.iter().all(has_ended), "{ids:?}");
    Ok(())
}

#[test]
fn a_program_that_ended_is_started_for_the_next_goal() -> Outcome {
    // Each job alone and the grid are 29 blocks, and the tuner needs more than there are left.
    let (output, ids) = oracle("program-ended", "ends:40", &MIXES[..1])?;
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let file = read("program-ended", "waves500-reads300")?;
    let combinations = file["combinations"].as_array().expect("combinations");
    assert_eq!(combinations.len(), 2);
    for combination in combinations {
        let error = combination["error"].as_str().unwrap_or_default();
        assert!(error.contains("it has ended with exit status: 7"), "{error}");
    }
    assert!(ids.len() == 2 && ids.iter().all(has_ended), "{ids:?}");
    Ok(())
}

#[test]
fn what_is_no_program_is_an_error() -> Outcome {
    let start = |program: &str| {
        let folder = file("no-program").display().to_string();
        let mix = ["--mix", MIXES[0], "--out", &folder, "--program", program];
        bench(&[&["oracle", "--driver", "sim"], mix.as_slice()].concat())
    };
    let output = start("/no/such/program")?;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("waves500-reads300: /no/such/program: "),
        "{}",
        errors(&output)
    );
    let output = start(" ")?;
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("names no command"), "{}", errors(&output));
    Ok(())
}

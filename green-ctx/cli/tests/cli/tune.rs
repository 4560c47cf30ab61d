//! `green-ctx tune`. Without a GPU it runs in the model, in simulated time.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::{DEVICE, DRIVER, Folder, Run, command, simulated};

const PAIR: [&str; 4] = ["--job", "gemm", "--job", "copy:128"];

/// Tunes two jobs.
fn pair(more: &[&str]) -> Run {
    simulated(&[&["tune"], &PAIR[..], more].concat())
}

/// Returns the keys of an object, in alphabetical order.
fn keys(value: &Value) -> String {
    let keys: BTreeSet<&str> =
        value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.into_iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn tune_prints_exactly_its_object() {
    let answer = pair(&["--json"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    assert!(answer.out.starts_with(&format!("{{{DRIVER},{DEVICE},")), "{}", answer.out);
    let value = answer.json();
    assert_eq!(keys(&value), "arms complete device driver goal jobs notes seconds verdict");
    let verdict = &value["verdict"];
    let all = "arm candidate gain interval kind meets priority rival sentence shares";
    assert_eq!(keys(verdict), all);
    assert_eq!(verdict["kind"], "partition");
    assert!(verdict["gain"].as_f64() >= verdict["interval"][0].as_f64());
    assert!(verdict["shares"]["gemm"].is_string() && verdict["priority"]["copy"].is_i64());
    let sentence = verdict["sentence"].as_str().expect("a sentence");
    assert!(
        sentence.contains("This verdict comes from a model of the jobs, not from a GPU."),
        "{sentence}"
    );
    for job in value["jobs"].as_array().expect("jobs") {
        assert!(job["arrival"]["closed"]["depth"] == 2 && job["rate"].is_f64(), "{job}");
        assert!(job["solo"]["132"].as_f64() > job["solo"]["36"].as_f64());
    }
    let arms = value["arms"].as_array().expect("arms");
    let mut kinds = BTreeSet::new();
    for arm in arms {
        assert!(arm["rates"]["gemm"].is_f64() && arm["blocks"].is_u64(), "{arm}");
        kinds.extend(arm["kind"].as_str());
    }
    assert_eq!(kinds, ["sequential", "streams", "priority", "partition"].into());
    // The model's seed is fixed, so the result is the same.
    assert_eq!(pair(&["--json"]).out, answer.out);
}

#[test]
fn what_was_found_is_kept_drawn_and_shown_again() {
    let folder = Folder::new("tune");
    let names = ["pair.json", "pair.svg", "again.svg", "other.json"];
    let [file, picture, again, other] = names.map(|name| folder.file(name));
    let jobs = ["tune", "--job", "small:16", "--job", "gemm:8192", "--arrival", "small:rate:500"];
    let more = ["--goal", "keep:small:p99:5ms", "--out", &file, "--svg", &picture];
    let limits = ["--leave-out", "sequential", "--leave-out", "priority", "--floor", "small=8"];
    let answer = simulated(&[&jobs[..], &more, &limits, &["--step", "16"]].concat());
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    assert!(answer.out.contains(&format!("outcome  {file}")), "{}", answer.out);
    let drawn = fs::read_to_string(&picture).expect("a picture");
    assert!(roxmltree::Document::parse(&drawn).is_ok() && drawn.contains("small"));
    let shown = simulated(&["tune", "--show", &file, "--svg", &again]);
    assert_eq!(shown.status, 0);
    assert_eq!(fs::read_to_string(&again).expect("a picture"), drawn);
    let kept: Value = serde_json::from_slice(&fs::read(&file).expect("a file")).expect("JSON");
    let limits =
        json!({"step": 16, "floors": {"small": 8}, "left_out": ["sequential", "priority"]});
    assert_eq!(kept["outcome"]["limits"], limits);
    let sentence = kept["outcome"]["verdict"]["sentence"].as_str().expect("a sentence");
    for out in [&answer.out, &shown.out] {
        assert!(sentence.contains("p99 of small") && out.contains(sentence), "{out}");
        assert!(!out.starts_with('\n'), "{out}");
    }
    // If writing is forbidden, no outcome is reported as saved. Otherwise it is saved in the folder of the variable.
    let parent = Path::new(&other).parent().expect("a folder");
    let only = |value: &str| {
        let more = [("GREEN_CTX_TUNE_DIR", parent), ("GREEN_CTX_TUNE_READ_ONLY", value.as_ref())];
        let out = ["--out", "other.json"];
        let mut command = command(&[&["--driver", "sim", "tune"], &PAIR[..], &out].concat());
        Run::of(command.envs(more).output().expect("the command starts"))
    };
    let answer = only("1");
    assert!(
        answer.out.contains("Note: outcome not saved: GREEN_CTX_TUNE_READ_ONLY"),
        "{}",
        answer.out
    );
    assert!(!answer.out.contains("outcome  ") && !Path::new(&other).exists());
    let answer = only("0");
    assert!(answer.out.contains(&format!("outcome  {other}")), "{}", answer.out);
    assert!(Path::new(&other).exists());
    fs::write(&file, "{").expect("it can be written");
    let broken = simulated(&["tune", "--show", &file, "--json"]);
    assert_eq!((broken.status, broken.json()["error"]["kind"].as_str()), (2, Some("usage")));
}

#[test]
#[cfg(unix)]
fn a_picture_does_not_replace_another_file() {
    let folder = Folder::new("same-file");
    let file = folder.file("a.svg");
    let link = folder.file("link");
    // The same file under another name, before and after the file exists.
    std::os::unix::fs::symlink("a.svg", &link).expect("a link");
    let names = [&file, &folder.file("./a.svg"), &link];
    for out in names {
        let answer = pair(&["--out", out, "--svg", &file]);
        assert_eq!((answer.status, answer.out.as_str()), (2, ""), "{out}");
        assert!(answer.err.contains("--out and --svg name the same file"), "{}", answer.err);
        assert!(!Path::new(&file).exists());
    }
    assert_eq!(pair(&["--out", &file]).status, 0);
    let saved = fs::read(&file).expect("an outcome");
    for out in names {
        let shown = simulated(&["tune", "--show", out, "--svg", &file]);
        assert_eq!((shown.status, shown.out.as_str()), (2, ""), "{out}");
        assert!(shown.err.contains("--show and --svg name the same file"), "{}", shown.err);
        assert_eq!(pair(&["--out", out, "--svg", &file]).status, 2);
    }
    assert_eq!(fs::read(&file).expect("an outcome"), saved);
}

#[test]
fn a_bound_that_cannot_be_met_is_status_1() {
    let answer = pair(&["--goal", "keep:gemm:p99:1us"]);
    assert_eq!(answer.status, 1);
    let out = answer.out;
    assert!(out.contains("Nothing meets the bound") && out.contains("p99 of gemm at"), "{out}");
    // A rate that a job cannot keep up with has the same status.
    for json in [&[][..], &["--json"]] {
        let answer = pair(&[&["--arrival", "gemm:rate:54000"], json].concat());
        assert_eq!(answer.status, 1, "{}", answer.err);
        let said = format!("{}{}", answer.out, answer.err);
        assert!(said.contains("gemm cannot keep up: 54000/s requested, "), "{said}");
    }
}

#[test]
fn an_arm_that_may_miss_the_bound_is_left_out() {
    let jobs = ["--job", "small", "--job", "gemm:8192", "--goal", "keep:small:p99:500us"];
    let out = simulated(&[&["tune"], &jobs[..]].concat()).out;
    let rival = "that certainly meets the bound (priorities, small first)";
    let note =
        "Note: with plain streams, the score was higher than with priorities, small first, and";
    assert!(out.contains(rival) && out.contains(note), "{out}");
    let streams = out.lines().find(|line| line.starts_with("plain streams "));
    assert!(streams.is_some_and(|line| line.ends_with(" unsure")), "{out}");
}

#[test]
fn people_get_a_table_and_lines_to_paste() {
    let (few, all) = (pair(&[]).out, pair(&["--all"]).out);
    assert!(all.lines().count() > few.lines().count() + 10);
    for line in few.lines().chain(all.lines()) {
        let is_text = line.contains(". ") || line.contains(": ");
        assert!(is_text || line.chars().count() <= 100, "{line}");
    }
    assert!(few.contains("more arms; --all shows them"), "{few}");
    assert!(few.contains("\nEach job alone, on fewer SMs:\n  gemm scales: on "), "{few}");
    let pasted = few.lines().find_map(|line| line.trim().strip_prefix("command  green-ctx "));
    let arguments: Vec<&str> = pasted.expect("a command").split(' ').collect();
    assert_eq!(simulated(&arguments).status, 0, "{arguments:?}");
    for begins in ["  Rust     device.partition(", "  Python   partition({\"gemm\": "] {
        assert!(few.contains(begins), "{few}");
    }
}

#[test]
fn wrong_requests_say_what_would_be_right() {
    let refused = |arguments: &[&str], words: &str| {
        let answer = simulated(&[&["tune"], arguments].concat());
        assert_eq!((answer.status, answer.out.as_str()), (2, ""), "{arguments:?}");
        assert!(answer.err.contains(words), "{arguments:?}: {}", answer.err);
    };
    for (arguments, words) in [
        (&[][..], "--job"),
        (&["--job", "gemm"], "two to four jobs, not 1; for one job, use curve"),
        (
            &["--job", "gemm", "--job", "gemm"],
            "two jobs are named gemm; give one another size (gemm:SIZE)",
        ),
        (&["--job", "copy:8", "--job", "copy:8"], "two jobs are named copy8; give one another"),
        (&["--job", "gem", "--job", "copy"], "gemm"),
        (&["--job", "gemm:7", "--job", "copy"], "multiple of 64"),
        (&["--job", "gemm", "copy"], "give --job once for each value"),
        (&["--show", "/no/file"], "/no/file"),
        (&["--show", "/no/file", "--goal", "throughput"], "'--goal <GOAL>'"),
        (&["--show", "/no/file", "--step", "8"], "'--step <SMS>'"),
        (&["--show", "/no/file", "--leave-out", "streams"], "'--leave-out <KIND>'"),
    ] {
        refused(arguments, words);
    }
    for (option, value, words) in [
        ("--goal", "best", "throughput"),
        ("--goal", "keep:x:p99:1ms", "the jobs are gemm, copy"),
        ("--arrival", "x:rate:5", "there is no job x"),
        ("--arrival", "gemm", "gemm=closed:2"),
        ("--arrival", "gemm:rate:0", "use more than 0"),
        ("--arrival", "gemm=fast", "rate:1000 or poisson:1000:7, or trace:FILE"),
        ("--arrival", "gemm:trace:/no/file", "/no/file"),
        ("--budget", "0", "use 0.4 s or more"),
        ("--budget", "-1", "a number of seconds, such as 10"),
        ("--floor", "gemm", "JOB=SMS, as in gemm=32"),
        ("--floor", "gemm=200", "add up to 200 SMs, but only 132 SMs"),
        ("--floor", "gemm:200", "add up to 200 SMs, but only 132 SMs"),
        ("--step", "-1", "a whole number of SMs, 1 or more"),
        ("--leave-out", "best", "the kinds are sequential"),
        ("--out", "/no/folder/file", "/no/folder/file"),
    ] {
        refused(&[&PAIR[..], &[option, value]].concat(), words);
    }
}

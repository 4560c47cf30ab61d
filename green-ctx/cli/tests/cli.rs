//! The command `green-ctx`, as its users run it, on the simulated H200.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const DRIVER: &str = r#""driver":{"kind":"simulated","version":"13.0","profile":"h200"}"#;
const DEVICE: &str = concat!(
    r#""device":{"ordinal":0,"name":"NVIDIA H200","#,
    r#""sm_count":132,"compute_capability":"9.0"}"#
);

/// What a run left behind.
struct Run {
    status: i32,
    out: String,
    err: String,
}

impl Run {
    fn of(output: Output) -> Run {
        Run {
            // Without a status the command was ended by a signal, which no test expects.
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

/// Runs with a simulated driver.
fn simulated(arguments: &[&str]) -> Run {
    run(&[&["--driver", "sim"], arguments].concat())
}

/// A folder for one test, empty and removed afterwards.
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

/// Whether this machine has an NVIDIA driver. Tests of its absence are skipped then, and say so.
fn driver_is_here(test: &str) -> bool {
    let answer = run(&["--driver", "cuda", "--json", "info"]).json();
    // Whatever else comes of it, `cuda` is not the simulated driver.
    assert_ne!(answer["driver"]["kind"], "simulated");
    let missing = answer["error"]["kind"] == "no_driver";
    if !missing {
        println!("skipped {test}: this machine has an NVIDIA driver");
    }
    !missing
}

#[test]
fn split_prints_exactly_its_object() {
    for dry_run in [&["--dry-run"][..], &[]] {
        let answer = simulated(&[&["split", "--counts", "16,24", "--json"], dry_run].concat());
        let groups = r#"[{"requested":16,"sm_count":16},{"requested":24,"sm_count":24}]"#;
        let expected = format!(
            "{{{DRIVER},{DEVICE},\"unit\":8,\"groups\":{groups},\"remainder\":{{\"sm_count\":92}}}}\n"
        );
        assert_eq!((answer.status, answer.out, answer.err), (0, expected, String::new()));
    }
}

#[test]
fn split_gives_uneven_rounded_and_fine_groups() {
    let split = |arguments: &[&str]| {
        let answer = simulated(&[&["split", "--json", "--counts"], arguments].concat()).json();
        let given = answer["groups"].as_array().expect("groups").iter();
        let given: Vec<u64> = given.filter_map(|group| group["sm_count"].as_u64()).collect();
        (answer["unit"].clone(), given, answer["remainder"]["sm_count"].clone())
    };
    assert_eq!(split(&["8,24,100"]), (json!(8), vec![8, 24, 100], json!(0)));
    assert_eq!(split(&["17"]), (json!(8), vec![24], json!(108)));
    assert_eq!(split(&["6,7", "--fine"]), (json!(2), vec![6, 8], json!(118)));
    assert_eq!(split(&["16, 24"]), (json!(8), vec![16, 24], json!(92)));
}

#[test]
fn split_prints_a_table() {
    let answer = simulated(&["split", "--counts", "16,17"]);
    let expected = "\
driver  simulated h200, CUDA 13.0
device  0: NVIDIA H200, 132 SMs, compute capability 9.0

group      requested  given
p0                16     16
p1                17     24
remainder          -     92

SMs, in units of 8; given by the driver
";
    assert_eq!((answer.status, answer.out.as_str(), answer.err.as_str()), (0, expected, ""));
    let answer = simulated(&["split", "--counts", "16", "--dry-run"]);
    assert!(answer.out.ends_with("a dry run: nothing was created\n"), "{}", answer.out);
}

#[test]
fn verify_prints_exactly_its_object() {
    let answer = simulated(&["verify", "--counts", "16,24", "--json"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    let value = answer.json();
    let partitions = value["partitions"].as_array().expect("partitions");
    // The times are the run's own, everything else is known.
    let text = |index: usize, name: &str, requested: &str, sm_count: usize| {
        let Value::Object(partition) = &partitions[index] else { panic!("no object") };
        let observed = &partition["observed_sms"];
        let (start, end) = (&partition["start_ns"], &partition["end_ns"]);
        assert_eq!(observed.as_array().map(Vec::len), Some(sm_count), "{name}");
        assert!(start.as_u64() < end.as_u64(), "{name}");
        format!(
            "{{\"name\":\"{name}\",\"requested\":{requested},\"sm_count\":{sm_count},\
             \"observed_sms\":{observed},\"start_ns\":{start},\"end_ns\":{end}}}"
        )
    };
    let partitions =
        [text(0, "p0", "16", 16), text(1, "p1", "24", 24), text(2, "remainder", "null", 92)];
    let expected = format!(
        "{{{DRIVER},{DEVICE},\"partitions\":[{}],\
         \"disjoint\":true,\"concurrent\":true,\"ok\":true}}\n",
        partitions.join(",")
    );
    assert_eq!(answer.out, expected);
    // Recorded on an H200: the first two units of 8.
    let first = [0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51];
    assert_eq!(value["partitions"][0]["observed_sms"], json!(first));
}

#[test]
fn verify_prints_a_table_and_a_verdict() {
    let answer = simulated(&["verify", "--counts", "16,24", "--stay-ms", "2"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    let lines: Vec<&str> = answer.out.lines().collect();
    assert_eq!(lines[0], "driver  simulated h200, CUDA 13.0");
    let row = |index: usize| lines[index].split_whitespace().collect::<Vec<_>>();
    assert_eq!(row(4)[..5], ["p0", "16", "16", "16", "0.000"]);
    assert_eq!(row(4)[6], "0-3,16-19,32-35,48-51");
    assert_eq!(row(5)[..4], ["p1", "24", "24", "24"]);
    assert_eq!(row(6)[..4], ["remainder", "-", "92", "92"]);
    assert_eq!(lines[8..10], ["disjoint            yes", "overlapped in time  yes"]);
    assert!(lines[10].starts_with("verified "), "{}", answer.out);
    assert_eq!(lines.len(), 11);
}

#[test]
fn verify_takes_a_device_apart_into_66_fine_partitions() {
    let folder = Folder::new("fine");
    let picture = folder.file("fine.svg");
    let counts = vec!["2"; 66].join(",");
    let answer = simulated(&["verify", "--counts", &counts, "--fine", "--json", "--svg", &picture]);
    let value = answer.json();
    assert_eq!((answer.status, &value["ok"]), (0, &json!(true)));
    assert_eq!(value["partitions"].as_array().map(Vec::len), Some(66));
    let size = fs::metadata(&picture).expect("the picture").len();
    assert!(size < 200_000, "{size} bytes");
}

#[test]
fn verify_draws_a_picture() {
    let folder = Folder::new("picture");
    let file = folder.file("a.svg");
    // What was there before is replaced, however long it was.
    fs::write(&file, "x".repeat(300_000)).expect("a file to replace");
    let answer = simulated(&["verify", "--counts", "16,24", "--svg", &file]);
    assert_eq!(answer.status, 0, "{}", answer.err);
    assert!(answer.out.ends_with(&format!("picture             {file}\n")), "{}", answer.out);

    let picture = fs::read_to_string(&file).expect("the picture");
    let document = roxmltree::Document::parse(&picture).expect("well-formed XML");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let class = |node: &roxmltree::Node<'_, '_>| node.attribute("class").unwrap_or("").to_owned();
    let map = document.descendants().find(|node| class(node) == "sm-map").expect("a map");
    let labels: Vec<u32> = map
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter_map(|node| node.text()?.parse().ok())
        .collect();
    assert_eq!(labels, (0..132).collect::<Vec<u32>>());
    let bars: Vec<usize> = document
        .descendants()
        .filter(|node| class(node) == "blocks")
        .map(|node| node.children().filter(|child| child.has_tag_name("rect")).count())
        .collect();
    assert_eq!(bars, [16 * 4, 24 * 4, 92 * 4]);
    assert!(picture.contains("3 partitions of NVIDIA H200 on 132 SMs"));
    assert!(picture.contains("simulated h200, CUDA 13.0"));
}

#[test]
fn a_picture_that_cannot_be_written_is_bad_usage() {
    let folder = Folder::new("unwritable");
    let inside = folder.file("missing/a.svg");
    for wrong in [inside.as_str(), folder.0.to_str().expect("plain characters")] {
        let answer = simulated(&["verify", "--counts", "16", "--svg", wrong]);
        assert_eq!((answer.status, answer.out.as_str()), (2, ""));
        assert!(
            answer.err.starts_with(&format!("error: cannot write {wrong}\n")),
            "{}",
            answer.err
        );
    }
    let answer = simulated(&["verify", "--counts", "16", "--json", "--svg", &inside]);
    assert_eq!(answer.json()["error"]["kind"], "io");
    assert!(folder.is_empty());
}

#[test]
fn a_failed_verify_leaves_no_picture_and_keeps_an_older_one() {
    let folder = Folder::new("nothing-left");
    let (new, old) = (folder.file("new.svg"), folder.file("old.svg"));
    assert_eq!(simulated(&["verify", "--counts", "133", "--svg", &new]).status, 2);
    assert!(folder.is_empty());
    fs::write(&old, "older").expect("an older picture");
    assert_eq!(simulated(&["verify", "--counts", "133", "--svg", &old]).status, 2);
    assert_eq!(fs::read_to_string(&old).ok().as_deref(), Some("older"));
}

#[test]
fn info_shows_what_there_is() {
    let answer = simulated(&["info"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    for line in [
        "driver  simulated h200, CUDA 13.0",
        "  answers                  recorded on driver 580.159.04",
        "    recorded               SM ids, splits and clusters: the conformance record",
        "  groups of several units  yes",
        "  structured split         needs CUDA 13.1",
        "device  0: NVIDIA H200",
        "  compute capability       9.0",
        "  memory                   139.8 GiB",
        "  smallest partition       8 SMs",
        "  coarse units             15 of 8 SMs, 1 of 12 SMs",
        "  fine units               66 of 2 SMs",
    ] {
        assert!(answer.out.lines().any(|printed| printed == line), "{line}\n{}", answer.out);
    }
}

#[test]
fn info_tells_the_same_in_json() {
    let value = simulated(&["info", "--json", "--device", "0"]).json();
    assert_eq!(value["driver"], json!({"kind": "simulated", "version": "13.0", "profile": "h200"}));
    let device = &value["devices"][0];
    assert_eq!((&device["sm_count"], &device["alignment"]), (&json!(132), &json!(8)));
    assert_eq!(device["units"]["fine"], json!(vec![2; 66]));
    let abilities = value["abilities"].as_array().expect("abilities");
    let structured = json!({"name": "structured_split", "needs": "13.1", "available": false});
    assert!(abilities.contains(&structured), "{value}");

    assert_eq!((&device["limits_from"], &device["workqueues"]), (&json!("driver"), &Value::Null));

    // An older driver does not tell its minimum, and has no record.
    let value = run(&["info", "--driver", "sim:h200@12.4", "--json"]).json();
    let device = &value["devices"][0];
    assert_eq!(device["min_partition"], json!(8));
    assert_eq!(device["limits_from"], json!("architecture"));
    assert_eq!(value["abilities"][0]["available"], json!(false));
    let provenance = value["provenance"].as_str().expect("a simulated driver's provenance");
    assert!(provenance.starts_with("unrecorded for CUDA 12.4"), "{provenance}");
}

/// A part that nobody recorded says so, and of each group of data where it comes from.
#[test]
fn info_says_what_was_not_recorded() {
    let answer = run(&["info", "--driver", "sim:rtx5080@13.4"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    for line in [
        "driver  simulated rtx5080, CUDA 13.4",
        "  answers                  from documentation, unrecorded",
        "    documented             SM count and GPCs: the RTX Blackwell white paper",
        "  SMs                      84",
        "  coarse units             7 of 8 SMs, 1 of 28 SMs",
    ] {
        assert!(answer.out.lines().any(|printed| printed == line), "{line}\n{}", answer.out);
    }
    assert!(!answer.out.contains("recorded on"), "{}", answer.out);

    let value = run(&["info", "--driver", "sim:l40s@12.4", "--json"]).json();
    assert_eq!(value["provenance"], json!("from documentation, unrecorded"));
    let sources = value["sources"].as_array().expect("sources");
    let origins = sources.iter().filter_map(|source| source["origin"].as_str());
    let origins: std::collections::BTreeSet<&str> = origins.collect();
    assert!(origins.into_iter().eq(["documented", "modelled", "reported"]), "{value}");
    let device = &value["devices"][0];
    assert_eq!((&device["min_partition"], &device["alignment"]), (&json!(4), &json!(2)));
    let sources = simulated(&["info", "--json"]).json()["sources"].clone();
    let first = json!({
        "data": "SM ids, splits and clusters",
        "origin": "recorded",
        "from": "the conformance record",
    });
    assert_eq!(sources[0], first);
}

#[test]
fn other_parts_are_split_and_verified() {
    for (part, counts, given) in [
        ("a100", "6,22", vec![8, 24, 76]),
        ("l40s", "22,40", vec![22, 40, 80]),
        ("rtx5080", "16,40", vec![16, 40, 28]),
        ("thor", "2,8", vec![2, 8, 10]),
    ] {
        let driver = format!("sim:{part}");
        let value = run(&["--driver", &driver, "verify", "--counts", counts, "--json"]).json();
        assert_eq!(value["driver"]["profile"], json!(part));
        let partitions = value["partitions"].as_array().expect("partitions");
        let counts: Vec<&Value> = partitions.iter().map(|part| &part["sm_count"]).collect();
        assert_eq!(counts, given, "{part}");
        assert_eq!(value["ok"], json!(true), "{part}");
    }
}

/// Runs with and without `--json`, and compares status, kind and a part of the message.
#[track_caller]
fn refused(arguments: &[&str], status: i32, kind: &str, part: &str) {
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
    // The whole object, in order.
    let expected = format!(r#"{{"error":{{"kind":"{kind}","message":{}}}}}"#, error["message"]);
    assert_eq!(answer.out.trim_end(), expected);
}

#[test]
fn counts_that_are_none_are_bad_usage() {
    for command in ["split", "verify"] {
        for (counts, part) in [
            ("0", "a group needs at least 1 SM"),
            ("16,0", "invalid value '0'"),
            ("-3", "invalid value '-3'"),
            ("16,-3", "invalid value '-3'"),
            ("abc", "invalid value 'abc'"),
            ("1.5", "a count is a whole number of SMs from 1 on"),
            ("99999999999", "a count is a whole number of SMs from 1 on"),
            ("", "a count is missing"),
            ("16,", "a count is missing"),
            (",", "a count is missing"),
        ] {
            refused(&["--driver", "sim", command, "--counts", counts], 2, "usage", part);
        }
        refused(&["--driver", "sim", command], 2, "usage", "--counts");
    }
}

#[test]
fn splits_that_do_not_fit_are_bad_usage() {
    let forty = vec!["8"; 40].join(",");
    for command in ["split", "verify"] {
        for (counts, part) in [
            ("133", "a group of 133 SMs does not fit: 132 of the device's 132 SMs are free"),
            ("4294967295", "a group of 4294967295 SMs does not fit"),
            ("64,64,64", "3 groups of 64 SMs do not fit, 2 fit"),
            ("128,16", "groups of 128, 16 SMs do not fit, the first 1 fit"),
            (&forty, "40 groups of 8 SMs do not fit, 16 fit"),
        ] {
            let arguments = ["--driver", "sim", command, "--counts", counts];
            refused(&arguments, 2, "invalid_request", part);
        }
    }
    let arguments = ["split", "--dry-run", "--counts", "133", "--driver", "sim"];
    refused(&arguments, 2, "invalid_request", "does not fit");
}

#[test]
fn other_wrong_arguments_are_bad_usage() {
    let none = "there is no device 9; the driver has one, device 0";
    for command in [&["info"][..], &["split", "--counts", "8"], &["verify", "--counts", "8"]] {
        let arguments = [&["--driver", "sim", "--device", "9"], command].concat();
        refused(&arguments, 2, "invalid_request", none);
    }
    refused(&["info", "--device", "-1"], 2, "usage", "invalid value '-1'");
    refused(&["info", "--driver", "nvidia"], 2, "usage", "a driver is auto, cuda, cuda:PATH");
    refused(
        &["info", "--driver", "sim:h201"],
        2,
        "usage",
        "the profiles are a100, b200, h100, h200",
    );
    refused(&["info", "--driver", "sim:h200@9.9"], 2, "usage", "the versions are 12.4");
    let part = "a driver for CUDA 12.5 does not know b200; the first that does is for 12.8";
    refused(&["info", "--driver", "sim:b200@12.5"], 2, "usage", part);
    refused(
        &["info", "--driver", "cuda:"],
        2,
        "usage",
        "the path of the driver library is missing",
    );
    refused(&["paint"], 2, "usage", "unrecognized subcommand 'paint'");
    refused(
        &["--driver", "sim", "verify", "--counts", "8", "--stay-ms", "0"],
        2,
        "usage",
        "invalid value '0' for '--stay-ms",
    );
}

#[test]
fn a_driver_too_old_for_the_request_is_told() {
    let arguments = ["--driver", "sim:h200@12.4", "split", "--counts", "16,24"];
    refused(&arguments, 3, "unsupported", "needs CUDA 12.5, the driver supports 12.4");
    let answer = run(&["--driver", "sim:h200@12.4", "split", "--counts", "8,8", "--json"]);
    assert_eq!((answer.status, &answer.json()["driver"]["version"]), (0, &json!("12.4")));
}

#[test]
fn a_library_that_is_no_driver_is_told() {
    let folder = Folder::new("library");
    let text = folder.file("text.so");
    fs::write(&text, "not a library").expect("a text file");
    let part = format!("{text} is not a library that can be loaded");
    refused(&["--driver", &format!("cuda:{text}"), "info"], 3, "no_driver", &part);
    let missing = folder.file("missing.so");
    let part = format!("no CUDA driver library {missing}");
    refused(&["--driver", &format!("cuda:{missing}"), "info"], 3, "no_driver", &part);
}

#[test]
fn cuda_never_falls_back() {
    if driver_is_here("cuda_never_falls_back") {
        return;
    }
    for command in [&["info"][..], &["split", "--counts", "8"], &["verify", "--counts", "8"]] {
        let arguments = [&["--driver", "cuda"], command].concat();
        refused(&arguments, 3, "no_driver", "no CUDA driver library libcuda.so.1");
    }
    let answer = run(&["--driver", "cuda", "info"]);
    assert!(
        answer.err.starts_with("error: no usable CUDA driver\n  caused by: "),
        "{}",
        answer.err
    );
}

#[test]
fn auto_falls_back_and_says_so() {
    if driver_is_here("auto_falls_back_and_says_so") {
        return;
    }
    let note = "note: no NVIDIA driver found; using the simulated h200, CUDA 13.0\n";
    for command in [&["info"][..], &["split", "--counts", "8"], &["verify", "--counts", "8"]] {
        let answer = run(command);
        assert_eq!((answer.status, answer.err.as_str()), (0, note));
        assert!(answer.out.starts_with("driver  simulated h200, CUDA 13.0\n"), "{}", answer.out);
        let answer = run(&[command, &["--json", "--driver", "auto"]].concat());
        assert_eq!((answer.status, answer.err.as_str()), (0, note));
        assert_eq!(answer.json()["driver"]["kind"], "simulated");
    }
}

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
fn an_output_that_cannot_be_written_is_told() {
    let full = Path::new("/dev/full");
    let Ok(full) = File::options().write(true).open(full) else {
        println!("skipped: this system has no /dev/full");
        return;
    };
    let output = command(&["--driver", "sim", "info"]).stdout(full).output();
    let answer = Run::of(output.expect("the command starts"));
    assert_eq!(answer.status, 2);
    assert!(answer.err.starts_with("error: cannot write the output\n"), "{}", answer.err);
}

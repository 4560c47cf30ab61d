//! The command on the simulated driver: the report, picture and table that it writes, its judgements and exit
//! status. No times are judged.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const ARMS: [&str; 8] =
    ["contexts", "switch", "memory", "launch", "graphs", "moved", "latency", "shares"];

fn bench(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_green-ctx-bench")).args(arguments).output()
}

/// Returns the path of a file that one test uses.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs arms on the simulator, and returns the report's path and content.
fn run(name: &str, arguments: &[&str]) -> Result<(String, Value), Box<dyn std::error::Error>> {
    let path = file(name).display().to_string();
    let base = ["run", "--driver", "sim", "--commit", "abc1234", "--out", &path];
    let output = bench(&[base.as_slice(), arguments].concat())?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    Ok((path, report))
}

fn arm<'a>(report: &'a mut Value, name: &str) -> &'a mut Value {
    let arms = report["arms"].as_array_mut().expect("arms");
    arms.iter_mut().find(|arm| arm["name"] == name).expect("the arm was run")
}

/// Returns the sample or figure of this name.
fn entry<'a>(report: &'a mut Value, arm_name: &str, what: &str, name: &str) -> &'a mut Value {
    let entries = arm(report, arm_name)[what].as_array_mut().expect("a list");
    entries.iter_mut().find(|entry| entry["name"] == name).expect("an entry of this name")
}

#[test]
fn every_arm_runs_and_is_drawn() -> Outcome {
    let (path, mut report) = run("all.json", &["--load", "persistent,waves"])?;
    assert_eq!(report["simulated"], true);
    assert_eq!(report["quick"], true);
    assert_eq!(report["device"], "NVIDIA H200");
    assert_eq!(report["commit"], "abc1234");
    let arms = report["arms"].as_array().expect("arms");
    assert_eq!(arms.iter().map(|arm| &arm["name"]).collect::<Vec<_>>(), ARMS);
    for arm in arms {
        assert_eq!(arm["error"], Value::Null, "{}", arm["name"]);
        for sample in arm["samples"].as_array().expect("samples") {
            let value = |name: &str| sample[name].as_f64().expect("a number");
            assert!(value("count") >= 1.0, "{sample}");
            assert!(value("min") <= value("p50") && value("p50") <= value("p90"), "{sample}");
            assert!(value("p90") <= value("p99") && value("p99") <= value("max"), "{sample}");
        }
    }
    // Figures that are not times have the same values as on a GPU.
    let mut figure = |arm: &str, name: &str| {
        entry(&mut report, arm, "figures", name)["value"].as_f64().expect("a number")
    };
    assert_eq!(figure("memory", "device memory grown"), 0.0);
    assert_eq!(figure("memory", "launches"), 400.0);
    assert_eq!(figure("memory", "launches seen"), 400.0);
    assert_eq!(figure("memory", "launches missing"), 0.0);
    assert_eq!(figure("memory", "launches off their SMs"), 0.0);
    assert_eq!(figure("memory", "contexts made meanwhile"), 0.0);
    assert_eq!(figure("contexts", "made: contexts that the driver made"), 5.0);
    assert_eq!(figure("contexts", "made: device memory lost a partition"), f64::from(4 << 20));
    assert_eq!(figure("contexts", "recycled: contexts that the driver made"), 0.0);
    assert_eq!(figure("contexts", "recycled: device memory lost a partition"), 0.0);
    assert_eq!(figure("moved", "SMs where it was captured"), 132.0);
    assert_eq!(figure("moved", "SMs not its own"), 0.0);
    assert_eq!(figure("moved", "own SMs not used"), 0.0);
    assert_eq!(figure("shares", "shares verified"), 1.0);
    assert_eq!(figure("shares", "SMs of the floor"), 32.0);
    assert_eq!(figure("shares", "blocks of the capped job that did not run"), 0.0);
    assert_eq!(figure("shares", "blocks of the capped job on the floor"), 0.0);
    assert!(figure("latency", "persistent: load alone") > 0.0);
    assert!(figure("latency", "waves: partition, load") > 0.0);

    let picture = file("all.svg").display().to_string();
    assert_eq!(bench(&["plot", &path, "--out", &picture])?.status.code(), Some(0));
    let picture = std::fs::read_to_string(picture)?;
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
    let document = roxmltree::Document::parse(&picture)?;
    let with = |class: &str| {
        document.descendants().filter(|node| node.attribute("class") == Some(class)).count()
    };
    assert_eq!(with("panel"), 4);
    assert_eq!(with("simulated"), 1);
    let is_drawn = |sample: &&Value| {
        !sample["name"].as_str().is_some_and(|name| name.contains("without pause"))
    };
    let drawn: usize = ["contexts", "switch", "graphs", "latency", "shares"]
        .map(|name| {
            arm(&mut report, name)["samples"]
                .as_array()
                .map_or(0, |samples| samples.iter().filter(is_drawn).count())
        })
        .iter()
        .sum();
    assert!(drawn > 35, "{drawn}");
    assert_eq!((with("median"), with("bar"), with("range")), (drawn, drawn, drawn));

    let table = String::from_utf8(bench(&["table", &path])?.stdout)?;
    assert!(table.contains("simulated driver (CUDA 13.0)"));
    for arm in report["arms"].as_array().expect("arms") {
        for entry in ["samples", "figures"].map(|list| arm[list].as_array().expect("a list")) {
            for name in entry.iter().map(|entry| entry["name"].as_str().expect("a name")) {
                assert!(table.contains(&format!("| {name} ")), "{name}");
            }
        }
    }
    Ok(())
}

#[test]
fn simulated_times_and_quick_runs_are_not_judged() -> Outcome {
    let (path, mut report) = run("simulated.json", &["--arms", "launch"])?;
    for why in ["nothing to judge", "too few samples"] {
        let output = bench(&["check", &path])?;
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(why), "{text}");
        report["simulated"] = json!(false);
        std::fs::write(&path, report.to_string())?;
    }
    Ok(())
}

/// The figure behind each goal: its arm, name and key, a value that just holds, and one that does not.
const GOALS: [(&str, &str, &str, f64, f64); 21] = [
    ("switch", "two plans, fences, idle", "p50", 2000.0, 2001.0),
    ("switch", "two plans, fences, idle", "p99", 8000.0, 8001.0),
    ("switch", "two plans, no fences, idle", "p50", 300.0, 301.0),
    ("switch", "two plans, fences, in flight", "p50", 2000.0, 2001.0),
    ("switch", "two plans, fences, in flight", "p99", 8000.0, 8001.0),
    ("switch", "two plans, no fences, in flight", "p50", 300.0, 301.0),
    ("switch", "active plan read", "p50", 20.0, 20.1),
    ("memory", "device memory grown", "value", 0.0, 1.0),
    ("memory", "launches missing", "value", 0.0, 1.0),
    ("memory", "launches off their SMs", "value", 0.0, 1.0),
    ("moved", "numbers that differ", "value", 0.0, 1.0),
    ("moved", "SMs not its own", "value", 0.0, 1.0),
    ("moved", "own SMs not used", "value", 0.0, 1.0),
    ("moved", "moved to captured there", "value", 1.02, 1.021),
    ("latency", "persistent: plain", "p99", 1_000_000.0, 999_000.0),
    ("latency", "persistent: high priority", "p99", 1_000_000.0, 999_000.0),
    ("shares", "decode beside gemm: shares", "p99", 1050.0, 1051.0),
    ("shares", "decode beside gemm: shares, load", "value", 98.0, 97.9),
    ("shares", "decode alone: shares, speed to plain", "value", 0.97, 0.969),
    ("shares", "blocks of the capped job on the floor", "value", 0.0, 1.0),
    ("shares", "blocks of the capped job that did not run", "value", 0.0, 1.0),
];

/// Sets a value in a report. The simulator has no cuBLAS, so entries of the product are added.
fn set(report: &mut Value, arm_name: &str, name: &str, key: &str, value: f64) {
    let list = if key == "value" { "figures" } else { "samples" };
    let entries = arm(report, arm_name)[list].as_array_mut().expect("a list");
    if let Some(entry) = entries.iter_mut().find(|entry| entry["name"] == name) {
        entry[key] = json!(value);
        return;
    }
    assert!(name.contains("gemm"), "{arm_name} has no {name}");
    let mut entry = entries[0].clone();
    (entry["name"], entry[key]) = (json!(name), json!(value));
    entries.push(entry);
}

#[test]
fn each_goal_is_judged() -> Outcome {
    let arms = ["--arms", "switch,memory,moved,latency,shares", "--load", "persistent"];
    let (path, mut report) = run("goals.json", &arms)?;
    (report["simulated"], report["quick"]) = (json!(false), json!(false));
    for (arm, name, key, value) in [
        ("switch", "two plans, fences, idle, by hand", "p50", 1000.0),
        ("switch", "two plans, fences, idle, by hand", "p99", 2000.0),
        ("switch", "two plans, no fences, idle, by hand", "p50", 1000.0),
        ("switch", "two plans, fences, in flight, by hand", "p50", 1000.0),
        ("switch", "two plans, fences, in flight, by hand", "p99", 2000.0),
        ("switch", "two plans, no fences, in flight, by hand", "p50", 1000.0),
        ("switch", "plan in an RwLock read", "p50", 20.0),
        ("moved", "products in the graph", "value", 1.0),
        ("latency", "persistent: partition", "p99", 50_000.0),
        ("shares", "decode beside gemm: wall", "p99", 1000.0),
        ("shares", "decode beside gemm: wall, load", "value", 100.0),
        ("shares", "gemm: alone", "value", 120.0),
    ] {
        set(&mut report, arm, name, key, value);
    }
    for (arm, name, key, holds, _) in GOALS {
        set(&mut report, arm, name, key, holds);
    }
    let judge = |report: &Value| -> Result<(Option<i32>, String), Box<dyn std::error::Error>> {
        std::fs::write(&path, report.to_string())?;
        let output = bench(&["check", &path])?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (status, text) = judge(&report)?;
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(text.matches("| holds").count(), GOALS.len(), "{text}");

    for (arm, name, key, _, fails) in GOALS {
        let mut report = report.clone();
        set(&mut report, arm, name, key, fails);
        let (status, text) = judge(&report)?;
        assert_eq!(status, Some(1), "{name}: {text}");
        assert_eq!(text.matches("DOES NOT HOLD").count(), 1, "{name}: {text}");
    }

    // If the product was measured, the goals are judged with it.
    let mut product = report.clone();
    for (mode, p99) in [("partition", 50_000.0), ("plain", 999_000.0), ("high priority", 2e6)] {
        set(&mut product, "latency", &format!("gemm: {mode}"), "p99", p99);
    }
    let (status, text) = judge(&product)?;
    assert_eq!((status, text.matches("kernel next to gemm").count()), (Some(1), 2), "{text}");
    assert_eq!(text.matches("DOES NOT HOLD").count(), 1, "{text}");

    // A goal that was not measured does not hold.
    report["arms"].as_array_mut().expect("arms").retain(|arm| arm["name"] != "memory");
    let (status, text) = judge(&report)?;
    assert_eq!((status, text.matches("not measured").count()), (Some(1), 3), "{text}");
    Ok(())
}

#[test]
fn only_the_arms_that_are_asked_for_run() -> Outcome {
    let (_, report) = run("some.json", &["--arms", "launch,contexts"])?;
    let arms = report["arms"].as_array().expect("arms");
    assert_eq!(arms.iter().map(|arm| &arm["name"]).collect::<Vec<_>>(), ["launch", "contexts"]);
    Ok(())
}

#[test]
fn builds_are_compared_figure_by_figure() -> Outcome {
    let this = env!("CARGO_BIN_EXE_green-ctx-bench");
    let arms = ["run", "--driver", "sim", "--arms", "contexts", "--load", "persistent"];
    let command = ["compare", this, this, "--rounds", "2", "--only", "contexts: made", "--"];
    let output = bench(&[command.as_slice(), &arms].concat())?;
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(output.status.code(), Some(0), "{text}");
    // A count is equal in both builds, since they are the same binary.
    let made = "contexts: made: contexts that the driver made";
    let row = text.lines().find(|line| line.contains(made)).expect("the figure");
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert_eq!(cells[4..7], ["1.000"; 3], "{row}");
    assert!(!text.contains("recycled"), "{text}");

    for arguments in [
        ["compare", "/no/such", this, "--", "run"].as_slice(),
        // This command prints no report, and fails.
        &["compare", this, this, "--", "check", "/no/such.json"],
    ] {
        assert_eq!(bench(arguments)?.status.code(), Some(2), "{arguments:?}");
    }
    Ok(())
}

/// Two scripts stand in for builds. Each logs its slices, and the second script has more slices. A slice takes long
/// enough that slices at the same time would mix their lines.
#[cfg(unix)]
#[test]
fn builds_run_in_alternating_slices() -> Outcome {
    let log = file("slices.log");
    let _none = std::fs::remove_file(&log);
    let build = |name: &str, slices: u32| -> std::io::Result<String> {
        let path = file(name);
        let log = log.display();
        let script = format!(
            "#!/bin/sh\n\
             for slice in $(seq {slices}); do\n\
             echo {name} begins >> {log}; sleep 0.02; echo {name} ends >> {log}\n\
             printf .; read -r _ || exit 1\n\
             done\n\
             echo '{{ \"calls\": [{{ \"call\": \"call\", \"ns\": {slices} }}] }}'\n"
        );
        let path = path.display().to_string();
        // A child writes the file: a file that this process had open could still be open in a fork of another test,
        // and could then not be executed.
        let write = "printf %s \"$0\" > \"$1\" && chmod +x \"$1\"";
        assert!(Command::new("sh").args(["-c", write, &script, &path]).status()?.success());
        Ok(path)
    };
    let (old, new) = (build("old", 2)?, build("new", 4)?);
    let output = bench(&["compare", &old, &new, "--rounds", "1"])?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.contains("| call: ns | 2.00 | 4.00 | 2.000   |"), "{text}");
    let order = ["old", "new", "new", "old", "new", "new"];
    let slices = order.map(|name| format!("{name} begins\n{name} ends\n"));
    assert_eq!(std::fs::read_to_string(&log)?, slices.concat());
    Ok(())
}

#[test]
fn a_compared_build_ends_its_slices() -> Outcome {
    let arms = ["run", "--json", "--driver", "sim", "--arms", "switch,contexts,launch,graphs"];
    let mut build = Command::new(env!("CARGO_BIN_EXE_green-ctx-bench"));
    build.args(arms).args(["--load", "persistent"]).env("GREEN_CTX_SLICES", "1");
    let answers = file("answers");
    std::fs::write(&answers, [b'\n'; 10_000])?;
    let output = build.stdin(std::fs::File::open(&answers)?).output()?;
    let dots = output.stdout.iter().take_while(|byte| **byte == b'.').count();
    assert!(dots > 3, "{dots} slices");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout[dots..])?;
    assert_eq!(report["arms"].as_array().map(Vec::len), Some(4), "{report}");

    // The build ends if its standard input does.
    let output = build.stdin(std::process::Stdio::null()).output()?;
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"."[..]));
    Ok(())
}

#[test]
fn bad_usage_is_2_and_no_driver_3() -> Outcome {
    let garbage = file("garbage.json").display().to_string();
    std::fs::write(&garbage, "{}")?;
    for arguments in [
        ["run", "--driver", "opencl"].as_slice(),
        &["run", "--driver", "sim", "--arms", "everything"],
        &["run", "--driver", "sim", "--load", "gemm", "--cublas", "/no/such"],
        &["check", "/no/such.json"],
        &["check", &garbage],
        &["plot", &garbage, "--out", "/no/such/folder.svg"],
    ] {
        let output = bench(arguments)?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    let output = bench(&["run", "--driver", "cuda:/no/such/libcuda.so.1"])?;
    assert_eq!(output.status.code(), Some(3));
    Ok(())
}

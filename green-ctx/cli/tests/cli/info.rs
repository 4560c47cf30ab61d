//! `green-ctx info`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{Run, run, simulated};

#[test]
fn info_shows_what_there_is() {
    let answer = simulated(&["info"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    for line in [
        "driver  simulated h200, CUDA 13.0",
        "  behaviour                recorded on driver 580.159.04",
        "    recorded               SM ids, splits and clusters: the conformance record",
        "  groups of several units  yes",
        "  structured split         needs CUDA 13.1",
        "device  0: NVIDIA H200",
        "  status                   simulated",
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
fn info_lists_all_gpus() {
    let text = run(&["info", "--all"]);
    assert_eq!((text.status, text.err.as_str()), (0, ""));
    let row = text.out.lines().find(|line| line.starts_with("h200 ")).expect("an H200");
    let cells: Vec<&str> = row.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
    let expected =
        ["h200", "NVIDIA H200", "9.0", "132", "15 of 8, 1 of 12", "2", "16", "32", "64", "100"];
    assert_eq!(cells, expected);
    assert!(text.out.contains("recorded on hardware: h100, h200."), "{}", text.out);
    let csv = run(&["info", "--all", "--csv"]).out;
    let json = run(&["info", "--all", "--json"]).json();
    let gpus = json["gpus"].as_array().expect("GPUs");
    assert_eq!((csv.lines().count(), gpus.len()), (8, 7));
    for (line, gpu) in csv.lines().skip(1).zip(gpus) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!((cells[0], cells.len()), (gpu["profile"].as_str().expect("a name"), 11));
        assert_eq!(cells[9], gpu["percent_75"].to_string());
    }
    for wrong in [&["--all", "--device", "0"][..], &["--all", "--csv", "--json"]] {
        assert_eq!(run(&[&["info"], wrong].concat()).status, 2, "{wrong:?}");
    }
}

#[test]
fn info_says_the_same_in_json() {
    let value = simulated(&["info", "--json", "--device", "0"]).json();
    assert_eq!(value["driver"], json!({"kind": "simulated", "version": "13.0", "profile": "h200"}));
    let device = &value["devices"][0];
    assert_eq!((&device["sm_count"], &device["alignment"]), (&json!(132), &json!(8)));
    assert_eq!(device["units"]["fine"], json!(vec![2; 66]));
    let abilities = value["abilities"].as_array().expect("abilities");
    let structured = json!({"name": "structured_split", "needs": "13.1", "available": false});
    assert!(abilities.contains(&structured), "{value}");

    assert_eq!((&device["limits_from"], &device["workqueues"]), (&json!("driver"), &Value::Null));

    // An older driver does not report its minimum, and has no recording.
    let value = run(&["info", "--driver", "sim:h200@12.4", "--json"]).json();
    let device = &value["devices"][0];
    assert_eq!(device["min_partition"], json!(8));
    assert_eq!(device["limits_from"], json!("architecture"));
    assert_eq!(value["abilities"][0]["available"], json!(false));
    let provenance = value["provenance"].as_str().expect("a simulated driver's provenance");
    assert!(provenance.starts_with("unrecorded for CUDA 12.4"), "{provenance}");
}

/// The output says that a GPU was not recorded, and where each group of its data comes from.
#[test]
fn info_says_what_was_not_recorded() {
    let answer = run(&["info", "--driver", "sim:rtx5080@13.4"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    for line in [
        "driver  simulated rtx5080, CUDA 13.4",
        "  behaviour                from documentation, unrecorded",
        "    documented             SM count and GPCs: the RTX Blackwell white paper",
        "  SMs                      84",
        "  coarse units             7 of 8 SMs, 1 of 28 SMs",
    ] {
        assert!(answer.out.lines().any(|printed| printed == line), "{line}\n{}", answer.out);
    }
    assert!(!answer.out.contains("recorded on"), "{}", answer.out);

    let value = run(&["info", "--driver", "sim:36sm,cc12.0@13.2", "--json"]).json();
    let words = "by rule from the number of SMs and the compute capability, unrecorded";
    assert_eq!((&value["provenance"], &value["sources"]), (&json!(words), &json!([])));
    let value = run(&["info", "--driver", "sim:a100@12.4", "--json"]).json();
    assert_eq!(value["provenance"], json!("from documentation, unrecorded"));
    let sources = value["sources"].as_array().expect("sources");
    let origins = sources.iter().filter_map(|source| source["origin"].as_str());
    let origins: BTreeSet<&str> = origins.collect();
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
fn info_warns_about_mps() {
    let mut command = crate::command(&["--driver", "sim", "info", "--json"]);
    let output = command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20").output();
    let answer = Run::of(output.expect("the command starts"));
    let warnings = answer.json()["warnings"].clone();
    let warning = warnings[0].as_str().expect("a warning");
    assert!(warning.starts_with("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is set"), "{warning}");
}

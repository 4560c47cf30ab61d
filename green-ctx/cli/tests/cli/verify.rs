//! `green-ctx verify` and its pictures.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::{DEVICE, DRIVER, Folder, refused, run, simulated};

#[test]
fn verify_prints_exactly_its_object() {
    let answer = simulated(&["verify", "--counts", "16,24", "--json"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    let value = answer.json();
    let partitions = value["partitions"].as_array().expect("partitions");
    // The times differ in each run. Everything else is known.
    let text = |index: usize, name: &str, requested: &str, share: &str, sm_count: usize| {
        let Value::Object(partition) = &partitions[index] else { panic!("no object") };
        let observed = &partition["observed_sms"];
        let (start, end) = (&partition["start_ns"], &partition["end_ns"]);
        assert_eq!(observed.as_array().map(Vec::len), Some(sm_count), "{name}");
        assert!(start.as_u64() < end.as_u64(), "{name}");
        format!(
            "{{\"name\":\"{name}\",\"requested\":{requested},\"share\":\"{share}\",\
             \"floor\":{sm_count},\"ceiling\":{sm_count},\"sm_count\":{sm_count},\
             \"observed_sms\":{observed},\"floor_sms\":{observed},\
             \"start_ns\":{start},\"end_ns\":{end},\"kept\":true}}"
        )
    };
    let partitions = [
        text(0, "p0", "16", "16", 16),
        text(1, "p1", "24", "24", 24),
        text(2, "remainder", "null", "rest", 92),
    ];
    let expected = format!(
        "{{{DRIVER},{DEVICE},\"partitions\":[{}],\
         \"disjoint\":true,\"concurrent\":true,\"floors_kept\":true,\"ok\":true}}\n",
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
    assert_eq!(row(3)[..5], ["partition", "share", "floor", "ceiling", "observed"]);
    assert_eq!(row(4)[..6], ["p0", "16", "16", "16", "16", "0.000"]);
    assert_eq!(row(4)[7], "0-3,16-19,32-35,48-51");
    assert_eq!(row(5)[..5], ["p1", "24", "24", "24", "24"]);
    assert_eq!(row(6)[..5], ["remainder", "rest", "92", "92", "92"]);
    assert_eq!(lines[8..10], ["disjoint            yes", "overlapped in time  yes"]);
    assert!(lines[10].starts_with("verified "), "{}", answer.out);
    assert_eq!(lines.len(), 11);
}

#[test]
fn verify_takes_a_device_apart_into_66_fine_partitions() {
    let folder = Folder::new("fine");
    let picture = folder.file("fine.SVG");
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
    // The old content is replaced, even if it is longer.
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
    let png = simulated(&["verify", "--counts", "16", "--svg", &folder.file("a.png")]);
    assert_eq!(png.status, 2);
    assert!(png.err.contains("pictures are SVG, not png; write --svg"), "{}", png.err);
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
fn other_parts_are_split_and_verified() {
    for (part, counts, given) in [
        ("a100", "6,22", vec![8, 24, 76]),
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

/// Returns the ids under a key of a partition.
fn ids(value: &Value, partition: usize, key: &str) -> BTreeSet<u64> {
    let ids = value["partitions"][partition][key].as_array().expect("ids").iter();
    ids.filter_map(Value::as_u64).collect()
}

#[test]
fn verify_proves_floors_and_ceilings() {
    let arguments = ["verify", "--group", "decode=32..", "--group", "prefill=..100"];
    let answer = simulated(&[&arguments[..], &["--json"]].concat());
    let value = answer.json();
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    let partitions = value["partitions"].as_array().expect("partitions");
    // A group without a ceiling leaves no SMs for a remainder.
    assert_eq!(partitions.len(), 2);
    let part = |index: usize| {
        ["name", "requested", "share", "floor", "ceiling", "sm_count", "kept"]
            .map(|key| &partitions[index][key])
    };
    let decode = json!(["decode", null, "32..", 32, 132, 132, true]);
    let prefill = json!(["prefill", null, "..=100", 0, 100, 100, true]);
    assert_eq!(json!([part(0), part(1)]), json!([decode, prefill]));
    let verdicts = ["disjoint", "concurrent", "floors_kept", "ok"].map(|key| &value[key]);
    assert_eq!(json!(verdicts), json!([false, true, true, true]));
    let floor = ids(&value, 0, "floor_sms");
    assert_eq!((floor.len(), ids(&value, 1, "floor_sms").len()), (32, 0));
    assert!(floor.is_subset(&ids(&value, 0, "observed_sms")));
    assert!(floor.is_disjoint(&ids(&value, 1, "observed_sms")));

    let answer = simulated(&arguments);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    let verdict = "
disjoint            no, as requested: 100 SMs ran blocks of partitions that share them
overlapped in time  yes
verified            each partition ran on its whole floor, had it to itself, and stayed within its \
                    ceiling
";
    assert!(answer.out.ends_with(verdict), "{}", answer.out);
    assert!(!answer.out.contains("NOT") && !answer.out.contains("NO,"), "{}", answer.out);
}

#[test]
fn verify_adds_a_remainder_where_there_can_be_one() {
    let names = |driver: &str, counts: &str| -> Vec<String> {
        let value = run(&["--driver", driver, "verify", "--json", "--counts", counts]).json();
        assert_eq!(value["ok"], json!(true), "{value}");
        let partitions = value["partitions"].as_array().expect("partitions").iter();
        partitions.filter_map(|part| Some(part["name"].as_str()?.to_owned())).collect()
    };
    assert_eq!(names("sim", "..64"), ["p0", "remainder"]);
    assert_eq!(names("sim", "all"), ["p0", "remainder"]);
    assert_eq!(names("sim", "16..=132"), ["p0"]);
    assert_eq!(names("sim", "rest,16"), ["p1", "p0"]);
    assert_eq!(names("sim", ".."), ["p0"]);
    assert_eq!(names("sim:h200@12.4", ".."), ["p0"]);
    assert_eq!(names("sim:h200@12.4", "8,8"), ["p0", "p1", "remainder"]);
    for (groups, name) in [(["a=..132", "b=rest"], "b"), (["remainder=rest", "a=132"], "remainder")]
    {
        let arguments = ["--driver", "sim", "verify", "--group", groups[0], "--group", groups[1]];
        let part = format!("group {name} gets no SMs, because the other groups take all of them");
        refused(&arguments, 2, "usage", &part);
    }
    let answer = simulated(&["verify", "--json", "--group", "remainder=rest", "--group", "a=8"]);
    assert_eq!((answer.status, answer.json()["partitions"].as_array().map(Vec::len)), (0, Some(2)));
}

#[test]
fn verify_draws_what_is_shared() {
    let folder = Folder::new("shared-picture");
    let file = folder.file("shared.svg");
    let arguments =
        ["verify", "--group", "decode=32..", "--group", "prefill=..100", "--svg", &file];
    assert_eq!(simulated(&arguments).status, 0);
    let picture = fs::read_to_string(&file).expect("the picture");
    let document = roxmltree::Document::parse(&picture).expect("well-formed XML");
    let cells = |class: &str| {
        document.descendants().filter(|node| node.attribute("class") == Some(class)).count()
    };
    let kinds = ["sm floor", "sm shared", "sm pool", "sm missed", "sm violation", "sm unused"];
    assert_eq!(kinds.map(cells), [32, 100, 0, 0, 0, 0]);
    assert_eq!(cells("violation"), 0);
    assert!(picture.contains(">shared by decode and prefill: 100 SMs<"));
}

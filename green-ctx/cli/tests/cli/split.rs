//! `green-ctx split`.

use serde_json::{Value, json};

use crate::{DEVICE, DRIVER, run, simulated};

fn split(arguments: &[&str]) -> Value {
    let given = simulated(&[&["split", "--json"], arguments].concat());
    assert_eq!((given.status, given.err.as_str()), (0, ""));
    given.json()
}

/// Returns the name, share, floor and ceiling of each group.
fn groups(answer: &Value) -> Vec<[Value; 4]> {
    let groups = answer["groups"].as_array().expect("groups").iter();
    let group = |group: &Value| {
        assert_eq!(group["ceiling"], group["sm_count"]);
        ["name", "share", "floor", "ceiling"].map(|key| group[key].clone())
    };
    groups.map(group).collect()
}

fn group(name: &str, share: &str, floor: u32, ceiling: u32) -> [Value; 4] {
    [json!(name), json!(share), json!(floor), json!(ceiling)]
}

#[test]
fn split_prints_exactly_its_object() {
    let answer = simulated(&["split", "--counts", "16,..100", "--json"]);
    let groups = concat!(
        r#"[{"name":"p0","requested":16,"share":"16","floor":16,"ceiling":16,"sm_count":16},"#,
        r#"{"name":"p1","requested":null,"share":"..=100","floor":0,"ceiling":100,"sm_count":100}]"#
    );
    let expected = format!(
        "{{{DRIVER},{DEVICE},\"unit\":8,\"groups\":{groups},\
         \"remainder\":{{\"sm_count\":16}},\"free_for_floors\":16}}\n"
    );
    assert_eq!((answer.status, answer.out, answer.err), (0, expected, String::new()));
}

#[test]
fn split_gives_uneven_rounded_and_fine_groups() {
    let counts = |arguments: &[&str]| {
        let answer = split(&[&["--counts"], arguments].concat());
        let given: Vec<Value> = groups(&answer).into_iter().map(|[_, _, floor, _]| floor).collect();
        assert_eq!(answer["remainder"]["sm_count"], answer["free_for_floors"]);
        (answer["unit"].clone(), json!(given), answer["free_for_floors"].clone())
    };
    assert_eq!(counts(&["8,24,100"]), (json!(8), json!([8, 24, 100]), json!(0)));
    assert_eq!(counts(&["17"]), (json!(8), json!([24]), json!(108)));
    assert_eq!(counts(&["6,7", "--fine"]), (json!(2), json!([6, 8]), json!(118)));
    assert_eq!(counts(&["16, 24"]), (json!(8), json!([16, 24]), json!(92)));
}

#[test]
fn split_gives_floors_and_ceilings() {
    let answer = split(&["--group", "decode=32..", "--group", "prefill=..100"]);
    let expected = [group("decode", "32..", 32, 132), group("prefill", "..=100", 0, 100)];
    assert_eq!(groups(&answer), expected);
    assert_eq!(answer["free_for_floors"], json!(0));

    let answer = split(&["--counts", "16..,16..48,16"]);
    let expected =
        [group("p0", "16..", 16, 100), group("p1", "16..=48", 16, 48), group("p2", "16", 16, 16)];
    assert_eq!(groups(&answer), expected);
    // A floor is rounded up and a ceiling is rounded down, but a ceiling never below its floor.
    let answer = split(&["--counts", "17..=30,17..=20,.."]);
    let expected =
        [group("p0", "17..=30", 24, 24), group("p1", "17..=20", 20, 20), group("p2", "..", 0, 88)];
    assert_eq!(groups(&answer), expected);
}

#[test]
fn split_lists_the_rest_where_it_was_asked_for() {
    let answer = split(&["--group", "others=rest", "--group", "decode=16"]);
    assert_eq!(groups(&answer), [group("decode", "16", 16, 16), group("others", "rest", 116, 116)]);
    assert_eq!(answer["groups"][1]["requested"], Value::Null);
    assert_eq!(
        (&answer["remainder"], &answer["free_for_floors"]),
        (&json!({"sm_count": 0}), &json!(0))
    );
    // The group for the rest is listed even if the rest is empty.
    let answer = split(&["--counts", "132,rest"]);
    assert_eq!(groups(&answer), [group("p0", "132", 132, 132), group("p1", "rest", 0, 0)]);
    let answer = split(&["--counts", "all"]);
    assert_eq!(groups(&answer), [group("p0", "all", 120, 120)]);
}

#[test]
fn split_prints_a_table() {
    let answer = simulated(&["split", "--counts", "16,17,..50"]);
    let expected = "\
driver  simulated h200, CUDA 13.0
device  0: NVIDIA H200, 132 SMs, compute capability 9.0

group  share  floor  ceiling
p0        16     16       16
p1        17     24       24
p2     ..=50      0       48

free for floors: 44 SMs
counts of SMs, in units of 8; dry run, nothing was created
";
    assert_eq!((answer.status, answer.out.as_str(), answer.err.as_str()), (0, expected, ""));
}

#[test]
fn split_says_what_to_do_where_sharing_leaves_no_floor() {
    let line = |arguments: &[&str]| {
        let answer = run(arguments);
        assert_eq!((answer.status, answer.err.as_str()), (0, ""));
        let line = answer.out.lines().find(|line| line.starts_with("free for floors: "));
        line.map(str::to_owned).expect("it says what is free")
    };
    let cure = "free for floors: 0 SMs; the remaining SMs are shared: request all floors together, or set \
                a lower ceiling";
    assert_eq!(line(&["--driver", "sim", "split", "--counts", "16,32.."]), cure);
    // No SMs are shared, so there is no hint.
    assert_eq!(
        line(&["--driver", "sim", "split", "--counts", "8,24,100"]),
        "free for floors: 0 SMs"
    );
    // This driver offers no alternative.
    let old = line(&["--driver", "sim:h200@12.4", "split", "--counts", ".."]);
    assert_eq!(old, "free for floors: 0 SMs");
}

#[test]
fn split_says_when_finer_units_would_fit() {
    let counts = ["16"; 9].join(",");
    let answer = simulated(&["split", "--counts", &format!("{counts},2")]);
    assert!(answer.err.contains("do not fit"), "{}", answer.err);
    assert!(!answer.err.contains("--fine"), "146 SMs fit in no units: {}", answer.err);
    for counts in ["8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,2,2", "17..=18"] {
        let answer = simulated(&["split", "--counts", counts]);
        assert_eq!(answer.status, 2);
        assert!(answer.err.trim_end().ends_with("with --fine the request fits"), "{}", answer.err);
        let value = simulated(&["--json", "split", "--counts", counts]).json();
        assert_eq!(
            value["error"]["kind"].as_str().map(|kind| kind == "usage"),
            Some(false),
            "{value}"
        );
        assert_eq!(simulated(&["split", "--fine", "--counts", counts]).status, 0);
    }
}

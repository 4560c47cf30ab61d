//! `oracle` and `oracle-report` in the tuner's model, whose time is virtual.

use std::fs;

use serde_json::Value;

use crate::{Outcome, bench, file};

const PAIRS: [&str; 4] = ["--pair", "gemm:4096,copy:256", "--pair", "attention:2048,gemv:8192"];

#[test]
fn two_pairs_are_measured_judged_and_drawn() -> Outcome {
    let folder = file("oracle").display().to_string();
    let base = ["oracle", "--driver", "sim", "--commit", "abc1234", "--out", &folder];
    let output = bench(&[&base, PAIRS.as_slice()].concat())?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    let text = fs::read_to_string(file("oracle").join("gemm4096-copy256.json"))?;
    assert!(text.len() < 300_000, "{} bytes", text.len());
    let pair: Value = serde_json::from_str(&text)?;
    assert_eq!((&pair["simulated"], &pair["commit"]), (&true.into(), &"abc1234".into()));
    // 8 × 8 ceilings without that of all SMs for both; 35 pairs of them share SMs and have two orders more. 4 arms
    // have no partitions.
    let arms = pair["arms"].as_array().expect("arms");
    assert_eq!(arms.len(), 63 + 2 * 35 + 4);
    for arm in arms {
        let blocks = if arm["kind"] == "partition" { 2 } else { 8 };
        for list in ["blocks", "rounds"] {
            assert_eq!(arm[list].as_array().map(Vec::len), Some(blocks), "{arm}");
        }
    }
    let combinations = pair["combinations"].as_array().expect("combinations");
    let templates: Vec<&Value> = combinations.iter().map(|one| &one["template"]).collect();
    let expected = ["throughput", "makespan", "keep:50", "keep:50", "least:80", "least:80"];
    assert_eq!(templates, expected);
    for combination in combinations {
        assert_eq!(combination["error"], Value::Null);
        let finalists = combination["finalists"].as_array().expect("finalists");
        assert!((3..=5).contains(&finalists.len()), "{}", finalists.len());
        let count = |key: &str| finalists.iter().filter(|one| one[key] == true).count();
        assert_eq!((count("chosen"), count("unpartitioned")), (1, 1));
        let ranks = finalists.iter().filter(|one| !one["rank"].is_null());
        assert_eq!(ranks.count(), 3);
        assert!(finalists.iter().all(|one| one["blocks"].as_array().map_or(0, Vec::len) >= 20));
    }

    let picture = file("oracle.svg").display().to_string();
    let enough = ["--combinations", "12", "--triples", "0", "--repeated", "0"];
    let report = ["oracle-report", &folder, "--svg", &picture];
    let output = bench(&[&report, enough.as_slice()].concat())?;
    let table = String::from_utf8(output.stdout)?;
    assert!(table.starts_with("NVIDIA H200, 132 SMs, a model of co-running jobs, no GPU"));
    for row in ["attention2048 + gemv8192", "gemm4096 + copy256"] {
        assert_eq!(table.matches(&format!("| {row} ")).count(), 6, "{row}");
    }
    let limit = |what: &str| table.lines().find(|line| line.contains(what)).expect("a limit");
    assert!(limit("at least 12").contains("| 12 "));
    assert!(limit("without a comparison").contains("| none "));
    // How good the tuner is, the limits say. The exit status is that of all of them.
    let holds = !table.contains("DOES NOT HOLD");
    assert_eq!(output.status.code(), Some(i32::from(!holds)), "{table}");

    let picture = fs::read_to_string(picture)?;
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
    let document = roxmltree::Document::parse(&picture)?;
    let with = |class: &str| {
        document.descendants().filter(|node| node.attribute("class") == Some(class)).count()
    };
    assert_eq!((with("landscape"), with("cell"), with("simulated")), (2, 126, 1));
    assert_eq!(with("key"), 4);

    Ok(())
}

#[test]
fn limits_hold_or_fail_the_report() -> Outcome {
    let folder = file("oracle-limits").display().to_string();
    let goals = ["--goals", "throughput,makespan", "--no-priorities", "--out", &folder];
    let output = bench(&[&["oracle", "--driver", "sim"], goals.as_slice(), &PAIRS].concat())?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report = |combinations: &str| -> Result<_, Box<dyn std::error::Error>> {
        let few = ["--triples", "0", "--repeated", "0"];
        let report = ["oracle-report", &folder, "--combinations", combinations];
        let output = bench(&[&report, few.as_slice()].concat())?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (status, table) = report("4")?;
    assert_eq!(status, Some(0), "{table}");
    assert_eq!(table.matches("| holds ").count(), 12);
    let page = file("oracle-limits.md");
    let text = "<!-- figures: makespan -->\n<!-- end of figures -->\n";
    fs::write(&page, text)?;
    let name = page.display().to_string();
    let fill = |more: &[&str]| {
        let few = ["--combinations", "4", "--triples", "0", "--repeated", "0", "--page", &name];
        bench(&[&["oracle-report", folder.as_str()], few.as_slice(), more].concat())
    };
    let differs = fill(&["--check"])?;
    assert_eq!((differs.status.code(), fs::read_to_string(&page)?.as_str()), (Some(1), text));
    assert!(String::from_utf8(differs.stderr)?.contains("are not those of the files"));
    assert_eq!(fill(&[])?.status.code(), Some(0));
    assert!(fs::read_to_string(&page)?.contains("| gemm4096 + copy256 "));
    assert_eq!(fill(&["--check"])?.status.code(), Some(0));

    let (status, table) = report("5")?;
    assert_eq!(status, Some(1), "{table}");
    assert_eq!(table.matches("| DOES NOT HOLD ").count(), 1);

    // A choice that is half as good as it was: its regret and its loss are too great.
    let path = file("oracle-limits").join("gemm4096-copy256.json");
    let mut pair: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let finalists = pair["combinations"][0]["finalists"].as_array_mut().expect("finalists");
    for finalist in finalists.iter_mut() {
        let factor = if finalist["chosen"] == true { 0.5 } else { 1.0 };
        let slower = |worth: &mut Value| {
            worth["score"] = (factor * worth["score"].as_f64().unwrap_or(0.0)).into();
        };
        slower(&mut finalist["value"]);
        finalist["worths"].as_array_mut().expect("blocks").iter_mut().for_each(slower);
    }
    fs::write(&path, pair.to_string())?;
    let (status, table) = report("4")?;
    assert_eq!(status, Some(1), "{table}");
    let row =
        table.lines().find(|row| row.contains("gemm4096 + copy256") && row.contains("throughput"));
    assert!(row.is_some_and(|row| row.contains("| regret ")), "{table}");
    assert_eq!(table.matches("| DOES NOT HOLD ").count(), 2, "{table}");
    Ok(())
}

#[test]
fn searches_are_repeated_and_compared() -> Outcome {
    let folder = file("oracle-repeated").display().to_string();
    let line = ["oracle", "--driver", "sim", PAIRS[0], PAIRS[1], "--goals", "throughput"];
    let few = ["--no-priorities", "--step", "32", "--repeat", "20", "--out", &folder];
    let output = bench(&[&line, few.as_slice()].concat())?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let path = file("oracle-repeated").join("gemm4096-copy256.json");
    let mut mix: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let combination = &mix["combinations"][0];
    assert_eq!(combination["repeats"].as_array().map(Vec::len), Some(19));
    let finalists = combination["finalists"].as_array().expect("finalists");
    let is_compared = |shape: &Value| {
        let keys = ["kind", "parts", "priorities"];
        finalists.iter().any(|finalist| keys.iter().all(|key| finalist[key] == shape[key]))
    };
    let choices: Vec<&Value> = combination["repeats"].as_array().into_iter().flatten().collect();
    let missing = choices.iter().filter(|choice| !is_compared(&choice["arm"])).count();
    assert!(is_compared(&combination["tuner"]["arm"]) && (missing == 0 || finalists.len() >= 8));

    let report = || -> Result<String, Box<dyn std::error::Error>> {
        let few = ["--combinations", "1", "--triples", "0", "--repeated", "1"];
        let output = bench(&[&["oracle-report", &folder], few.as_slice()].concat())?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let holds = |table: &str, what: &str| {
        let line = table.lines().find(|line| line.contains(what));
        line.expect("a limit").contains("| holds ")
    };
    let (searched, alike) = ("the tuner searched 20 times", "fewer than 19 of 20");
    let table = report()?;
    assert!(table.contains("| searches | different choices "), "{table}");
    assert!(holds(&table, searched) && holds(&table, alike), "{table}");
    // Two choices that nothing was compared with.
    let repeats = mix["combinations"][0]["repeats"].as_array_mut().expect("repeats");
    repeats.iter_mut().take(2).for_each(|choice| choice["arm"]["kind"] = "sequential".into());
    fs::write(&path, mix.to_string())?;
    let table = report()?;
    assert!(holds(&table, searched) && !holds(&table, alike), "{table}");
    Ok(())
}

#[test]
fn three_jobs_are_measured() -> Outcome {
    let folder = file("oracle-three").display().to_string();
    let line = ["oracle", "--driver", "sim", "--mix", "small:64,copy:256,gemm:4096"];
    let output = bench(&[&line, ["--out", &folder].as_slice()].concat())?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let path = file("oracle-three").join("small64-copy256-gemm4096.json");
    let mix: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    // One after the other, plain streams, six orders of priorities, and partitions in quarters.
    let arms = mix["arms"].as_array().expect("arms");
    assert_eq!(arms.len(), 8 + 302);
    assert!(arms.iter().all(|arm| arm["skipped"] == Value::Null));
    let combinations = mix["combinations"].as_array().expect("combinations");
    let templates: Vec<&Value> = combinations.iter().map(|one| &one["template"]).collect();
    assert_eq!(templates, ["throughput", "makespan"]);
    assert!(combinations.iter().all(|one| one["error"] == Value::Null));
    let report = |triples: &str| {
        let few = ["--combinations", "0", "--repeated", "0", "--triples", triples];
        let output = bench(&[&["oracle-report", &folder], few.as_slice()].concat())?;
        Ok::<_, Box<dyn std::error::Error>>(String::from_utf8(output.stdout)?)
    };
    let line = |table: &str| {
        let line = table.lines().find(|line| line.contains("of three jobs and a goal"));
        line.expect("a limit").to_owned()
    };
    assert!(line(&report("2")?).contains("| holds "));
    assert!(line(&report("3")?).contains("| DOES NOT HOLD "));
    Ok(())
}

#[test]
fn a_dry_run_measures_nothing() -> Outcome {
    let dry = |more: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let line = ["oracle", "--driver", "sim", "--dry-run"];
        let output = bench(&[&line, more, PAIRS.as_slice()].concat())?;
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    // The least number of seconds in all.
    let least = |text: &str| {
        let last = text.lines().last().and_then(|line| line.split_once(": "));
        let seconds =
            last.and_then(|(_, rest)| rest.split_once(" to ")).map(|(least, _)| least.parse());
        seconds.and_then(Result::<f64, _>::ok).expect("seconds")
    };
    let text = dry(&["--goals", "throughput,keep:50:1"])?;
    assert!(text.starts_with("gemm4096-copy256: 137 arms in "), "{text}");
    assert!(text.contains("\n4 combinations: "), "{text}");
    // 19 more searches of 10 s, and seven more arms in 20 blocks of 200 ms, in each of the combinations.
    let more = least(&dry(&["--goals", "throughput,keep:50:1", "--repeat", "20"])?) - least(&text);
    assert!((870.0..890.0).contains(&more), "{more}");
    let more =
        least(&dry(&["--goals", "throughput,keep:50:1", "--program", "jobs"])?) - least(&text);
    assert!((9.0..=11.0).contains(&more), "{more}");
    // Goals with a bound are for two jobs.
    let text = dry(&["--goals", "throughput,keep:50:1", "--mix", "gemm,copy,small"])?;
    assert!(text.contains("\n5 combinations: "), "{text}");
    Ok(())
}

#[test]
fn wrong_pairs_goals_and_files_are_refused() -> Outcome {
    let fails = |arguments: &[&str], words: &str| -> Outcome {
        let output = bench(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(words), "{error}");
        Ok(())
    };
    let with = |more: &[&'static str]| {
        ["oracle", "--driver", "sim", "--dry-run"].into_iter().chain(more.to_vec()).collect()
    };
    let wrong: [(Vec<&str>, &str); 4] = [
        (with(&["--pair", "gemm"]), "two or three jobs"),
        (with(&["--pair", "gemm,copies"]), "no job is named `copies`"),
        (with(&["--pair", "gemm,copy", "--goals", "most"]), "is no goal"),
        (with(&["--pair", "gemm,copy", "--budget", "-1"]), "budget"),
    ];
    for (arguments, words) in &wrong {
        fails(arguments, words)?;
    }
    let empty = file("oracle-empty");
    fs::create_dir_all(&empty)?;
    let empty = empty.display().to_string();
    fails(&["oracle-report", &empty], "no file of a mix")?;
    fails(&["oracle-report", "/no/such/file"], "/no/such/file")
}

//! Invalid requests.

use serde_json::json;

use crate::{refused, run};

#[test]
fn shares_that_are_none_are_bad_usage() {
    for command in ["split", "verify"] {
        for (counts, part) in [
            ("0", "the share asks for 0 SMs; ask for 1 or more"),
            ("16,0", "invalid value '0'"),
            ("-3", "invalid value '-3' for '--counts <SHARE,…>': \"-3\" is not a share"),
            ("16,-3", "invalid value '-3'"),
            ("-3..", "invalid value '-3..'"),
            (
                "abc",
                "\"abc\" is not a share; ask for SMs as in 16, 32.., 16..48, ..100, 25%, .., rest or all",
            ),
            ("1.5", "\"1.5\" is not a share"),
            ("16...48", "\"16...48\" is not a share"),
            ("99999999999", "\"99999999999\" is more SMs than any device has"),
            ("", "a share is missing"),
            ("16,", "a share is missing; ask for SMs as in 16, 32.., 16..48, ..100 or 25%"),
            (",", "a share is missing"),
            ("48..16", "a floor above its ceiling; ask for 16..=48"),
            ("..0", "a ceiling of 0 SMs; ask for 1 or more"),
            ("0%", "asks for 0%; ask for 1% or more"),
            ("150%", "asks for 150%; ask for at most 100%"),
            ("2.5%", "\"2.5%\" is not a share"),
        ] {
            refused(&["--driver", "sim", command, "--counts", counts], 2, "usage", part);
        }
        let both = "<--counts <SHARE,…>|--group <NAME=SHARE>>";
        refused(&["--driver", "sim", command], 2, "usage", both);
        let arguments = ["--driver", "sim", command, "--counts", "8", "--group", "a=8"];
        refused(&arguments, 2, "usage", "cannot be used with");
        let counts = ["--driver", "sim", command, "--counts", "8", "--coscheduled", "8..16"];
        refused(&counts, 2, "usage", "a count must be a whole number of SMs, 1 or more");
    }
}

#[test]
fn groups_that_are_none_are_bad_usage() {
    for command in ["split", "verify"] {
        for (group, part) in [
            ("decode", "a group is NAME=SHARE, as in decode=32.."),
            ("-3", "a group is NAME=SHARE"),
            ("", "NAME=SHARE"),
            ("=16", "the group's name is missing; write NAME=16"),
            ("..=100", "the group's name is missing; write NAME=..=100"),
            ("decode=", "a share is missing"),
            ("decode=-3", "\"-3\" is not a share"),
            ("decode=48..16", "ask for 16..=48"),
            ("remainder=16", "choose another name, or use remainder=rest"),
        ] {
            refused(&["--driver", "sim", command, "--group", group], 2, "usage", part);
        }
        let cut = ["--driver", "sim", command, "--counts", "8", "--fine", "--largest-clusters"];
        refused(&cut, 2, "usage", "cannot be used with");
        let line = ["--driver", "sim", command, "--group", "a\nb=8"];
        assert_eq!(crate::run(&line).status, 2);
        let twice = ["--driver", "sim", command, "--group", "a=8", "--group", "a=..16"];
        refused(&twice, 2, "usage", "two groups are named a; give each a different name");
        // Bad usage is reported without a driver.
        let twice = [&["--driver", "cuda:/nowhere"], &twice[2..]].concat();
        refused(&twice, 2, "usage", "two groups are named a");
    }
}

#[test]
fn splits_that_do_not_fit_are_bad_usage() {
    let forty = vec!["8"; 40].join(",");
    for command in [&["split"][..], &["verify"]] {
        for (counts, part) in [
            ("133", "a group of 133 SMs does not fit: 132 of the device's 132 SMs are free"),
            ("4294967295", "a group of 4294967295 SMs does not fit"),
            ("64,64,64", "3 groups of 64 SMs do not fit, 2 fit"),
            ("128,16", "groups of 128, 16 SMs do not fit, the first one fits"),
            (&forty, "40 groups of 8 SMs do not fit, 16 fit"),
            ("200..", "a group of 132.. would fit"),
            ("100..,40..", "groups of 100.., 32.. would fit"),
        ] {
            let arguments = [&["--driver", "sim"], command, &["--counts", counts]].concat();
            let error = refused(&arguments, 2, "invalid_request", part);
            let asked = error["shortage"]["requested"].as_array().expect("shares").iter();
            let asked: Vec<&str> = asked.filter_map(|share| share.as_str()).collect();
            assert_eq!(asked.join(","), counts);
            assert_eq!(error["shortage"]["total"], json!(132));
        }
        for (counts, part) in [
            ("17..=18", "no whole units of 8 SMs satisfy 17..=18; 16 or 20 would do"),
            ("1%..5", "no whole units of 8 SMs satisfy 1%..=5; 8 would do"),
            ("13..10%", "no whole units of 8 SMs satisfy 13..=10%; 12 or 16 would do"),
            ("..7", "8 would do"),
            ("rest,..", "ask for `..` instead of the rest, or give p1 a ceiling"),
            ("32..,rest", "ask for `..` instead of the rest, or give p0 a ceiling"),
            ("rest,rest", "groups p0 and p1 both ask for the rest; only one can take it"),
        ] {
            let arguments = [&["--driver", "sim"], command, &["--counts", counts]].concat();
            let error = refused(&arguments, 2, "invalid_request", part);
            assert_eq!(error.get("shortage"), None);
        }
        for counts in ["32..", "16..48", "..16", ".."] {
            let driver = ["--driver", "sim:h200@13.1"];
            let arguments =
                [&driver, command, &["--coscheduled", "8", "--counts", counts]].concat();
            let part = "but a structured request takes only counts; ask for a count";
            refused(&arguments, 2, "invalid_request", part);
        }
    }
}

#[test]
fn other_wrong_arguments_are_bad_usage() {
    let none = "there is no device 9; the driver has one, device 0";
    for command in [&["info"][..], &["split", "--counts", "8"], &["verify", "--counts", "8"]] {
        let arguments = [&["--driver", "sim", "--device", "9"], command].concat();
        refused(&arguments, 2, "invalid_request", none);
    }
    refused(&["info", "--device", "-1"], 2, "usage", "a device must be a number, 0 or greater");
    let commas = "commas, as in 16,24";
    refused(&["split", "--counts", "16", "24"], 2, "usage", commas);
    refused(&["split", "--counts", "16 24"], 2, "usage", commas);
    refused(&["curve", "--job", "gemm", "--sms", "16", "32"], 2, "usage", commas);
    let unknown = run(&["verify", "--counts", "16,24", "--svgs", "x"]).err;
    assert!(unknown.contains("similar") && unknown.contains("--svg"), "{unknown}");
    refused(&["info", "--driver", "nvidia"], 2, "usage", "a driver is auto, cuda, cuda:PATH");
    refused(
        &["info", "--driver", "sim:h201"],
        2,
        "usage",
        "the profiles are a100, b200, h100, h200",
    );
    refused(&["info", "--driver", "sim:h200@9.9"], 2, "usage", "the versions are 12.4");
    let part = "a driver for CUDA 12.5 does not support b200; use CUDA 12.8 or newer";
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

/// They would change nothing.
#[test]
fn options_that_do_not_apply_are_refused() {
    refused(&["run", "--csv", "--sms", "8", "true"], 2, "usage", "--csv does not apply to run");
    // It is not taken for the program.
    let wrong = ["run", "--sms", "8", "--devcie", "0", "true"];
    refused(&wrong, 2, "usage", "unexpected argument '--devcie' found");
    let part = "--json and --csv do not apply to completions";
    for option in ["--json", "--csv"] {
        let answer = run(&["completions", "bash", option]);
        assert!(answer.status == 2 && (answer.err + &answer.out).contains(part), "{option}");
    }
}

#[test]
fn a_driver_too_old_for_the_request_is_reported() {
    let arguments = ["--driver", "sim:h200@12.4", "split", "--counts", "16,24"];
    refused(&arguments, 3, "unsupported", "needs CUDA 12.5, but the driver supports only 12.4");
    for command in ["split", "verify"] {
        for counts in ["32..", "8..16", "..48", "8,.."] {
            let arguments = ["--driver", "sim:h200@12.4", command, "--counts", counts];
            let part = "a range of SMs such as `16..48` or `32..` needs CUDA 12.5, but the driver supports only 12.4";
            refused(&arguments, 3, "unsupported", part);
        }
    }
    for measured in [&["tune", "--job", "gemm", "--job", "copy"][..], &["curve", "--job", "gemm"]] {
        let part =
            "in partitions of several sizes needs CUDA 12.5, but the driver supports only 12.4";
        refused(&[&["--driver", "sim:h200@12.4"], measured].concat(), 3, "unsupported", part);
    }
    let answer = run(&["--driver", "sim:h200@12.4", "split", "--counts", "8,8", "--json"]);
    assert_eq!((answer.status, &answer.json()["driver"]["version"]), (0, &json!("12.4")));
}

//! `green-ctx curve`. Without a GPU it runs in the model, in simulated time.

use crate::{DEVICE, DRIVER, Folder, simulated};

#[test]
fn curve_prints_a_table_and_what_it_says() {
    let answer = simulated(&["curve", "--job", "small"]);
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    let words = "small saturates: it is within 10 % of its full speed on 96 of 132 SMs, and within 5 % on 96. \
        (This curve comes from a model of the jobs, not from a GPU.)";
    assert!(answer.out.contains(words), "{}", answer.out);
    let rows: Vec<&str> = answer.out.lines().skip_while(|line| !line.starts_with("SMs")).collect();
    let sms: Vec<&str> = rows.iter().filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(sms[..9], ["SMs", "8", "16", "24", "32", "48", "64", "96", "132"], "{rows:?}");
}

#[test]
fn curve_prints_exactly_its_object() {
    let answer = simulated(&["curve", "--job", "gemm", "--sms", "8,64,66", "--json"]);
    assert!(answer.out.starts_with(&format!("{{{DRIVER},{DEVICE},")), "{}", answer.out);
    let value = answer.json();
    let points = value["points"].as_array().expect("points");
    let sms: Vec<_> = points.iter().map(|point| point["sms"].as_u64()).collect();
    assert_eq!(sms, [8, 64, 72, 132].map(Some));
    assert!(
        points.iter().all(|point| point["blocks_us"].as_array().is_some_and(|it| it.len() > 2))
    );
    assert_eq!((&value["shape"]["kind"], &value["complete"]), (&"scales".into(), &true.into()));
    assert!(value["within"]["10%"].is_u64() && value["sentence"].is_string(), "{value}");
    // The model's seed is fixed, so the result is the same.
    let again = simulated(&["curve", "--job", "gemm", "--sms", "66,64,8", "--json"]);
    assert_eq!(again.out, answer.out);
}

#[test]
fn curve_draws_a_picture() {
    let folder = Folder::new("curve");
    let file = folder.file("small.svg");
    let answer = simulated(&["curve", "--job", "small", "--svg", &file]);
    assert!(answer.out.contains(&format!("picture  {file}\n")), "{}", answer.out);
    let picture = std::fs::read_to_string(&file).expect("a picture");
    assert!(
        picture.contains("within 10 % on 96 of 132 SMs") && picture.contains("comes from a model")
    );
    assert_eq!(
        simulated(&["curve", "--job", "small", "--svg", &folder.file("small.png")]).status,
        2
    );
}

#[test]
fn curve_prints_csv() {
    let answer = simulated(&["curve", "--job", "copy", "--sms", "16", "--csv"]);
    let lines: Vec<&str> = answer.out.lines().collect();
    let columns = "sms,blocks_us,median_us,spread,speed,doubling,skipped";
    assert_eq!((lines[0], lines.len()), (columns, 3), "{}", answer.out);
    assert!(lines[2].starts_with("132,") && lines[2].ends_with(",1.0,,"), "{}", lines[2]);
}

#[test]
fn wrong_curves_are_refused() {
    for (arguments, words) in [
        (&["--job", "gemm", "--sms", "0"][..], "at least 1 SM"),
        (&["--job", "gemm", "--budget", "-1"], "a number of seconds, such as 10"),
        (&["--job", "gemm", "--csv", "--json"], "cannot be used with"),
        (&["--job", "gemm", "--unit", "s"], "cannot be used with"),
        (&["--job", "gemm", "--lower-is-better"], "cannot be used with"),
        (&["--timeout", "0", "--", "true"], "a timeout must be longer than 0 s"),
        (&[], "<--job <NAME[:SIZE]>|PROGRAM>"),
        (&[], "green-ctx curve [OPTIONS] -- <PROGRAM>..."),
    ] {
        let answer = simulated(&[&["curve"], arguments].concat());
        let text = answer.err + &answer.out;
        assert!(answer.status == 2 && text.contains(words), "{arguments:?}: {text}");
    }
}

//! The fields that the help of each command lists, compared with those that it prints.

use serde_json::Value;

use crate::{run, simulated};

/// Returns the part of a help that is about a field: the line that begins with its name, before two spaces or a colon
/// at the end, and those that are indented further.
fn about<'a>(help: &[&'a str], field: &str) -> Option<Vec<&'a str>> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let name = |line: &&str| {
        let line = line.trim_start();
        let name = line.split_once("  ").map(|(name, _)| name).or(line.strip_suffix(':'));
        name.is_some_and(|name| has(name, field))
    };
    let start = help.iter().position(name)?;
    let below = help[start + 1..].iter().take_while(|line| indent(line) > indent(help[start]));
    Some(help[start..=start].iter().chain(below).copied().collect())
}

fn has(text: &str, word: &str) -> bool {
    text.split(|it: char| !it.is_alphanumeric() && it != '_' && it != '%').any(|it| it == word)
}

/// Returns the fields of a value that a help does not list. Each must be in the lines about the field that contains it.
/// The names of jobs and numbers of SMs are not fields.
fn missing(value: &Value, help: &[&str]) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(|item| missing(item, help)).collect(),
        Value::Object(fields) => {
            let is_field = |name: &str| {
                !["gemm", "copy", "small"].contains(&name) && name.parse::<u32>().is_err()
            };
            let of_field = |(name, value): (&String, &Value)| match about(help, name) {
                _ if !is_field(name) => missing(value, help),
                Some(lines) => missing(value, &lines),
                None if help.iter().any(|line| has(line, name)) => missing(value, help),
                None => vec![name.clone()],
            };
            fields.iter().flat_map(of_field).collect()
        }
        _ => Vec::new(),
    }
}

/// Checks that the help of a command lists the fields of its output.
#[track_caller]
pub(crate) fn are_listed(command: &str, output: &Value) {
    let help = run(&[command, "--help"]).out;
    let begin =
        if output["error"].is_object() { "Errors with --json" } else { "Fields with --json" };
    let lines: Vec<&str> = help.lines().skip_while(|line| !line.starts_with(begin)).collect();
    let end = lines.iter().position(|line| line.is_empty()).expect("an empty line");
    let mut missing = missing(output.get("error").unwrap_or(output), &lines[..end]);
    missing.sort_unstable();
    missing.dedup();
    assert!(missing.is_empty(), "not in the help of {command}: {missing:?}");
}

#[test]
fn the_help_lists_all_fields() {
    for arguments in [
        &["info"][..],
        &["info", "--all"],
        &["split", "--counts", "16,24"],
        &["split", "--counts", "200"],
        &["verify", "--counts", "16,24"],
        &["curve", "--job", "gemm"],
        &["tune", "--job", "small", "--job", "gemm", "--goal", "keep:small:p99:500us"],
    ] {
        are_listed(arguments[0], &simulated(&[arguments, &["--json"]].concat()).json());
    }
}

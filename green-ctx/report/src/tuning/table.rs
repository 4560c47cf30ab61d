//! The text output of `green-ctx tune`: a table of arms, and lines to copy into a program.

use std::cmp::Reverse;
use std::fmt::Write;

use green_ctx_tune::{ArmKind, ArmReport, Outcome};

use crate::canvas::shortened;
use crate::curve::curve_lines;

/// The number of arms shown by default.
const FEW: usize = 6;
/// The maximum width of an arm's description, so that a line has at most 100 columns.
const WIDEST: usize = 42;

/// Formats a table of the arms, the best first, and how each job scales when it runs alone. A line of the table has at
/// most 100 columns.
#[must_use]
pub fn tuning_table(outcome: &Outcome, all: bool) -> String {
    let verdict = &outcome.verdict;
    let is_named =
        |place: usize| [Some(verdict.arm), verdict.candidate, verdict.rival].contains(&Some(place));
    let mut places: Vec<usize> = (0..outcome.arms.len()).collect();
    places.sort_by_key(|place| {
        let arm = &outcome.arms[*place];
        let millionths = (1e6 * arm.score.unwrap_or(f64::NEG_INFINITY)) as i64;
        Reverse((is_named(*place), arm.stage, arm.meets(), millionths))
    });
    let shown = if all { places.len() } else { FEW.min(places.len()) };
    let tail = outcome.goal.percentile();
    let head: Vec<String> = outcome.jobs.iter().map(|job| shortened(&job.name, 10)).collect();
    let mut rows = vec![row("arm", &head, tail.map(|_| "p99, us"), "score", "from")];
    for place in &places[..shown] {
        let arm = &outcome.arms[*place];
        let rates: Vec<String> =
            outcome.jobs.iter().map(|job| part(arm, &job.name, job.rate)).collect();
        let p99 = tail.map(|(job, _)| {
            let p99 = arm.latency_us.get(job).and_then(|latency| latency.p99);
            p99.map_or("-".to_owned(), |p99| format!("{p99:.0}"))
        });
        let score = match (&arm.skipped, arm.score) {
            (Some(_), _) => "skipped".to_owned(),
            (None, Some(score)) => format!("{score:.3}"),
            (None, None) => "-".to_owned(),
        };
        let from = match (arm.meets(), arm.certain) {
            (false, _) => "misses",
            (true, Some(false)) => "unsure",
            (true, _) => arm.stage.as_str(),
        };
        let how = shortened(&outcome.describe(arm), WIDEST);
        rows.push(row(&how, &rates, p99.as_deref(), &score, from));
    }
    let mut text = rows.concat();
    if shown < places.len() {
        let more = places.len() - shown;
        let _ = writeln!(text, "{more} more arms; --all shows them, --json prints all figures");
    }
    text.push_str("\nEach job alone, on fewer SMs:\n");
    text.extend(outcome.curves().iter().map(curve_lines));
    text
}

fn row(arm: &str, rates: &[String], p99: Option<&str>, score: &str, from: &str) -> String {
    let rates: String = rates.iter().map(|rate| format!(" {rate:>10}")).collect();
    let p99 = p99.map_or_else(String::new, |p99| format!(" {p99:>9}"));
    let line = format!("{arm:<WIDEST$}{rates}{p99} {score:>8} {from}");
    format!("{}\n", line.trim_end())
}

/// Formats a job's rate in an arm as a percentage of the job's rate alone.
fn part(arm: &ArmReport, job: &str, alone: f64) -> String {
    let rate = arm.rates.get(job).filter(|_| arm.skipped.is_none());
    rate.map_or("-".to_owned(), |rate| format!("{:.0} %", 100.0 * rate / alone))
}

/// Returns lines of text that show how to apply the verdict on the command line, in Rust and in Python.
#[must_use]
pub fn tuning_lines(outcome: &Outcome) -> String {
    let verdict = &outcome.verdict;
    let jobs: Vec<(&str, &str, i32)> = outcome
        .jobs
        .iter()
        .map(|job| {
            let share = verdict.shares.get(&job.name).map_or("..", String::as_str);
            (job.name.as_str(), share, verdict.priority.get(&job.name).copied().unwrap_or(0))
        })
        .collect();
    // These lines do not fix the choice of units. Only `Outcome::request` does.
    let mut lines = String::from("To request the same shares or streams:\n");
    let names: Vec<&str> = jobs.iter().map(|(job, ..)| *job).collect();
    match verdict.kind {
        ArmKind::Partition => {
            let groups: Vec<String> =
                jobs.iter().map(|(job, share, _)| format!("--group {job}={share}")).collect();
            let _ = writeln!(lines, "  command  green-ctx split {}", groups.join(" "));
            let groups: String = jobs
                .iter()
                .map(|(job, share, _)| format!(".group({job:?}, {})", rust(share)))
                .collect();
            let _ = writeln!(lines, "  Rust     device.partition(SplitRequest::new(){groups})?");
            let parts: Vec<String> =
                jobs.iter().map(|(job, share, _)| format!("{job:?}: {share:?}")).collect();
            let _ = writeln!(lines, "  Python   partition({{{}}})", parts.join(", "));
            for (job, _, priority) in jobs.iter().filter(|(.., priority)| *priority != 0) {
                let _ =
                    writeln!(lines, "           with priority {priority} for the streams of {job}");
            }
        }
        ArmKind::Sequential => {
            let _ = writeln!(lines, "  submit {} to the same stream", names.join(" and "));
        }
        _ => {
            for (job, _, priority) in &jobs {
                let _ = writeln!(lines, "  give {job} a stream with priority {priority}");
            }
        }
    }
    let file =
        "  or apply a file of --out: Outcome::apply in Rust, load_tuning(FILE).apply() in Python";
    let _ = writeln!(lines, "{file}");
    lines
}

/// Formats a share as Rust code. The Rust form differs from the text form only for a range with both
/// ends.
fn rust(share: &str) -> String {
    match share.split_once("..") {
        Some((floor, ceiling)) if !ceiling.is_empty() && !ceiling.starts_with('=') => {
            format!("{floor}..={ceiling}")
        }
        _ => share.to_owned(),
    }
}

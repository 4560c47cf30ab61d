//! Comparison of two builds that run in alternating time slices on one machine.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::measure::median;
use crate::setup::{Failure, Result};
use crate::{print, table};

/// The environment variable that makes a build run in slices. At the end of a slice, the build writes a dot to standard
/// output, and waits for a byte on standard input. Its report follows the dots. A build that does not know the variable
/// runs in a single slice.
pub(crate) const SLICES: &str = "GREEN_CTX_SLICES";

#[derive(clap::Args)]
pub(crate) struct Compare {
    /// The previous build's binary: this program, or the benchmark `calls` of green-ctx
    old: PathBuf,

    /// The new build's binary
    new: PathBuf,

    /// The number of rounds. If it is even, each build runs first equally often
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Show only figures whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// The arguments for both binaries; `--json` is added
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// The values of one figure, one per round.
#[derive(Default)]
struct Pair {
    old: Vec<f64>,
    new: Vec<f64>,
}

/// Runs both builds and prints a table.
pub(crate) fn run(options: &Compare) -> Result<()> {
    let mut pairs = BTreeMap::<String, Pair>::new();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        let old_first = round % 2 == 0;
        let mut builds = [Build::start(options, old_first)?, Build::start(options, !old_first)?];
        // Order: a, b, b, a. A drift then affects both builds equally.
        while builds.iter().any(|build| build.report.is_none()) {
            builds.reverse();
            builds.iter_mut().try_for_each(Build::resume)?;
        }
        for Build { is_old, report, .. } in &builds {
            for (name, value) in report.iter().flat_map(figures) {
                let pair = pairs.entry(name).or_default();
                (if *is_old { &mut pair.old } else { &mut pair.new }).push(value);
            }
        }
    }
    if let Some(only) = &options.only {
        pairs.retain(|name, _| name.contains(only));
    }
    print(&render(&pairs))
}

/// A build that is being measured. It waits unless a method of this type runs.
struct Build {
    is_old: bool,
    binary: PathBuf,
    process: Child,
    /// `None` until the build is done.
    report: Option<Value>,
}

impl Build {
    /// Starts a build, and waits for the end of its first slice.
    fn start(options: &Compare, is_old: bool) -> Result<Build> {
        let binary = if is_old { &options.old } else { &options.new };
        let process = Command::new(binary)
            .args(&options.arguments)
            .arg("--json")
            .env(SLICES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| about(binary, &error))?;
        let mut build = Build { is_old, binary: binary.clone(), process, report: None };
        build.wait()?;
        Ok(build)
    }

    /// Lets the build run for another slice, if it is not done.
    fn resume(&mut self) -> Result<()> {
        let Some(input) = self.process.stdin.as_mut().filter(|_| self.report.is_none()) else {
            return Ok(());
        };
        // If the build has ended, `wait` says how.
        let _broken_pipe = input.write_all(b"\n");
        self.wait()
    }

    /// Waits until a slice ends, or takes the report of a build that is done.
    fn wait(&mut self) -> Result<()> {
        let mut output = Vec::new();
        if let Some(pipe) = &mut self.process.stdout {
            pipe.take(1).read_to_end(&mut output)?;
            if output == b"." {
                return Ok(());
            }
            pipe.read_to_end(&mut output)?;
        }
        let status = self.process.wait()?;
        if !status.success() {
            return Err(about(&self.binary, &status));
        }
        self.report =
            Some(serde_json::from_slice(&output).map_err(|error| about(&self.binary, &error))?);
        Ok(())
    }
}

impl Drop for Build {
    /// Ends a build whose counterpart has failed.
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

fn about(binary: &Path, problem: &dyn Display) -> Failure {
    format!("{}: {problem}", binary.display()).into()
}

/// Returns the figures of a report of this program or of `calls`.
fn figures(report: &Value) -> Vec<(String, f64)> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let name = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let mut figures = Vec::new();
    for arm in list(report, "arms") {
        let arm_name = name(&arm, "name");
        for sample in list(&arm, "samples") {
            for key in ["p50", "p99"] {
                let name = format!("{arm_name}: {}: {key}", name(&sample, "name"));
                figures.extend(sample[key].as_f64().map(|value| (name, value)));
            }
        }
        for figure in list(&arm, "figures") {
            let name = format!("{arm_name}: {}", name(&figure, "name"));
            figures.extend(figure["value"].as_f64().map(|value| (name, value)));
        }
    }
    for call in list(report, "calls") {
        for (key, value) in call.as_object().into_iter().flatten() {
            let name = format!("{}: {key}", name(&call, "call"));
            figures.extend(value.as_f64().map(|value| (name, value)));
        }
    }
    figures
}

fn render(pairs: &BTreeMap<String, Pair>) -> String {
    let mut rows = vec![["figure", "old", "new", "new/old", "low", "high"].map(str::to_owned)];
    for (name, Pair { old, new }) in pairs {
        let shown = |values: &[f64]| match values {
            [] => "-".to_owned(),
            values => number(median(values.to_vec())),
        };
        let mut ratios: Vec<f64> = old.iter().zip(new).map(|(old, new)| new / old).collect();
        ratios.sort_by(f64::total_cmp);
        let [ratio, low, high] = match (ratios.first(), ratios.last()) {
            (Some(least), Some(most)) if least.is_finite() && most.is_finite() => {
                let (low, high) = interval(&ratios);
                [median(ratios), low, high].map(|ratio| format!("{ratio:.3}"))
            }
            // A ratio to 0 means nothing, and a build may lack a figure.
            _ => ["-"; 3].map(str::to_owned),
        };
        rows.push([name.clone(), shown(old), shown(new), ratio, low, high]);
    }
    table::table(&rows)
}

/// Returns a 95 % confidence interval of the median. Its ends are two of the sorted values, of equal ranks from both
/// ends; fewer than six values are too few for 95 %, and the interval contains them all.
fn interval(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    // The probability that exactly `below` values lie below the median, and that at most as many do. With more than
    // 1000 rounds, the first one could be 0.
    let mut exactly = 0.5_f64.powf(count as f64);
    let mut at_most = exactly;
    let mut below = 0;
    while at_most <= 0.025 {
        exactly *= (count - below) as f64 / (below + 1) as f64;
        at_most += exactly;
        below += 1;
    }
    let rank = below.saturating_sub(1);
    (sorted[rank], sorted[count - 1 - rank])
}

/// Formats a value with enough digits to distinguish it from its neighbours.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_of_both_reports_are_found() {
        let sample = json!({ "name": "idle", "p50": 1.0, "p99": 2.0, "max": 3.0 });
        let figure = json!({ "name": "memory", "unit": "bytes", "value": 4.0 });
        let arm = json!({ "name": "switch", "samples": [sample], "figures": [figure] });
        let found = figures(&json!({ "arms": [arm] }));
        let expected =
            [("switch: idle: p50", 1.0), ("switch: idle: p99", 2.0), ("switch: memory", 4.0)];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)));

        let call = json!({ "call": "launch", "raw_ns": 5.0 });
        assert_eq!(figures(&json!({ "calls": [call] })), [("launch: raw_ns".to_owned(), 5.0)]);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let pair = Pair { old: vec![100.0, 200.0, 400.0], new: vec![110.0, 180.0, 400.0] };
        let pairs =
            BTreeMap::from([("call".to_owned(), pair), ("gone".to_owned(), Pair::default())]);
        let text = render(&pairs);
        assert!(text.contains("| call   | 200.00 | 180.00 | 1.000   | 0.900 | 1.100 |"), "{text}");
        assert!(text.contains("| gone   | -      | -      | -       | -     | -     |"), "{text}");
    }

    #[test]
    fn intervals_of_a_median_are_those_of_the_sign_test() {
        let interval = |count: u32| interval(&(1..=count).map(f64::from).collect::<Vec<_>>());
        let expected = [(1, (1.0, 1.0)), (5, (1.0, 5.0)), (8, (1.0, 8.0)), (9, (2.0, 8.0))];
        for (count, ends) in expected.into_iter().chain([(40, (14.0, 27.0)), (100, (40.0, 61.0))]) {
            assert_eq!(interval(count), ends, "{count} values");
        }
    }
}

//! The goals, and whether the figures meet them.

use crate::arms::Arm;
use crate::report::{Report, Shown, Unit};
use crate::setup::Result;
use crate::{FAILED, USAGE, print, table};

/// A goal and its measured value.
pub(crate) struct Goal {
    pub(crate) what: String,
    limit: Limit,
    unit: Unit,
    /// `None` if the arm did not run.
    measured: Option<f64>,
}

enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// Returns whether the value was measured and meets the limit.
    pub(crate) fn holds(&self) -> bool {
        match (self.measured, &self.limit) {
            (Some(measured), Limit::AtMost(limit)) => measured <= *limit,
            (Some(measured), Limit::AtLeast(limit)) => measured >= *limit,
            (None, _) => false,
        }
    }

    /// Returns the limit as text.
    pub(crate) fn limit(&self) -> String {
        let (words, limit) = match self.limit {
            Limit::AtMost(limit) => ("at most", limit),
            Limit::AtLeast(limit) => ("at least", limit),
        };
        if limit == 0.0 {
            return self.shown(limit).to_string();
        }
        format!("{words} {}", self.shown(limit))
    }

    /// Returns the measured value as text.
    pub(crate) fn measured(&self) -> String {
        self.measured.map_or("not measured".to_owned(), |value| self.shown(value).to_string())
    }

    fn shown(&self, value: f64) -> Shown {
        self.unit.show(value)
    }
}

/// Judges a report, and returns the exit status.
pub(crate) fn run(report: &Report) -> Result<u8> {
    if report.machine.simulated {
        eprintln!("green-ctx-bench: these times come from a simulated driver: nothing to judge");
        return Ok(USAGE);
    }
    if report.quick {
        eprintln!("green-ctx-bench: a quick run has too few samples to judge");
        return Ok(USAGE);
    }
    let goals = goals(report);
    print(&table::goals(&goals))?;
    Ok(if goals.iter().all(Goal::holds) { 0 } else { FAILED })
}

/// Returns the goals with a report's figures.
pub(crate) fn goals(report: &Report) -> Vec<Goal> {
    use Limit::{AtLeast, AtMost};
    use Unit::{Bytes, Count, Nanoseconds, Times};
    let mut goals = Vec::new();
    let mut goal =
        |what: String, limit, unit, measured| goals.push(Goal { what, limit, unit, measured });
    let sample = |arm: Arm, name: &str| report.sample(arm.name(), name);
    let figure = |arm: Arm, name: &str| report.figure(arm.name(), name);
    let ratio = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(a, b)| a / b);

    for state in ["idle", "in flight"] {
        let fenced = sample(Arm::Switch, &format!("two plans, fences, {state}"));
        let open = sample(Arm::Switch, &format!("two plans, no fences, {state}"));
        let what = |how| format!("switch of two plans {how}, {state}");
        let [median, p99] = [fenced.map(|sample| sample.p50), fenced.map(|sample| sample.p99)];
        goal(what("with fences: median"), AtMost(3000.0), Nanoseconds, median);
        goal(what("with fences: p99"), AtMost(10_000.0), Nanoseconds, p99);
        let median = open.map(|sample| sample.p50);
        goal(what("without fences: median"), AtMost(300.0), Nanoseconds, median);
    }
    let read = sample(Arm::Switch, "active plan read").map(|sample| sample.p50);
    goal("active plan read: median".to_owned(), AtMost(20.0), Nanoseconds, read);

    let switches = figure(Arm::Memory, "switches").unwrap_or(10_000.0);
    for (name, unit) in [
        ("device memory grown", Bytes),
        ("launches missing", Count),
        ("launches off their SMs", Count),
    ] {
        let what = format!("{switches} switches under load: {name}");
        goal(what, AtMost(0.0), unit, figure(Arm::Memory, name));
    }

    let product = figure(Arm::Moved, "products in the graph").filter(|products| *products > 0.0);
    for (what, limit, unit, name) in [
        ("numbers that differ", 0.0, Count, "numbers that differ"),
        ("SMs outside its partition", 0.0, Count, "SMs not its own"),
        ("SMs not used", 0.0, Count, "own SMs not used"),
        ("time, relative to the same graph captured there", 1.02, Times, "moved to captured there"),
    ] {
        let what = format!("graph with a product, moved to 32 SMs: {what}");
        goal(what, AtMost(limit), unit, product.and(figure(Arm::Moved, name)));
    }

    // The goal was set for the product. Without cuBLAS it is judged with the load of the same duration whose
    // blocks stay until the end.
    let p99 = |arm: Arm, name: String| sample(arm, &name).map(|sample| sample.p99);
    let has_product = sample(Arm::Latency, "gemm: partition").is_some();
    let load = if has_product { "gemm" } else { "persistent" };
    for mode in ["plain", "high priority"] {
        let [shared, own] =
            [mode, "partition"].map(|mode| p99(Arm::Latency, format!("{load}: {mode}")));
        let what = format!("small kernel next to {load}: p99 on {mode}, relative to a partition");
        goal(what, AtLeast(20.0), Times, ratio(shared, own));
    }

    let has_product = figure(Arm::Shares, "gemm: alone").is_some();
    let [shares, wall] =
        ["shares", "wall"].map(|mode| p99(Arm::Shares, format!("decode beside gemm: {mode}")));
    let [shares_load, wall_load] = ["shares", "wall"]
        .map(|mode| figure(Arm::Shares, &format!("decode beside gemm: {mode}, load")));
    let alone = figure(Arm::Shares, "decode alone: shares, speed to plain");
    let blocks = |how: &str| figure(Arm::Shares, &format!("blocks of the capped job {how}"));
    for (what, limit, unit, measured) in [
        (
            "decode next to gemm: p99 with 32.., relative to 32",
            AtMost(1.05),
            Times,
            ratio(shares, wall),
        ),
        (
            "decode next to gemm: load rate with ..=100, relative to the rest",
            AtLeast(0.98),
            Times,
            ratio(shares_load, wall_load),
        ),
        ("decode alone: speed with 32.., relative to a plain stream", AtLeast(0.97), Times, alone),
        (
            "blocks of a capped job on another job's floor",
            AtMost(0.0),
            Count,
            blocks("on the floor"),
        ),
        ("blocks of a capped job that did not run", AtMost(0.0), Count, blocks("that did not run")),
    ] {
        goal(what.to_owned(), limit, unit, measured.filter(|_| has_product));
    }
    goals
}

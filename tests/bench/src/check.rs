//! The goals, and whether the figures meet them.

use crate::arms::Arm;
use crate::report::{Report, Sample, Shown, Unit};
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
    use Unit::{Bytes, Count, Times};
    let mut goals = Vec::new();
    let mut goal =
        |what: String, limit, unit, measured| goals.push(Goal { what, limit, unit, measured });
    let sample = |arm: Arm, name: &str| report.sample(arm.name(), name);
    let figure = |arm: Arm, name: &str| report.figure(arm.name(), name);
    let ratio = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(a, b)| a / b);

    // Ratios, so that a slow host does not fail a goal. At commit c5228e9f, with driver 580.159.04, an H200 and an H100
    // took 1.48 to 1.63 times as long with fences as by hand, at the p99 1.45 to 1.65 times, and without fences 0.17 to
    // 0.26 times. The limits leave a factor of about 1.2 for medians, and of 2.4 for the p99, which varies more.
    let median = |sample: Option<&Sample>| sample.map(|sample| sample.p50);
    let tail = |sample: Option<&Sample>| sample.map(|sample| sample.p99);
    for state in ["idle", "in flight"] {
        let times = |how: &str| {
            let name = format!("two plans, {how}, {state}");
            (sample(Arm::Switch, &name), sample(Arm::Switch, &format!("{name}, by hand")))
        };
        let [(fenced, fenced_by_hand), (open, open_by_hand)] = ["fences", "no fences"].map(times);
        let mut goal = |how: &str, limit, measured| {
            let what = format!("switch of two plans {how} relative to the order by hand, {state}");
            goal(what, AtMost(limit), Times, measured);
        };
        goal("with fences: median", 2.0, ratio(median(fenced), median(fenced_by_hand)));
        goal("with fences: p99", 4.0, ratio(tail(fenced), tail(fenced_by_hand)));
        goal("without fences: median", 0.3, ratio(median(open), median(open_by_hand)));
    }
    let [active, locked] = ["active plan read", "plan in an RwLock read"]
        .map(|name| median(sample(Arm::Switch, name)));
    let what = "active plan read: median, relative to an `Arc` in an `RwLock`";
    goal(what.to_owned(), AtMost(1.0), Times, ratio(active, locked));

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
    let p99 = |arm: Arm, name: String| tail(sample(arm, &name));
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

//! The goals, and whether the figures meet them.

use crate::arms::Arm;
use crate::report::{Report, Shown, Unit};
use crate::setup::Result;
use crate::{FAILED, USAGE, print, table};

/// One goal and what was measured.
pub(crate) struct Goal {
    pub(crate) what: String,
    limit: Limit,
    unit: Unit,
    /// `None` where the arm did not run.
    measured: Option<f64>,
}

enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// Whether it was measured and holds.
    pub(crate) fn holds(&self) -> bool {
        match (self.measured, &self.limit) {
            (Some(measured), Limit::AtMost(limit)) => measured <= *limit,
            (Some(measured), Limit::AtLeast(limit)) => measured >= *limit,
            (None, _) => false,
        }
    }

    /// The limit, as people read it.
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

    /// What was measured, as people read it.
    pub(crate) fn measured(&self) -> String {
        self.measured.map_or("not measured".to_owned(), |value| self.shown(value).to_string())
    }

    fn shown(&self, value: f64) -> Shown {
        self.unit.show(value)
    }
}

/// Judges a report.
pub(crate) fn run(report: &Report) -> Result<u8> {
    if report.machine.simulated {
        eprintln!(
            "green-ctx-bench: these times are a simulated driver's: there is nothing to judge"
        );
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

/// The goals, with what a report says of each.
pub(crate) fn goals(report: &Report) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut at_most = |what: String, unit: Unit, limit: f64, measured: Option<f64>| {
        goals.push(Goal { what, limit: Limit::AtMost(limit), unit, measured });
    };
    let switch = |name: &str| report.sample(Arm::Switch.name(), name);
    for state in ["idle", "in flight"] {
        let fenced = switch(&format!("two plans, fences, {state}"));
        let open = switch(&format!("two plans, no fences, {state}"));
        let time = Unit::Nanoseconds;
        let what = |how| format!("switch of two plans {how}, {state}");
        at_most(what("with fences: median"), time, 3000.0, fenced.map(|sample| sample.p50));
        at_most(what("with fences: p99"), time, 10_000.0, fenced.map(|sample| sample.p99));
        at_most(what("without fences: median"), time, 300.0, open.map(|sample| sample.p50));
    }
    let read = switch("active plan read").map(|sample| sample.p50);
    at_most("active plan read: median".to_owned(), Unit::Nanoseconds, 20.0, read);

    let memory = |name: &str| report.figure(Arm::Memory.name(), name);
    let switches = memory("switches").map_or("10000".to_owned(), |count| format!("{count}"));
    let what = |rest: &str| format!("{switches} switches under load: {rest}");
    at_most(what("device memory grown"), Unit::Bytes, 0.0, memory("device memory grown"));
    at_most(what("launches missing"), Unit::Count, 0.0, memory("launches missing"));
    at_most(what("launches off their SMs"), Unit::Count, 0.0, memory("launches off their SMs"));

    let moved = |name: &str| report.figure(Arm::Moved.name(), name);
    let product = moved("products in the graph").filter(|products| *products > 0.0);
    let of_product = |name: &str| product.and(moved(name));
    let what = |rest: &str| format!("graph with a product, moved to 32 SMs: {rest}");
    at_most(what("numbers that differ"), Unit::Count, 0.0, of_product("numbers that differ"));
    at_most(what("SMs that are not its own"), Unit::Count, 0.0, of_product("SMs not its own"));
    at_most(what("SMs not used"), Unit::Count, 0.0, of_product("own SMs not used"));
    let ratio = of_product("moved to captured there");
    at_most(what("time, to the same graph captured there"), Unit::Times, 1.02, ratio);

    // The goal was set beside the product; without cuBLAS, it is the load of the same duration whose
    // blocks stay to the end.
    let p99 = |load: &str, mode: &str| {
        report.sample(Arm::Latency.name(), &format!("{load}: {mode}")).map(|sample| sample.p99)
    };
    let load = if p99("gemm", "partition").is_some() { "gemm" } else { "persistent" };
    for mode in ["plain", "high priority"] {
        let measured = p99(load, mode).zip(p99(load, "partition"));
        goals.push(Goal {
            what: format!("small kernel beside {load}: p99 on {mode} to p99 in a partition"),
            limit: Limit::AtLeast(20.0),
            unit: Unit::Times,
            measured: measured.map(|(shared, own)| shared / own),
        });
    }
    goals.extend(shares(report));
    goals
}

/// The goals of floors and ceilings beside the product, against a wall.
fn shares(report: &Report) -> Vec<Goal> {
    let arm = Arm::Shares.name();
    let figure = |name: &str| report.figure(arm, name);
    let has_product = figure("gemm: alone").is_some();
    let p99 = |mode: &str| {
        report.sample(arm, &format!("decode beside gemm: {mode}")).map(|sample| sample.p99)
    };
    let load = |mode: &str| figure(&format!("decode beside gemm: {mode}, load"));
    let ratio =
        |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(one, other)| one / other);
    let goal = |what: &str, limit, unit, measured: Option<f64>| Goal {
        what: what.to_owned(),
        limit,
        unit,
        measured: measured.filter(|_| has_product),
    };
    let (most, least, times) = (Limit::AtMost, Limit::AtLeast, Unit::Times);
    let p99 = ratio(p99("shares"), p99("wall"));
    let load = ratio(load("shares"), load("wall"));
    let alone = figure("decode alone: shares, speed to plain");
    vec![
        goal("decode beside gemm: p99 on 32.. to 32", most(1.05), times, p99),
        goal("decode beside gemm: the load's rate on ..=100 to the rest", least(0.98), times, load),
        goal("decode alone: speed on 32.. to a plain stream", least(0.97), times, alone),
        goal(
            "blocks of a capped job on another's floor",
            most(0.0),
            Unit::Count,
            figure("blocks of the capped job on the floor"),
        ),
        goal(
            "blocks of a capped job that did not run",
            most(0.0),
            Unit::Count,
            figure("blocks of the capped job that did not run"),
        ),
    ]
}

//! The result of tuning, as JSON and as text.

mod table;

use green_ctx::driver::DriverInfo;
use green_ctx_tune::{self as tune, ArmReport, JobReport, Outcome, Progress, Verdict};
use serde::Serialize;

pub use self::table::{tuning_lines, tuning_table};
use crate::objects::{DeviceObject, DriverObject, ReserveObject};

/// The JSON that `green-ctx tune` prints: the driver, the device and the outcome.
#[derive(Serialize)]
pub struct Tuning<'a> {
    driver: Option<DriverObject>,
    device: Option<DeviceObject>,
    goal: String,
    verdict: &'a Verdict,
    jobs: &'a [JobReport],
    arms: &'a [ArmReport],
    notes: &'a [String],
    complete: bool,
    seconds: f64,
}

impl Tuning<'_> {
    /// Creates the JSON object for an outcome.
    #[must_use]
    pub fn of((driver, device): Machine, outcome: &Outcome) -> Tuning<'_> {
        Tuning {
            driver: driver.map(DriverObject::from),
            device,
            goal: outcome.goal.to_string(),
            verdict: &outcome.verdict,
            jobs: &outcome.jobs,
            arms: &outcome.arms,
            notes: &outcome.notes,
            complete: outcome.complete,
            seconds: outcome.seconds,
        }
    }
}

/// The driver and the device of a measurement, if they are known.
pub type Machine = (Option<DriverInfo>, Option<DeviceObject>);

/// Returns the driver and the device of a machine that an outcome or a curve contains. The result has no device ordinal,
/// because a machine does not contain one.
#[must_use]
pub fn machine_of(machine: Option<&tune::Machine>) -> Machine {
    let device = machine.map(|machine| DeviceObject {
        ordinal: None,
        name: machine.device.clone(),
        sm_count: machine.sm_count,
        compute_capability: machine.compute_capability.to_string(),
        reserve: ReserveObject::of(machine.sm_count, machine.unbound_sms()),
    });
    (machine.map(|machine| machine.driver.clone()), device)
}

/// The width of the progress bar, and the maximum width of a line.
const WIDTH: usize = 24;
const COLUMNS: usize = 100;

/// Formats the progress of tuning as a line of at most 100 characters.
#[must_use]
pub fn progress_line(progress: &Progress<'_>) -> String {
    let spent = progress.spent.clamp(0.0, 1.0);
    let full = (spent * WIDTH as f64).round() as usize;
    let best = progress.best.as_ref().map_or_else(String::new, |best| format!("; best: {best}"));
    let bar = ["#".repeat(full), "·".repeat(WIDTH - full)].concat();
    let left = progress.left.as_secs_f64().ceil();
    let line = format!("{bar} {:3.0} %, {left:.0} s left: {}{best}", 100.0 * spent, progress.step);
    line.chars().take(COLUMNS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use green_ctx_tune::{Model, ModelJob, Profile, Request, UnitSizes};

    #[test]
    fn a_line_says_how_far_it_is() {
        let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
        let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
        let jobs = [Profile::new("a"), Profile::new("b".repeat(200))];
        let mut lines = Vec::new();
        let mut go_on = |progress: &Progress<'_>| {
            lines.push(progress_line(progress));
            true
        };
        tune::with(&mut model, &jobs, pieces, &Request::default(), &mut go_on).expect("it runs");
        assert!(
            lines.first().is_some_and(|line| line.contains("  0 %, 20 s left: each job alone")),
            "{lines:?}"
        );
        assert!(lines.last().is_some_and(|line| line.contains("; best: ")), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
    }
}

//! What `green-ctx tune` prints as JSON.

use green_ctx_tune::{ArmReport, JobReport, Outcome, Verdict};
use serde::Serialize;

use crate::output::{DeviceObject, DriverObject};

#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    driver: Option<DriverObject>,
    device: Option<DeviceObject>,
    goal: String,
    verdict: &'a Verdict,
    jobs: &'a [JobReport],
    arms: &'a [ArmReport],
    notes: &'a [String],
    seconds: f64,
}

impl<'a> Answer<'a> {
    pub(super) fn of(
        driver: DriverObject,
        device: Option<DeviceObject>,
        outcome: &'a Outcome,
    ) -> Answer<'a> {
        Answer { driver: Some(driver), device, ..Answer::of_file(outcome) }
    }

    /// The answer for an outcome in a file, which does not say which device it was by its number.
    pub(crate) fn of_file(outcome: &'a Outcome) -> Answer<'a> {
        let machine = outcome.machine.as_ref();
        Answer {
            driver: machine.map(|machine| machine.driver.clone().into()),
            device: machine.map(|machine| DeviceObject {
                ordinal: None,
                name: machine.device.clone(),
                sm_count: machine.sm_count,
                compute_capability: machine.compute_capability.to_string(),
            }),
            goal: outcome.goal.to_string(),
            verdict: &outcome.verdict,
            jobs: &outcome.jobs,
            arms: &outcome.arms,
            notes: &outcome.notes,
            seconds: outcome.seconds,
        }
    }
}

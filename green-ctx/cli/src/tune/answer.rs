//! What `green-ctx tune` prints as JSON.

use green_ctx::driver::DriverInfo;
use green_ctx_tune::Outcome;
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::{DeviceObject, DriverObject};

/// An outcome after the driver and the device, as every command prints them.
#[derive(Serialize)]
pub(crate) struct Answer {
    driver: Option<DriverObject>,
    device: Option<DeviceObject>,
    #[serde(flatten)]
    outcome: Value,
}

impl Answer {
    pub(crate) fn of((driver, device): Machine, outcome: &Outcome) -> Answer {
        let Outcome { goal, verdict, jobs, arms, notes, seconds, .. } = outcome;
        let outcome = json!({
            "goal": goal.to_string(), "verdict": verdict, "jobs": jobs, "arms": arms, "notes": notes,
            "seconds": seconds,
        });
        Answer { driver: driver.map(DriverObject::from), device, outcome }
    }
}

/// A driver and a device, of outcomes that have some.
pub(crate) type Machine = (Option<DriverInfo>, Option<DeviceObject>);

/// The driver and the device of an outcome in a file, which does not say the device's number.
pub(crate) fn of_file(outcome: &Outcome) -> Machine {
    let device = outcome.machine.as_ref().map(|machine| DeviceObject {
        ordinal: None,
        name: machine.device.clone(),
        sm_count: machine.sm_count,
        compute_capability: machine.compute_capability.to_string(),
    });
    (outcome.machine.as_ref().map(|machine| machine.driver.clone()), device)
}

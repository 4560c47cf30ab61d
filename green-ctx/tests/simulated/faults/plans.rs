//! Preparing, switching and retiring plans.

use std::time::Duration;

use green_ctx::{
    Device, Error, PlanSet, Result, StreamOptions,
    plan::{PlanError, SwitchOptions},
};

use super::scenario::Scenario;
use crate::common::{Outcome, plans::plan};

/// Returns the driver error in a plan error. No other kind can occur with these plans.
fn driver(error: PlanError) -> Error {
    match error {
        PlanError::Error(error) => error,
        other => Error::InvalidRequest(other.to_string()),
    }
}

fn set(device: &Device) -> Result<PlanSet> {
    let set =
        PlanSet::new(device.rest("all")?, plan("day", 16)).map_err(|error| driver(error.reason))?;
    set.prepare(plan("night", 64)).map_err(driver)?;
    Ok(set)
}

/// Switches to `night` and back. Between switches a stream is created and dropped.
fn switches(_: &Device, set: &mut PlanSet) -> Result<()> {
    for name in ["night", "day"] {
        let late = set.active().partitions()[1].create_stream(StreamOptions::default())?;
        drop(late);
        let plan = set.plan(name).map_err(driver)?;
        let options = SwitchOptions::default().drain(Duration::from_secs(60));
        if let Err(error) = set.switch(&plan, options) {
            assert_ne!(set.active().name(), name, "a failed switch made the plan active");
            return Err(driver(error));
        }
        assert_eq!(set.active().name(), name);
    }
    Ok(())
}

#[test]
fn switched_plans() -> Outcome {
    for spec in ["h200@12.5", "h200@13.0", "h200@13.4"] {
        let tear_down = |_: &Device, set: PlanSet| -> Outcome {
            // After any failure the set can still be switched.
            for name in ["night", "day"] {
                set.switch(&set.plan(name)?, SwitchOptions::default())?;
            }
            Ok(())
        };
        let name = "switched plans";
        Scenario { name, spec, at_least: 25, set_up: set, run: switches, tear_down }.exhaust()?;
    }
    Ok(())
}

#[test]
fn prepared_plans() -> Outcome {
    let run = |device: &Device, (): &mut ()| {
        let set = set(device)?;
        set.prepare(plan("dusk", 32)).map_err(driver)?;
        set.retire("night").map_err(driver)
    };
    let (name, spec, at_least) = ("prepared plans", "h200@13.0", 40);
    Scenario { name, spec, at_least, set_up: |_| Ok(()), run, tear_down: |_, ()| Ok(()) }.exhaust()
}

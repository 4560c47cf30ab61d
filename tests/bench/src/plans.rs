//! Plan sets for switching.

use std::sync::Arc;

use green_ctx::{Device, Plan, PlanRequest, PlanSet, SplitRequest};

use crate::setup::Result;

/// Creates a set of all SMs of a device with `plans` plans of two partitions each. No two plans have a
/// partition in common.
pub(crate) fn prepare(device: &Device, plans: u32) -> Result<(PlanSet, Vec<Arc<Plan>>)> {
    let sms = device.resources().sm()?;
    let unit = sms.min_partition().max(sms.alignment()).max(1);
    // The counts range from a few units to three quarters of the device.
    let most = sms.sm_count() / unit * 3 / 4;
    if most <= plans {
        return Err(format!("{} SMs are not enough for {plans} plans", sms.sm_count()).into());
    }
    let counts: Vec<u32> =
        (0..plans).map(|index| (1 + (index + 1) * (most - 1) / plans) * unit).collect();
    let plan = |count: &u32| {
        let request = SplitRequest::new().group("decode", *count).rest("prefill");
        PlanRequest::new(format!("decode on {count}"), request)
    };
    let (first, others) = counts.split_first().ok_or("a set has at least one plan")?;
    let set = PlanSet::new(device.rest("all")?, plan(first))?;
    for count in others {
        set.prepare(plan(count))?;
    }
    let plans = set.plans();
    Ok((set, plans))
}

/// The plans of a set in rotation.
pub(crate) struct Turns<'a> {
    plans: &'a [Arc<Plan>],
    at: usize,
}

impl<'a> Turns<'a> {
    /// Starts with the active plan.
    pub(crate) fn new(set: &PlanSet, plans: &'a [Arc<Plan>]) -> Turns<'a> {
        let active = set.active();
        let at = plans.iter().position(|plan| Arc::ptr_eq(plan, &active)).unwrap_or(0);
        Turns { plans, at }
    }

    /// Returns the position of the current plan.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the current plan.
    pub(crate) fn plan(&self) -> &'a Arc<Plan> {
        &self.plans[self.at]
    }

    /// Moves on to the next plan, and returns it.
    pub(crate) fn next(&mut self) -> &'a Arc<Plan> {
        self.at = (self.at + 1) % self.plans.len();
        self.plan()
    }
}

/// Waits for the work of all plans.
pub(crate) fn settle(plans: &[Arc<Plan>]) -> Result<()> {
    let partitions = plans.iter().flat_map(|plan| plan.partitions());
    for partition in partitions {
        partition.stream().synchronize()?;
    }
    Ok(())
}

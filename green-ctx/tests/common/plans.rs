//! Plan sets and their contents.

use std::sync::Arc;

use green_ctx::{
    Device, Plan, PlanRequest, PlanSet, Share, SplitRequest, Stream, context::Context,
};

/// Returns a request that gives `sm_count` SMs to `decode` and the rest to `prefill`.
pub(crate) fn decode(sm_count: u32) -> SplitRequest {
    SplitRequest::new().group("decode", sm_count).rest("prefill")
}

pub(crate) fn plan(name: &str, sm_count: u32) -> PlanRequest {
    PlanRequest::new(name, decode(sm_count))
}

/// A plan set with its plans, in the order of their requests.
pub(crate) type Prepared = (PlanSet, Vec<Arc<Plan>>);

/// Creates a set of all SMs of a device with `plans`; the first is active.
pub(crate) fn set<const N: usize>(
    device: &Device,
    plans: [(&str, SplitRequest); N],
) -> Result<Prepared, Box<dyn std::error::Error>> {
    let mut plans = plans.into_iter().map(|(name, request)| PlanRequest::new(name, request));
    let set = PlanSet::new(device.rest("all")?, plans.next().ok_or("no plan")?)?;
    let mut prepared = vec![Arc::clone(&set.active())];
    for plan in plans {
        prepared.push(set.prepare(plan)?);
    }
    Ok((set, prepared))
}

/// Creates a set whose plans give `decode` 16 SMs (`day`) and 64 SMs (`night`), and the rest to `prefill`.
pub(crate) fn day_and_night(device: &Device) -> Result<Prepared, Box<dyn std::error::Error>> {
    set(device, [("day", decode(16)), ("night", decode(64))])
}

pub(crate) fn stream_of(plan: &Plan, name: &str) -> Result<Stream, Box<dyn std::error::Error>> {
    Ok(plan.partition(name).ok_or("no such partition")?.stream().clone())
}

pub(crate) fn context_of(plan: &Plan, name: &str) -> Result<Context, Box<dyn std::error::Error>> {
    Ok(plan.partition(name).ok_or("no such partition")?.context().clone())
}

pub(crate) fn request<S: Into<Share> + Copy>(groups: &[(&str, S)]) -> SplitRequest {
    groups.iter().fold(SplitRequest::new(), |request, (name, share)| request.group(*name, *share))
}

/// Creates a set in which plans `b` and `c` have a partition on the same SMs, and plan `a` divides those SMs
/// differently.
pub(crate) fn overlapping(device: &Device) -> Result<Prepared, Box<dyn std::error::Error>> {
    let plans = [
        ("a", request(&[("x", 16), ("l", 40)])),
        ("b", request(&[("y", 32)])),
        ("c", request(&[("y", 32), ("z", 16)])),
    ];
    set(device, plans)
}

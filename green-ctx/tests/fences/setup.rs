//! Kernels, sets of plans and launches that the tests have in common.

use std::ptr;
use std::sync::Arc;

use green_ctx::context::Context;
use green_ctx::sim_0_1::{Launch, Sim};
use green_ctx::stream::DefaultStream;
use green_ctx::{
    Device, Kernel, LaunchConfig, Library, Plan, PlanRequest, PlanSet, Share, SplitRequest, Stream,
};

use crate::raw;

/// A kernel that fills its partition and runs so long.
pub(crate) fn work(
    sim: &Sim,
    device: &Device,
    name: &str,
    ns: u64,
) -> Result<Kernel, green_ctx::Error> {
    sim.register_kernel(name, move |call| call.set_duration_ns(ns));
    let ptx = format!(".version 7.0 .target sm_52 .visible .entry {name}() {{ ret; }}");
    Library::from_ptx(device, &ptx)?.kernel(name)
}

pub(crate) const LONG: u64 = 1_000_000_000;
pub(crate) const SHORT: u64 = 1_000;

pub(crate) fn launch(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<()> {
    // SAFETY: the kernel takes no parameters.
    unsafe { stream.launch(kernel, LaunchConfig::new(200, 32), ()) }
}

/// Launches on the default stream of a context.
pub(crate) fn launch_on_default(context: &Context, kernel: &Kernel) -> green_ctx::Result<()> {
    let _current = context.make_current()?;
    launch_on_current(context.device(), kernel)
}

/// Launches on the default stream of the current context.
pub(crate) fn launch_on_current(device: &Device, kernel: &Kernel) -> green_ctx::Result<()> {
    let launch = device.driver().api().cuLaunchKernel()?;
    let (stream, none) = (DefaultStream::Legacy.as_raw(), ptr::null_mut());
    // SAFETY: the kernel is alive and takes no parameters; the token is of the current context.
    raw::ok("cuLaunchKernel", unsafe {
        launch(kernel.as_raw().cast(), 200, 1, 1, 32, 1, 1, 0, stream, none, ptr::null_mut())
    })
}

/// Two launches of different kernels that were on one SM at the same time, if there are any.
pub(crate) fn conflict(launches: &[Launch]) -> Option<(&Launch, &Launch)> {
    let mut pairs = launches
        .iter()
        .enumerate()
        .flat_map(|(index, first)| launches[index + 1..].iter().map(move |second| (first, second)));
    pairs.find(|(first, second)| {
        let shares = first.sms.iter().any(|sm| second.sms.contains(sm));
        first.kernel != second.kernel && shares && first.overlaps(second)
    })
}

pub(crate) fn assert_no_conflict(sim: &Sim, launched: usize) {
    let launches = sim.launches();
    assert_eq!(launches.len(), launched);
    assert!(conflict(&launches).is_none(), "{:?}", conflict(&launches));
}

/// A set with its plans, in order.
pub(crate) type Prepared = (PlanSet, Vec<Arc<Plan>>);

/// A set of all SMs of a device with several plans, the first of them active.
pub(crate) fn set<const N: usize>(
    device: &Device,
    plans: [(&str, SplitRequest); N],
) -> Result<Prepared, Box<dyn std::error::Error>> {
    let all = device.resources().sm()?.split(SplitRequest::new().rest("all"))?.remainder;
    let mut plans = plans.into_iter().map(|(name, request)| PlanRequest::new(name, request));
    let set = PlanSet::new(all.ok_or("no SMs")?, plans.next().ok_or("no plan")?)?;
    let mut prepared = vec![Arc::clone(&set.active())];
    for plan in plans {
        prepared.push(set.prepare(plan)?);
    }
    Ok((set, prepared))
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

/// Plans of which `b` and `c` have a partition of the same SMs, which `a` divides otherwise.
pub(crate) fn overlapping(device: &Device) -> Result<Prepared, Box<dyn std::error::Error>> {
    let plans = [
        ("a", request(&[("x", 16), ("l", 40)])),
        ("b", request(&[("y", 32)])),
        ("c", request(&[("y", 32), ("z", 16)])),
    ];
    set(device, plans)
}

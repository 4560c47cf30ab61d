//! Kernels that fill partitions, and the order in which they ran.

use std::time::Duration;

use green_ctx::sim::{Launch, Sim};
use green_ctx::stream::DefaultStream;
use green_ctx::{Device, Kernel, LaunchConfig, Stream, context::Context};

use crate::LONG;
use crate::common::{kernels, raw};

pub(crate) const SHORT: Duration = Duration::from_micros(1);

/// Loads a kernel `name` that runs for `duration`.
pub(crate) fn kernel(
    sim: &Sim,
    device: &Device,
    name: &str,
    duration: Duration,
) -> green_ctx::Result<Kernel> {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    sim.register_kernel(name, move |call| call.set_duration_ns(nanoseconds));
    kernels::plain(device, name)
}

/// Loads a kernel that runs long and one that runs briefly.
pub(crate) fn old_and_new(sim: &Sim, device: &Device) -> green_ctx::Result<[Kernel; 2]> {
    Ok([kernel(sim, device, "old", LONG)?, kernel(sim, device, "new", SHORT)?])
}

/// Launches enough blocks to fill any partition.
pub(crate) fn launch(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<()> {
    // SAFETY: the kernel has no parameters and touches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(200, 32), ()) }
}

/// Launches on the default stream of a context.
pub(crate) fn launch_on_default(context: &Context, kernel: &Kernel) -> green_ctx::Result<()> {
    let _current = context.make_current()?;
    launch_on_current(context.device(), kernel)
}

/// Launches on the default stream of the current context.
pub(crate) fn launch_on_current(device: &Device, kernel: &Kernel) -> green_ctx::Result<()> {
    raw::launch(device, DefaultStream::Legacy.as_raw(), kernel.as_raw().cast(), [200, 32])
}

/// Returns two launches of different kernels that ran on one SM at the same time, or `None`.
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

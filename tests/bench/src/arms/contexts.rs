//! Contexts that the driver creates and destroys, and contexts that are reused.

use green_ctx::{Device, Stream, StreamOptions, context::Context};

use super::Found;
use crate::measure::{Times, figure};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "A partition of 24 SMs with a stream: the time from the split to \
    the stream, and the time to drop both. `made`: no idle context is kept, so the driver \
    creates and destroys a context each time. `recycled`: the context is kept and reused.";

const SMS: u32 = 24;
/// The default number of idle contexts of a device (`Device::set_idle_limit`).
const IDLE_LIMIT: usize = 64;

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let device = &bench.device;
    let mut found = Found::default();

    device.set_idle_limit(0);
    // Few repetitions: the driver never returns the memory of contexts that it created.
    let made = cycles(bench, &mut found, "made", bench.count(50, 5));
    device.set_idle_limit(IDLE_LIMIT);
    made?;

    cycles(bench, &mut found, "recycled", bench.count(5000, 50))?;
    Ok(found)
}

/// Creates and drops partitions. The first two are a warm-up.
fn cycles(bench: &Bench, found: &mut Found, how: &str, count: usize) -> Result<()> {
    bench.progress.step(&format!("  {count} partitions, {how}"));
    let device = &bench.device;
    for _ in 0..2 {
        drop(acquire(device)?);
    }
    let mut acquired = Times::with_capacity(count);
    let mut dropped = Times::with_capacity(count);
    let (free, created) = (device.free_memory()?, device.context_counts().created);
    for _ in 0..count {
        bench.slices.next();
        let partition = acquired.take(|| acquire(device))?;
        dropped.take(|| drop(partition));
    }
    // Negative if other code freed memory during the measurement.
    let lost = free as f64 - device.free_memory()? as f64;
    let created = device.context_counts().created - created;
    found.samples.push(acquired.sample(format!("{how}: split, context and stream")));
    found.samples.push(dropped.sample(format!("{how}: dropped")));
    let name = format!("{how}: device memory lost a partition");
    found.figures.push(figure(name, Unit::Bytes, lost / count as f64));
    let name = format!("{how}: contexts that the driver made");
    found.figures.push(figure(name, Unit::Count, created as f64));
    Ok(())
}

fn acquire(device: &Device) -> Result<(Stream, Context)> {
    let split = device.resources().sm()?.split([SMS])?;
    let group = split.groups.into_iter().next().ok_or("a split gave no group")?;
    let context = device.create_context(group)?;
    Ok((context.create_stream(StreamOptions::default())?, context))
}

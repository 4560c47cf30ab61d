//! The latency of a small kernel next to a saturating load, and how much the load loses.

use std::time::Duration;

use green_ctx::{SplitRequest, Stream, StreamOptions};

use super::Found;
use crate::load::{Load, Rate};
use crate::measure::{Pauses, Times, figure};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Host time from launching an addition of 256 × 256 numbers until \
    it is done, at irregular moments, while a thread keeps several launches of a load in flight. \
    `plain`: both on plain streams. `high priority`: the addition on a stream of the highest \
    priority. `partition`: the addition in a partition of 16 SMs, the load on all others. The \
    load `persistent` has as many blocks as fit on the SMs at the same time, and they stay for \
    the whole 1.5 ms; `waves` has 16 times as many blocks of a sixteenth of the time; `gemm` is \
    cuBLAS's product of 8192³ in bf16.";

/// The SMs of the small kernel's partition.
const SMS: u32 = 16;
/// A lower number is a higher priority. The driver clamps it to the device's range.
const HIGHEST: i32 = -100;
/// The longest pause before a sample.
const PAUSE: Duration = Duration::from_micros(400);

/// The ways in which the small kernel and the load share the device.
pub(crate) const MODES: [&str; 3] = ["plain", "high priority", "partition"];
/// The name of the figure for a load that runs alone.
const LOAD_ALONE: &str = "load alone";

/// The streams of the small kernel and of the load in one mode.
struct Streams {
    small: Stream,
    load: Stream,
}

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let mut found = Found::default();
    let modes = streams(bench)?;
    for (mode, streams) in MODES.iter().zip(&modes) {
        let times = samples(bench, &streams.small, None)?;
        found.samples.push(times.sample(format!("no load: {mode}")));
    }
    for load in &bench.loads.prepare(bench)? {
        let name = load.name();
        bench.progress.step(&format!("  {name}: {LOAD_ALONE}"));
        let alone = load.alone(bench, &modes[0].load)?;
        found.figures.push(figure(format!("{name}: {LOAD_ALONE}"), Unit::PerSecond, alone));
        for (mode, streams) in MODES.iter().zip(&modes) {
            let (times, rate) = beside(bench, load, mode, streams)?;
            let name = format!("{name}: {mode}");
            found.samples.push(times.sample(&name));
            found.figures.push(figure(format!("{name}, load"), Unit::PerSecond, rate));
            let lost = (1.0 - rate / alone) * 100.0;
            found.figures.push(figure(format!("{name}, load lost"), Unit::Percent, lost));
        }
    }
    Ok(found)
}

/// Creates the streams of each mode, in the order of [`MODES`].
fn streams(bench: &Bench) -> Result<[Streams; 3]> {
    let request = SplitRequest::new().group("small", SMS).rest("load");
    let split = bench.device.resources().sm()?.split(request)?;
    let mut groups = split.groups.into_iter().chain(split.remainder);
    let mut partition = || -> Result<Stream> {
        let group = groups.next().ok_or("the device has too few SMs for both partitions")?;
        let context = bench.device.create_context(group)?;
        Ok(context.create_stream(StreamOptions::default())?)
    };
    let partition = Streams { small: partition()?, load: partition()? };
    let high = bench.primary.create_stream(StreamOptions::default().priority(HIGHEST))?;
    Ok([
        Streams { small: bench.plain_stream()?, load: bench.plain_stream()? },
        Streams { small: high, load: bench.plain_stream()? },
        partition,
    ])
}

/// Returns the small kernel's times next to a load, and the load's launches per second.
fn beside(bench: &Bench, load: &Load, mode: &str, streams: &Streams) -> Result<(Times, f64)> {
    bench.progress.step(&format!("  {}: {mode}", load.name()));
    load.run(bench, &streams.load, |running| {
        let rate = Rate::start(bench, running);
        let times = samples(bench, &streams.small, Some(&rate))?;
        Ok((times, rate.end()))
    })
}

/// Returns the small kernel's times. Next to a load, takes samples until the load's rate is measured.
fn samples(bench: &Bench, stream: &Stream, load: Option<&Rate<'_>>) -> Result<Times> {
    let (count, warm_up) = (bench.count(2000, 30), bench.count(20, 2));
    let mut pauses = Pauses::up_to(PAUSE);
    let mut times = Times::with_capacity(16 * count);
    let small = || -> green_ctx::Result<()> {
        bench.kernels.add(stream)?;
        stream.synchronize()
    };
    for _ in 0..warm_up {
        small()?;
    }
    let is_measured = || load.map_or(Ok(true), Rate::is_measured);
    while !is_measured()? || times.len() < count {
        pauses.pause();
        times.take(small)?;
        bench.progress.at(times.len(), count);
    }
    Ok(times)
}

//! Launches on streams of each kind.

use std::time::Instant;

use green_ctx::{Device, Stream, StreamOptions};

use super::Found;
use crate::measure::{Times, figure, median};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "An empty kernel, launched in turn on a plain stream (of the \
    primary context), on a stream of a new green context of 24 SMs, and on a stream of a reused \
    one. `submit`: 64 launches before the stream is synchronised. `round trip`: launch and \
    synchronise. The ratios are medians over turns.";

const SMS: u32 = 24;
/// Launches before each synchronisation.
const BATCH: u32 = 64;
const NAMES: [&str; 3] = ["plain", "green", "recycled"];

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let device = &bench.device;
    device.release_idle();
    // Two partitions of the same size, so that the second cannot reuse the first one's SMs.
    let green = stream(device)?;
    drop(stream(device)?);
    let before = device.context_counts().reused;
    let recycled = stream(device)?;
    if device.context_counts().reused != before + 1 {
        return Err("no context was reused".into());
    }
    let streams = [bench.plain_stream()?, green, recycled];

    let rounds = bench.count(500, 10);
    let times = || [(); 3].map(|()| Times::with_capacity(rounds * BATCH as usize));
    let [mut submits, mut batches, mut trips] = [times(), times(), times()];
    bench.progress.step("  submitting");
    for round in 0..rounds + 1 {
        bench.slices.next();
        for index in turn(round) {
            let stream = &streams[index];
            let start = Instant::now();
            for _ in 0..BATCH {
                bench.kernels.nothing(stream)?;
            }
            let time = start.elapsed();
            stream.synchronize()?;
            let mut calls = Times::with_capacity(BATCH as usize);
            for _ in 0..BATCH {
                calls.take(|| bench.kernels.nothing(stream))?;
            }
            stream.synchronize()?;
            // The first round loads the kernel.
            if round > 0 {
                batches[index].push_each(time, BATCH);
                submits[index].append(calls);
            }
        }
    }
    bench.progress.step("  round trips");
    for round in 0..rounds * 4 {
        bench.slices.next();
        for index in turn(round) {
            trips[index].take(|| {
                bench.kernels.nothing(&streams[index])?;
                streams[index].synchronize()
            })?;
        }
    }

    let mut found = Found::default();
    for (what, times) in [("submit", &batches), ("round trip", &trips)] {
        for index in [1, 2] {
            let ratio = median(times[index].ratios(&times[0]));
            let name = format!("{what}: {} to plain", NAMES[index]);
            found.figures.push(figure(name, Unit::Times, ratio));
        }
    }
    for (what, times) in [("submit", submits), ("round trip", trips)] {
        for (times, name) in times.into_iter().zip(NAMES) {
            found.samples.push(times.sample(format!("{what}: {name}")));
        }
    }
    Ok(found)
}

/// Returns the streams in an order that changes from round to round, since later ones find warmer caches.
fn turn(round: usize) -> [usize; 3] {
    [0, 1, 2].map(|index| (index + round) % 3)
}

/// Creates a stream of a new partition.
fn stream(device: &Device) -> Result<Stream> {
    let split = device.resources().sm()?.split([SMS])?;
    let group = split.groups.into_iter().next().ok_or("a split gave no group")?;
    Ok(device.create_context(group)?.create_stream(StreamOptions::default())?)
}

//! Launches on streams of each kind.

use std::time::Instant;

use green_ctx::{Device, Stream, StreamOptions};

use super::Found;
use crate::measure::{Times, figure, median};
use crate::report::Unit;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "An empty kernel, launched on a plain stream (of the primary context), on \
    a stream of a green context of 24 SMs that was just made, and on one of a context that was used \
    before, in turn: submitting it, 64 times before the stream is waited for, and the round trip of \
    launch and wait. The ratios are medians over turns.";

const SMS: u32 = 24;
/// Launches before the stream is waited for.
const BATCH: u32 = 64;
const NAMES: [&str; 3] = ["plain", "green", "recycled"];

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let device = &bench.device;
    device.release_idle();
    // Two of a count, so that the second cannot get the SMs of the first.
    let green = stream(device)?;
    drop(stream(device)?);
    let before = device.context_counts().reused;
    let recycled = stream(device)?;
    if device.context_counts().reused != before + 1 {
        return Err("no context was used again".into());
    }
    let streams = [bench.plain_stream()?, green, recycled];

    let rounds = bench.count(500, 10);
    let times = || [(); 3].map(|()| Times::with_capacity(rounds * BATCH as usize));
    let [mut submits, mut batches, mut trips] = [times(), times(), times()];
    bench.progress.step("  submitting");
    for round in 0..rounds + 1 {
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

/// The streams in an order that changes: whoever comes later finds warmer caches.
fn turn(round: usize) -> [usize; 3] {
    [0, 1, 2].map(|index| (index + round) % 3)
}

/// A stream of a partition.
fn stream(device: &Device) -> Result<Stream> {
    let split = device.resources().sm()?.split([SMS])?;
    let group = split.groups.into_iter().next().ok_or("a split gave no group")?;
    Ok(device.create_context(group)?.create_stream(StreamOptions::default())?)
}

//! Graphs that are moved to a partition.
#![allow(unsafe_code, reason = "launches graphs")]

use std::hint::black_box;
use std::time::Instant;

use green_ctx::{
    Graph, StreamOptions,
    context::Context,
    graph::{CaptureMode, GraphCache},
};

use super::Found;
use crate::measure::Times;
use crate::setup::{Bench, Result};

pub(super) const ABOUT: &str = "Graphs of a chain of small kernels, captured on a plain stream. \
    `retarget`: making a copy that runs in a partition. `instantiate`: making the copy \
    executable. `cached`: looking up the executables of two partitions alternately in a cache \
    that has both, 1000 look-ups at a time. `submit`: launching an executable in its partition. \
    `round trip`: the same until the graph is done.";

const NODES: [usize; 3] = [26, 500, 5000];
const SMS: [u32; 2] = [16, 32];
/// The number of look-ups that are timed together.
const LOOK_UPS: u32 = 1000;

pub(super) fn run(bench: &Bench) -> Result<Found> {
    let split = bench.device.resources().sm()?.split(SMS)?;
    let contexts = split.groups.into_iter().map(|group| bench.device.create_context(group));
    let contexts: Vec<Context> = contexts.collect::<std::result::Result<_, _>>()?;
    let mut found = Found::default();
    for nodes in NODES {
        bench.progress.step(&format!("  {nodes} nodes"));
        let graph = capture(bench, nodes)?;
        if graph.node_count()? != nodes {
            return Err(format!("the graph of {nodes} launches has another number of nodes").into());
        }
        for (what, times) in [
            ("retarget", retarget(bench, &graph, &contexts)?),
            ("instantiate", instantiate(bench, &graph, &contexts)?),
            ("cached", cached(bench, &graph, &contexts)?),
        ] {
            found.samples.push(times.sample(format!("{nodes} nodes: {what}")));
        }
        let (submits, trips) = launch(bench, &graph, &contexts[0])?;
        found.samples.push(submits.sample(format!("{nodes} nodes: submit")));
        found.samples.push(trips.sample(format!("{nodes} nodes: round trip")));
    }
    Ok(found)
}

fn capture(bench: &Bench, nodes: usize) -> Result<Graph> {
    let stream = bench.plain_stream()?;
    let work = || (0..nodes).try_for_each(|_| bench.kernels.add(&stream));
    Ok(stream.capture(CaptureMode::default(), work)?)
}

/// Returns the contexts alternately.
fn context(contexts: &[Context], round: usize) -> &Context {
    &contexts[round % contexts.len()]
}

fn retarget(bench: &Bench, graph: &Graph, contexts: &[Context]) -> Result<Times> {
    let (count, warm_up) = (bench.count(200, 4), 2);
    let mut times = Times::with_capacity(count);
    for round in 0..warm_up + count {
        bench.slices.next();
        let start = Instant::now();
        let moved = graph.retarget(context(contexts, round));
        let time = start.elapsed();
        // Dropped after its time was taken.
        drop(moved?);
        if round >= warm_up {
            times.push(time);
        }
    }
    Ok(times)
}

fn instantiate(bench: &Bench, graph: &Graph, contexts: &[Context]) -> Result<Times> {
    let (count, warm_up) = (bench.count(50, 2), 1);
    let mut times = Times::with_capacity(count);
    for round in 0..warm_up + count {
        bench.slices.next();
        let moved = graph.retarget(context(contexts, round))?;
        let start = Instant::now();
        let exec = moved.instantiate();
        let time = start.elapsed();
        drop(exec?);
        if round >= warm_up {
            times.push(time);
        }
    }
    Ok(times)
}

fn cached(bench: &Bench, graph: &Graph, contexts: &[Context]) -> Result<Times> {
    let cache = GraphCache::new();
    for context in contexts {
        cache.get(graph, context)?;
    }
    let count = bench.count(1000, 10);
    let mut times = Times::with_capacity(count);
    for _ in 0..count {
        bench.slices.next();
        let start = Instant::now();
        for context in contexts.iter().cycle().take(LOOK_UPS as usize) {
            black_box(cache.get(black_box(graph), context)?);
        }
        times.push_each(start.elapsed(), LOOK_UPS);
    }
    if cache.len() != contexts.len() {
        return Err("the cache does not hold one executable per context".into());
    }
    Ok(times)
}

/// Returns the times of submitting a graph and of the round trip.
fn launch(bench: &Bench, graph: &Graph, context: &Context) -> Result<(Times, Times)> {
    let (count, warm_up) = (bench.count(200, 4), 4);
    let exec = graph.retarget(context)?.instantiate()?;
    let stream = context.create_stream(StreamOptions::default())?;
    let [mut submits, mut trips] = [(); 2].map(|()| Times::with_capacity(count));
    for round in 0..warm_up + count {
        bench.slices.next();
        let start = Instant::now();
        // SAFETY: the graph's kernels are the additions that `capture` recorded. `bench.kernels` keeps them and
        // their memory alive, and freeing the memory waits for the device's work.
        let launched = unsafe { stream.launch_graph(&exec) };
        let submitted = start.elapsed();
        launched?;
        stream.synchronize()?;
        if round >= warm_up {
            submits.push(submitted);
            trips.push(start.elapsed());
        }
    }
    Ok((submits, trips))
}

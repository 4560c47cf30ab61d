//! Graphs: captured once, then run in any partition.
//!
//! ```text
//! cargo run -p green-ctx --example 05-graphs                           # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 05-graphs     # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{
    Device, DeviceBuffer, LaunchConfig, SplitRequest, StreamOptions,
    graph::{CaptureMode, GraphCache},
};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let step = common::step(device)?;
    let value = DeviceBuffer::<u32>::zeroed(device, 1)?;

    // This code knows nothing about partitions. It captures on a stream of the primary context.
    let anywhere = device.primary_context()?.create_stream(StreamOptions::default())?;
    let graph = anywhere.capture(CaptureMode::default(), || {
        let arguments = (value.as_argument(), 10u32, 1u32);
        // SAFETY: these are the kernel's three parameters. The buffer outlives the graph's launches, which wait for
        // each other below.
        unsafe { anywhere.launch(&step, LaunchConfig::new(1, 1), arguments) }
    })?;
    // The graph runs where it was captured, whichever stream launches it.
    write!(out, "captured: {}", graph.audit()?)?;

    let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
    let moved = graph.retarget(parts["decode"].context())?;
    write!(out, "moved:    {}", moved.audit()?)?;
    assert_eq!(moved.contexts(), [parts["decode"].context().clone()]);

    // The cache moves and instantiates a graph once per partition.
    let cache = GraphCache::new();
    for _ in 0..2 {
        for (name, other) in [("decode", "prefill"), ("prefill", "decode")] {
            let exec = cache.get(&graph, parts[name].context())?;
            // All copies use the same memory, so their launches must wait for each other. Launch each on a stream
            // of the partition in which it runs.
            let stream = parts[name].stream();
            stream.wait_for(parts[other].stream())?;
            // SAFETY: the buffer is alive, and the wait orders the launches.
            unsafe { stream.launch_graph(&exec) }?;
        }
    }
    let result = value.read(parts["prefill"].stream())?[0];
    writeln!(out, "four launches of {} executables: {result}", cache.len())?;
    assert_eq!((cache.len(), result), (2, 1111));

    // An executable keeps its partition alive. Before closing the partition, forget its executables.
    let decode = parts.into_iter().next().ok_or("there are two")?;
    let refused = decode.close().expect_err("the cache and the graph keep it");
    writeln!(out, "refused: {refused}")?;
    let decode = refused.given;
    cache.forget(decode.context());
    drop(moved);
    writeln!(out, "closed, {} SMs came back", decode.close()?.sm_count())?;
    Ok(())
}

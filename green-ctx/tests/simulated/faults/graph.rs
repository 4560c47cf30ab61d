//! Graphs: capturing, moving, caching and launching them.

use green_ctx::{
    Device, DeviceBuffer, Error, Graph, Kernel, LaunchConfig, Result, Stream, StreamOptions,
    graph::{CaptureMode, GraphCache, RetargetError},
};

use super::scenario::Scenario;
use crate::common::{Outcome, kernels, partition, raw};

/// A graph that exists before any call fails, and the objects that it uses.
struct Made {
    kernel: Kernel,
    memory: DeviceBuffer<u32>,
    stream: Stream,
    graph: Graph,
}

impl Made {
    fn new(device: &Device) -> Result<Made> {
        let kernel = kernels::plain(device, "step")?;
        let memory = DeviceBuffer::zeroed(device, 8)?;
        let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
        let graph = capture(&stream, &kernel, &memory)?;
        Ok(Made { kernel, memory, stream, graph })
    }
}

/// Captures a kernel launch, a memset and a copy.
fn capture(stream: &Stream, kernel: &Kernel, memory: &DeviceBuffer<u32>) -> Result<Graph> {
    let at = memory.as_raw();
    stream.capture(CaptureMode::default(), || {
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { stream.launch(kernel, LaunchConfig::new(8, 32), ()) }?;
        raw::fill(stream, at, 7, 4)?;
        raw::copy(stream, at + 16, at, 16)
    })
}

/// Returns the driver error in a retarget error. No other kind can occur with these graphs.
fn driver(error: RetargetError) -> Error {
    match error {
        RetargetError::Error(error) => error,
        other => Error::InvalidRequest(other.to_string()),
    }
}

fn exhaust(
    name: &'static str,
    at_least: usize,
    run: fn(&Device, &mut Made) -> Result<()>,
) -> Outcome {
    for spec in ["h200@12.5", "h200@13.0", "h200@13.4"] {
        // The original graph is unchanged and still works.
        let tear_down = |_: &Device, made: Made| -> Outcome {
            let exec = made.graph.instantiate()?;
            // SAFETY: `made` keeps the graph's kernel and memory alive, and no other work uses the memory.
            unsafe { made.stream.launch_graph(&exec) }?;
            assert_eq!(made.memory.read(&made.stream)?, [7; 8]);
            Ok(())
        };
        Scenario { name, spec, at_least, set_up: Made::new, run, tear_down }.exhaust()?;
    }
    Ok(())
}

#[test]
fn captures() -> Outcome {
    exhaust("captures", 12, |_, made| capture(&made.stream, &made.kernel, &made.memory).map(drop))
}

#[test]
fn moved_graphs() -> Outcome {
    exhaust("moved graphs", 40, |device, made| {
        let partition = partition(device, 16)?;
        let cache = GraphCache::new();
        let exec = cache.get(&made.graph, &partition).map_err(driver)?;
        let stream = partition.create_stream(StreamOptions::default())?;
        exec.upload(&stream)?;
        // SAFETY: `made` keeps the graph's kernel and memory alive, and no other work uses the memory.
        unsafe { stream.launch_graph(&exec) }?;
        stream.synchronize()
    })
}

#[test]
fn audits() -> Outcome {
    exhaust("audits", 10, |_, made| {
        assert_eq!(made.graph.audit()?.nodes.len(), made.graph.node_count()?);
        Ok(())
    })
}

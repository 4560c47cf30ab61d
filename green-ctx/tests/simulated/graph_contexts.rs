//! The contexts that a graph's nodes run in: they are kept alive, and reported as far as the driver reports them.

use green_ctx::{
    DeviceBuffer, Graph, Kernel, Stream, StreamOptions,
    context::{CloseReason, Context},
    graph::CaptureMode,
    sim::Fault,
};

use crate::common::{Outcome, partition};
use crate::{COMPOSITION, LONG, Machine, each_composing_driver, each_failing_driver, launch, raw};

/// Two partitions, whose streams are captured into one graph.
struct Forked {
    small: Context,
    large: Context,
    memory: DeviceBuffer<u32>,
    kernel: Kernel,
}

impl Forked {
    fn new(machine: &Machine) -> green_ctx::Result<Forked> {
        let memory = DeviceBuffer::zeroed(&machine.device, 64)?;
        let (small, large) = (partition(&machine.device, 16)?, partition(&machine.device, 64)?);
        Ok(Forked { small, large, memory, kernel: machine.kernel(LONG)? })
    }

    /// Captures a launch in the small partition, and a memset and a copy on a stream of the large one. If
    /// `ends_early`, that stream is dropped before the capture ends.
    fn capture(&self, ends_early: bool) -> green_ctx::Result<Graph> {
        let stream = self.small.create_stream(StreamOptions::default())?;
        let mut forked = Some(self.large.create_stream(StreamOptions::default())?);
        stream.capture(CaptureMode::default(), || {
            launch(&stream, &self.kernel)?;
            if let Some(forked) = &forked {
                forked.wait_for(&stream)?;
                self.submit(forked)?;
                stream.wait_for(forked)?;
            }
            if ends_early {
                forked = None;
            }
            Ok(())
        })
    }

    fn submit(&self, stream: &Stream) -> green_ctx::Result<()> {
        let at = self.memory.as_raw();
        raw::fill(stream, at, 7, 32)?;
        raw::copy(stream, at + 128, at, 128)
    }
}

#[track_caller]
fn kept(context: Context, by: &str) -> Context {
    let error = context.close().expect_err(by);
    assert!(matches!(error.reason, CloseReason::Shared { .. }), "{}", error.reason);
    error.given
}

#[test]
fn a_graph_keeps_the_partitions_of_memsets_and_copies() -> Outcome {
    for ends_early in [false, true] {
        each_composing_driver(|machine| {
            let forked = Forked::new(machine)?;
            let graph = forked.capture(ends_early)?;
            let Forked { small, large, memory, kernel: _kernel } = forked;
            let large = kept(large, "the graph's memset runs there");
            assert_eq!(graph.audit()?.nodes.len(), 3);
            assert_eq!(graph.contexts().len(), 2);
            let exec = graph.instantiate()?;
            drop(graph);
            let (small, large) =
                (kept(small, "the launch"), kept(large, "the executable's memset"));
            let stream = small.create_stream(StreamOptions::default())?;
            // SAFETY: `memory` is alive, and no other work uses it.
            unsafe { stream.launch_graph(&exec) }?;
            assert_eq!(memory.read(&stream)?, [7; 64]);
            drop((exec, stream));
            large.close()?;
            small.close()?;
            Ok(())
        })
        .map_err(|error| format!("ends early: {ends_early}: {error}"))?;
    }
    Ok(())
}

/// A graph does not hold the contexts of other captures, or of streams that are not captured.
#[test]
fn a_graph_keeps_no_other_partition() -> Outcome {
    each_composing_driver(|machine| {
        let forked = Forked::new(machine)?;
        let others = [partition(&machine.device, 8)?, partition(&machine.device, 8)?];
        let (idle, captured) = (
            others[0].create_stream(StreamOptions::default())?,
            others[1].create_stream(StreamOptions::default())?,
        );
        let _handles = (idle.as_raw(), captured.as_raw());
        let mut graph = None;
        captured.capture(CaptureMode::ThreadLocal, || {
            graph = Some(forked.capture(false)?);
            Ok::<(), green_ctx::Error>(())
        })?;
        drop((idle, captured));
        for context in others {
            context.close()?;
        }
        drop(graph);
        Ok(())
    })
}

/// If the driver fails to report whether a stream takes part in a capture, the graph keeps the stream's
/// partition alive.
#[test]
fn a_stream_that_may_take_part_keeps_its_partition() -> Outcome {
    each_failing_driver(|machine| {
        if !machine.has(COMPOSITION) {
            return Ok(());
        }
        let kernel = machine.kernel(LONG)?;
        let _reported = machine.hook();
        let origin = partition(&machine.device, 16)?;
        let stream = origin.create_stream(StreamOptions::default())?;
        let graph = stream.capture(CaptureMode::Relaxed, || {
            let inside = partition(&machine.device, 24)?;
            let forked = inside.create_stream(StreamOptions::default())?;
            forked.wait_for(&stream)?;
            launch(&forked, &kernel)?;
            stream.wait_for(&forked)?;
            machine.sim.fail(Fault::on("cuStreamGetCaptureInfo")).expect("there is such a call");
            Ok::<(), green_ctx::Error>(())
        })?;
        assert_eq!((graph.contexts().len(), machine.free()?), (2, 92));
        Ok(())
    })
}

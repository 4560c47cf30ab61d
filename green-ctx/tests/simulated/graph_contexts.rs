//! The contexts that a graph's nodes run in: they are kept alive, and reported as far as the driver reports them. A
//! graph with nodes in several partitions is not moved.

use green_ctx::{
    DeviceBuffer, Graph, Kernel, SplitRequest, Stream, StreamOptions,
    context::{CloseReason, Context},
    graph::{CaptureMode, GraphCache, RetargetError},
    sim::Fault,
};

use crate::common::{Outcome, partition, stream};
use crate::graphs::{add_child, run, wide};
use crate::{
    COMPOSITION, LONG, Machine, NODES, each_composing_driver, each_failing_driver, launch, raw,
};

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

/// The contexts of two named partitions.
struct Two {
    decode: Context,
    prefill: Context,
    kernel: Kernel,
}

impl Two {
    fn new(machine: &Machine) -> Result<Two, Box<dyn std::error::Error>> {
        let request = SplitRequest::new().group("decode", 16).group("prefill", 64);
        let parts = machine.device.partition(request)?;
        let context = |name: &str| parts[name].context().clone();
        let (decode, prefill) = (context("decode"), context("prefill"));
        Ok(Two { decode, prefill, kernel: machine.kernel(LONG)? })
    }

    /// Captures `work`, which gets a stream of each context. The capture begins on the first stream, forks to the
    /// second stream and joins it again.
    fn captured(
        contexts: [&Context; 2],
        work: impl FnOnce(&Stream, &Stream) -> green_ctx::Result<()>,
    ) -> green_ctx::Result<Graph> {
        let (first, second) = (stream(contexts[0])?, stream(contexts[1])?);
        // Other code has the handle, so only the driver knows whether the stream takes part.
        let _shown = second.as_raw();
        first.capture(CaptureMode::default(), || {
            second.wait_for(&first)?;
            work(&first, &second)?;
            first.wait_for(&second)
        })
    }
}

/// Checks that neither `retarget` nor a cache moves the graph, and that nothing is created.
#[track_caller]
fn stays(machine: &Machine, graph: &Graph, to: &Context, names: [&str; 2]) {
    let (cache, live) = (GraphCache::new(), machine.sim.live());
    let errors = [graph.retarget(to).map(drop), cache.get(graph, to).map(drop)];
    for error in errors.map(|moved| moved.expect_err("the graph has several contexts")) {
        assert!(
            matches!(&error, RetargetError::SeveralContexts { contexts } if *contexts == names),
            "{error}"
        );
    }
    assert!(cache.is_empty());
    assert_eq!(machine.sim.live(), live, "an object was created");
}

#[test]
fn a_graph_of_two_partitions_is_not_moved() -> Outcome {
    each_composing_driver(|machine| {
        let Two { decode, prefill, kernel } = Two::new(machine)?;
        let names = ["decode", "prefill"];
        let graph = Two::captured([&decode, &prefill], |first, second| {
            wide(first, &kernel)?;
            wide(second, &kernel)
        })?;
        let audit = graph.audit()?.to_string();
        for to in [&decode, &prefill, &machine.device.primary_context()?] {
            stays(machine, &graph, to, names);
        }
        let error = graph.retarget(&decode).expect_err("two partitions");
        assert_eq!(
            error.to_string(),
            "the graph's nodes belong to several contexts (decode, prefill) and may wait for each \
             other; capture the nodes of each context as a separate graph, or launch this graph as \
             it is"
        );
        assert_eq!(graph.audit()?.to_string(), audit);
        assert_eq!(run(machine, &graph, &decode)?, [16, 64]);

        // A memset counts as well. Before CUDA 13.2, the driver reports no context for it.
        let memory = DeviceBuffer::<u32>::zeroed(&machine.device, 8)?;
        let graph = Two::captured([&decode, &prefill], |first, second| {
            wide(first, &kernel)?;
            raw::fill(second, memory.as_raw(), 7, 8)
        })?;
        stays(machine, &graph, &prefill, names);
        Ok(())
    })
}

/// A stream without nodes has an influence only if the driver does not report the contexts of all nodes.
#[test]
fn a_stream_that_took_part_without_nodes_may_count() -> Outcome {
    each_composing_driver(|machine| {
        let Two { decode, prefill, kernel } = Two::new(machine)?;
        let graph = Two::captured([&decode, &prefill], |first, _| wide(first, &kernel))?;
        assert_eq!(graph.contexts().len(), 2);
        assert_eq!(run(machine, &graph.retarget(&prefill)?, &prefill)?, [64]);

        let memory = DeviceBuffer::<u32>::zeroed(&machine.device, 8)?;
        let graph =
            Two::captured([&decode, &prefill], |first, _| raw::fill(first, memory.as_raw(), 7, 8))?;
        if machine.has(NODES) {
            graph.retarget(&prefill)?;
        } else {
            stays(machine, &graph, &prefill, ["decode", "prefill"]);
        }
        Ok(())
    })
}

#[test]
fn a_context_without_an_object_counts() -> Outcome {
    each_composing_driver(|machine| {
        let Machine { device, .. } = machine;
        let Two { decode, prefill, kernel } = Two::new(machine)?;
        let green = raw::Green::create(device)?;
        let foreign = green.stream()?;
        raw::begin_capture(device, foreign)?;
        raw::launch(device, foreign, kernel.as_raw().cast(), [132, 1024])?;
        let child = raw::end_capture(device, foreign)?;
        // SAFETY: the graph was created above, and no other code uses it.
        let child = unsafe { Graph::from_raw_owned(device, child) }?;
        assert_eq!(run(machine, &child.retarget(&prefill)?, &prefill)?, [64]);

        let graph = Two::captured([&decode, &decode], |first, _| wide(first, &kernel))?;
        // The node is added after this crate has read the contexts.
        add_child(&graph, &child)?;
        stays(machine, &graph, &prefill, ["a context of another library", "decode"]);
        drop((graph, child));
        raw::destroy_stream(device, foreign).map_err(Into::into)
    })
}

/// A library may submit some of a partition's work to its own streams, which are in the primary context. Moving the
/// graph gathers that work in the partition.
#[test]
fn work_that_left_its_partition_moves_back() -> Outcome {
    each_composing_driver(|machine| {
        let Two { decode, prefill, kernel } = Two::new(machine)?;
        let primary = machine.device.primary_context()?;
        let memory = DeviceBuffer::<u32>::zeroed(&machine.device, 8)?;
        for contexts in [[&decode, &primary], [&primary, &decode]] {
            let graph = Two::captured(contexts, |first, second| {
                raw::fill(first, memory.as_raw(), 7, 8)?;
                wide(first, &kernel)?;
                wide(second, &kernel)
            })?;
            let moved = graph.retarget(&decode)?;
            assert_eq!(run(machine, &moved, &decode)?, [16, 16]);
            // A copy moves again, also to where it came from.
            let again = moved.retarget(&prefill)?;
            assert_eq!(run(machine, &again, &prefill)?, [64, 64]);
            assert_eq!(run(machine, &again.retarget(&decode)?, &decode)?, [16, 16]);
        }
        Ok(())
    })
}

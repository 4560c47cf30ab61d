//! Escapes: what a watch reports, which checks agree, and how many escapes are kept.

use green_ctx::{
    DeviceBuffer, Error, Graph, Kernel, Stream,
    context::Context,
    graph::CaptureMode,
    watch::{EscapeKind, Watch},
};

use crate::common::{Outcome, partition, stream};
use crate::raw::{self, Green};
use crate::{LONG, Machine, NODES, each_composing_driver, each_driver, launch};

/// Returns whether a graph runs inside a partition. A watch's two ways of checking and the driver's launch
/// check must agree.
#[track_caller]
fn is_inside(graph: &Graph, partition: &Context) -> Result<bool, Box<dyn std::error::Error>> {
    let (exec, stream) = (graph.instantiate()?, stream(partition)?);
    let inside = Watch::new(partition).graph("a graph", graph)?;
    let watch = Watch::new(partition);
    {
        let _watching = watch.launches();
        // SAFETY: the graph keeps its kernels loaded, and the tests keep its memory allocated. No other work uses
        // that memory.
        unsafe { stream.launch_graph(&exec) }?;
    }
    let escapes = watch.escapes();
    assert_eq!(escapes.is_empty(), inside, "{escapes:?}");
    assert!(escapes.iter().all(|escape| escape.kind == EscapeKind::GraphLaunch), "{escapes:?}");
    let driver = partition.device().driver();
    driver.check_launches(true);
    // SAFETY: as above.
    let checked = unsafe { stream.launch_graph(&exec) };
    driver.check_launches(false);
    match checked {
        Ok(()) => assert!(inside),
        Err(Error::Escapes(escape)) => assert!(!inside, "{escape}"),
        Err(error) => return Err(error.into()),
    }
    stream.synchronize()?;
    Ok(inside)
}

/// Captures a launch in one stream, and a memset in a stream forked from it.
fn captured(
    stream: &Stream,
    kernel: &Kernel,
    forked: &Stream,
    memory: &DeviceBuffer<u32>,
) -> green_ctx::Result<Graph> {
    stream.capture(CaptureMode::default(), || {
        launch(stream, kernel)?;
        forked.wait_for(stream)?;
        raw::fill(forked, memory.as_raw(), 7, 8)?;
        stream.wait_for(forked)
    })
}

#[test]
fn launches_are_judged_by_all_nodes() -> Outcome {
    each_composing_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        let memory = DeviceBuffer::zeroed(&machine.device, 8)?;
        let (ours, other) = (partition(&machine.device, 16)?, partition(&machine.device, 32)?);
        let inside = [stream(&ours)?, stream(&ours)?];
        let outside = [stream(&other)?, stream(&other)?];
        assert!(is_inside(&captured(&inside[0], &kernel, &inside[1], &memory)?, &ours)?);
        let memset_outside = captured(&inside[0], &kernel, &outside[0], &memory)?;
        assert_eq!(is_inside(&memset_outside, &ours)?, !machine.has(NODES));
        let kernel_outside = captured(&outside[0], &kernel, &inside[0], &memory)?;
        assert!(!is_inside(&kernel_outside, &ours)?);
        let all_outside = captured(&outside[0], &kernel, &outside[1], &memory)?;
        assert!(!is_inside(&all_outside, &ours)?);
        assert!(is_inside(&all_outside.retarget(&ours)?, &ours)?);
        Ok(())
    })
}

/// Captures a launch with raw driver calls, in a context that has no object of this crate.
fn captured_elsewhere(
    machine: &Machine,
    context: &Green,
    kernel: &Kernel,
) -> Result<Graph, Box<dyn std::error::Error>> {
    let device = &machine.device;
    let stream = context.stream()?;
    raw::begin_capture(device, stream)?;
    raw::launch(device, stream, kernel.as_raw().cast(), [1, 32])?;
    let graph = raw::end_capture(device, stream)?;
    raw::destroy_stream(device, stream)?;
    // SAFETY: the graph was captured above, and the tests keep its context alive.
    Ok(unsafe { Graph::from_raw_owned(device, graph) }?)
}

#[test]
fn a_context_that_is_adopted_later_is_the_one_of_its_graphs() -> Outcome {
    each_composing_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        let foreign = Green::create(&machine.device)?;
        let graph = captured_elsewhere(machine, &foreign, &kernel)?;
        let exec = graph.instantiate()?;
        // SAFETY: `foreign` lives until the test ends.
        let adopted = unsafe { Context::from_raw_borrowed(machine.driver(), foreign.context, ()) }?;
        assert!(is_inside(&graph, &adopted)?);
        let other = partition(&machine.device, 16)?;
        assert!(!is_inside(&graph, &other)?);
        let watch = Watch::new(&other);
        assert!(!watch.context("theirs", &adopted)? && !watch.graph("graph", &graph)?);
        for escape in watch.escapes() {
            // The driver does not report the SMs of a foreign context. Here they are those of `other`.
            assert!(escape.location.as_ref().is_some_and(|location| location.foreign));
            let text = escape.to_string();
            assert!(
                text.ends_with("of borrowed (device 0), perhaps on the floors of partitions"),
                "{text}"
            );
        }
        let watch = Watch::new(&adopted);
        {
            let _watching = watch.launches();
            // SAFETY: the graph's kernel touches no memory.
            unsafe { stream(&adopted)?.launch_graph(&exec) }?;
        }
        assert_eq!(watch.escapes(), []);
        adopted.synchronize()?;
        drop((graph, exec, watch, adopted));
        Ok(())
    })
}

#[test]
fn a_watch_keeps_the_first_escapes_and_counts_the_rest() -> Outcome {
    each_driver(|machine| {
        let ours = partition(&machine.device, 16)?;
        let primary = machine.device.primary_context()?;
        let watch = Watch::new(&ours);
        let escape = |count: usize| -> green_ctx::Result<()> {
            for index in 0..count {
                assert!(!watch.context(&index.to_string(), &primary)?);
            }
            Ok(())
        };
        escape(Watch::MAX_ESCAPES + 5)?;
        let names = |escapes: &[green_ctx::watch::Escape]| {
            let names = escapes.iter().map(|escape| escape.name.parse::<usize>());
            names.collect::<Result<Vec<_>, _>>()
        };
        let first: Vec<usize> = (0..Watch::MAX_ESCAPES).collect();
        assert_eq!(names(&watch.escapes())?, first);
        assert_eq!(watch.omitted_escapes(), 5);
        // Taking the escapes makes room for new ones. The count of omitted escapes is not reset.
        assert_eq!(names(&watch.take_escapes())?, first);
        assert_eq!(watch.take_escapes(), []);
        escape(2)?;
        assert_eq!(names(&watch.escapes())?, [0, 1]);
        assert_eq!(watch.omitted_escapes(), 5);
        Ok(())
    })
}

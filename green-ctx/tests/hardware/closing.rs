//! Resources that refused closes and captures keep alive: the stream of a refused close, the partitions and
//! libraries of a captured graph, and the SMs of a closed plan set.

use std::collections::BTreeSet;
use std::time::Duration;

use green_ctx::{
    DeviceBuffer, Error, LaunchConfig, Partition, PlanSet, Stream, StreamOptions,
    context::CloseReason,
    event::EventOptions,
    graph::{CaptureMode, GraphCache},
    plan::SwitchOptions,
};

use crate::busy::keep_busy;
use crate::common::plans::plan;
use crate::common::{Outcome, device, group, kernels};

/// Blocks of the probe: eight waves on an H200, with two blocks per SM at a time.
const BLOCKS: u32 = 1056;

/// Launches the probe with enough blocks to reach every SM. The kernel is loaded for this launch and dropped
/// right after it.
fn probe(stream: &Stream, results: &DeviceBuffer<u64>) -> green_ctx::Result<()> {
    let kernel = kernels::probe(stream.context().device())?;
    let arguments = (results.as_argument(), 100_000_u64);
    // SAFETY: the arguments match the kernel's two parameters. Each block writes three words, which `results`
    // has, and the tests keep `results` until the work is done.
    unsafe { stream.launch(&kernel, LaunchConfig::new(BLOCKS, 1024), arguments) }
}

/// Returns the SMs that the probe's blocks ran on.
fn sms(results: &DeviceBuffer<u64>, stream: &Stream) -> green_ctx::Result<BTreeSet<u32>> {
    let words = results.read(stream)?;
    Ok(words.chunks_exact(3).map(|block| block[0] as u32).collect())
}

#[test]
fn a_refused_close_leaves_the_stream_and_its_order() -> Outcome {
    let device = device()?;
    let partition = device.create_partition(group(&device, 16)?)?;
    let (kernel, results) = (kernels::probe(&device)?, DeviceBuffer::zeroed(&device, 3)?);
    keep_busy(partition.stream(), &kernel, &results, Duration::from_millis(30))?;
    let done = device.create_event(EventOptions::default())?;
    partition.stream().record(&done)?;
    let id = partition.stream().id()?;
    let further = partition.create_stream(StreamOptions::default())?;
    let refused = partition.close().expect_err("another stream exists");
    assert!(matches!(refused.reason, CloseReason::Shared { streams: Some(1) }));
    assert!(!done.is_complete()?, "a refused close must not wait");
    let partition: Partition = refused.given;
    assert_eq!(partition.stream().id()?, id);
    drop(further);
    assert_eq!(partition.close()?.sm_count(), 16);
    assert!(done.is_complete()?);
    Ok(())
}

/// A partition and a library that are dropped during their capture live as long as the graph and everything
/// made from it. Until then the partition's SMs are in use: a later partition of the same size gets other SMs.
#[test]
fn a_graph_keeps_what_is_dropped_during_its_capture() -> Outcome {
    let device = device()?;
    let origin = device.create_partition(group(&device, 8)?)?;
    let stream = origin.stream();
    let results = DeviceBuffer::<u64>::zeroed(&device, BLOCKS as usize * 3)?;
    let graph = stream.capture(CaptureMode::Relaxed, || {
        let inside = device.create_partition(group(&device, 24)?)?;
        inside.stream().wait_for(stream)?;
        probe(inside.stream(), &results)?;
        assert!(matches!(results.read(stream), Err(Error::Capturing)));
        stream.wait_for(inside.stream())
    })?;
    device.release_idle();
    let counts: Vec<_> = graph.audit()?.nodes.into_iter().map(|node| node.location).collect();
    assert!(counts.iter().flatten().any(|location| location.sm_count == 24), "{counts:?}");
    let exec = graph.instantiate()?;

    let other = device.create_partition(group(&device, 24)?)?;
    let moved = GraphCache::new().get(&graph, other.context())?;
    drop(graph);
    // SAFETY: the graph keeps the probe's library loaded, `results` is alive, and no other work uses it.
    unsafe { stream.launch_graph(&exec) }?;
    let captured = sms(&results, stream)?;
    // SAFETY: as above; the previous launch is done.
    unsafe { other.stream().launch_graph(&moved) }?;
    let beside = sms(&results, other.stream())?;
    assert_eq!((captured.len(), beside.len()), (24, 24));
    assert!(captured.is_disjoint(&beside));
    Ok(())
}

#[test]
fn a_set_is_closed_when_its_work_is_done() -> Outcome {
    let device = device()?;
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    // Created before the work starts, since creating contexts waits for the device.
    let night = set.prepare(plan("night", 64))?;
    let (kernel, results) = (kernels::probe(&device)?, DeviceBuffer::zeroed(&device, 3)?);
    let done = device.create_event(EventOptions::default())?;
    keep_busy(set.active()["decode"].stream(), &kernel, &results, Duration::from_millis(30))?;
    set.active()["decode"].stream().record(&done)?;
    set.switch(&night, SwitchOptions::default().fence(false))?;
    let set = set.close().expect_err("a plan is still in use").given;
    assert!(!done.is_complete()?, "a refused close must not wait");
    drop(night);
    let group = set.close()?;
    assert!(done.is_complete()?);
    assert_eq!((group.name(), group.sm_count()), ("all", device.sm_count()?));
    Ok(())
}

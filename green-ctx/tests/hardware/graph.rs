//! Graphs that are captured in one partition and run in another.

use std::collections::BTreeSet;
use std::time::Duration;

use green_ctx::{
    Device, DeviceBuffer, Graph, Kernel, LaunchConfig, PlanSet, Stream, StreamOptions, call,
    context::Context,
    graph::{CaptureMode, GraphCache, GraphExec, RetargetError},
    plan::SwitchOptions,
    verify,
};

use crate::common::plans::plan;
use crate::common::{Outcome, device, kernels, partition, raw, stream};

/// Blocks of the probe: eight waves on an H200, with two blocks per SM at a time.
const BLOCKS: u32 = 1056;
/// How long each block stays at least, in nanoseconds.
const STAY_NS: u64 = 100_000;

/// The probe and the memory for its results.
struct Probe {
    kernel: Kernel,
    results: DeviceBuffer<u64>,
}

impl Probe {
    fn load(device: &Device) -> green_ctx::Result<Probe> {
        let results = DeviceBuffer::zeroed(device, BLOCKS as usize * 3)?;
        Ok(Probe { kernel: kernels::probe(device)?, results })
    }

    /// Clears the results and launches the probe, both in stream order.
    fn submit(&self, stream: &Stream) -> green_ctx::Result<()> {
        raw::fill(stream, self.results.as_raw(), u32::MAX, BLOCKS as usize * 6)?;
        let arguments = (self.results.as_argument(), STAY_NS);
        // SAFETY: the arguments match the kernel's two parameters. Each block writes three words, which
        // `results` has, and the tests keep `self` until the work is done.
        unsafe { stream.launch(&self.kernel, LaunchConfig::new(BLOCKS, 1024), arguments) }
    }

    fn captured(&self, stream: &Stream) -> green_ctx::Result<Graph> {
        stream.capture(CaptureMode::default(), || self.submit(stream))
    }

    /// Launches a graph of the probe, and returns the SMs that its blocks ran on.
    fn sms(&self, graph: &GraphExec, stream: &Stream) -> green_ctx::Result<BTreeSet<u32>> {
        // SAFETY: `self` keeps the probe and its memory alive, and no other work uses the memory.
        unsafe { stream.launch_graph(graph) }?;
        let words = self.results.read(stream)?;
        // The SM is the low half of the first word.
        Ok(words.chunks_exact(3).map(|block| block[0] as u32).collect())
    }
}

/// Returns the SMs of each context, as verification observes them.
fn sms_of(contexts: &[Context]) -> green_ctx::Result<Vec<BTreeSet<u32>>> {
    let report = verify::contexts(contexts, Duration::from_millis(1))?;
    assert!(report.ok());
    Ok(report.partitions.iter().map(verify::PartitionReport::observed_sms).collect())
}

#[test]
fn a_graph_runs_where_it_is_moved_whatever_stream_launches_it() -> Outcome {
    let device = device()?;
    let (a, b) = (partition(&device, 32)?, partition(&device, 16)?);
    let primary = device.primary_context()?;
    let expected = sms_of(&[a.clone(), b.clone()])?;
    let probe = Probe::load(&device)?;
    let streams = [stream(&primary)?, stream(&a)?, stream(&b)?];
    let captured = [probe.captured(&streams[0])?, probe.captured(&streams[2])?];
    for graph in &captured {
        let home = graph.instantiate()?;
        let moved = graph.retarget(&a)?;
        assert!(moved.audit()?.nodes.iter().any(|node| {
            node.location.as_ref().is_some_and(|location| location.sm_count == 32)
        }));
        let again = graph.retarget(&b)?.instantiate()?;
        let moved = moved.instantiate()?;
        for stream in &streams {
            assert_eq!(probe.sms(&moved, stream)?, expected[0]);
            assert_eq!(probe.sms(&again, stream)?, expected[1]);
        }
        // The original graph still runs where it was captured.
        let count = if *graph == captured[0] { device.sm_count()? } else { 16 };
        assert_eq!(probe.sms(&home, &streams[0])?.len(), count as usize);
    }
    Ok(())
}

#[test]
fn a_cached_graph_follows_the_active_plan() -> Outcome {
    let device = device()?;
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    let plans = [set.plan("day")?, set.prepare(plan("night", 64))?];
    let probe = Probe::load(&device)?;
    let graph = probe.captured(&stream(&device.primary_context()?)?)?;
    let cache = GraphCache::new();
    for round in 0..6 {
        set.switch(&plans[round % 2], SwitchOptions::default())?;
        let active = set.active();
        let decode = active.partition("decode").ok_or("decode")?;
        let exec = cache.get(&graph, decode.context())?;
        let sms = probe.sms(&exec, decode.stream())?;
        assert_eq!(sms.len(), [16, 64][round % 2]);
    }
    assert_eq!(cache.len(), 2);
    Ok(())
}

/// On hardware the moved graph would never end.
#[test]
fn a_cooperative_kernel_that_does_not_fit_is_not_moved() -> Outcome {
    let device = device()?;
    let (small, primary) = (partition(&device, 8)?, device.primary_context()?);
    let (probe, stream) = (Probe::load(&device)?, stream(&primary)?);
    let api = device.driver().api();
    let (mut to, mut stay) = (probe.results.as_raw(), 0_u64);
    let mut captured = |blocks| {
        stream.capture(CaptureMode::default(), || {
            let mut arguments = [(&raw mut to).cast(), (&raw mut stay).cast()];
            let (function, raw) = (probe.kernel.as_raw().cast(), stream.as_raw());
            let arguments = arguments.as_mut_ptr();
            // SAFETY: the kernel and the stream are alive, and `arguments` has one entry per parameter.
            unsafe {
                call!(
                    api,
                    cuLaunchCooperativeKernel(
                        function, blocks, 1, 1, 1024, 1, 1, 0, raw, arguments
                    )
                )
            }
        })
    };
    let (fits, too_many) = (captured(16)?, captured(17)?);
    let error = too_many.retarget(&small).expect_err("8 SMs hold 16 blocks");
    assert!(
        matches!(error, RetargetError::DoesNotFit { needed: 17, fit: 16, sm_count: 8, .. }),
        "{error}"
    );
    let stream = small.create_stream(StreamOptions::default())?;
    assert!(probe.sms(&fits.retarget(&small)?.instantiate()?, &stream)?.len() >= 8);
    Ok(())
}

/// Moving and instantiating a graph does not invalidate a capture in global mode, the strictest.
#[test]
fn moving_a_graph_does_not_invalidate_a_capture() -> Outcome {
    let device = device()?;
    let small = partition(&device, 8)?;
    let probe = Probe::load(&device)?;
    let own = stream(&device.primary_context()?)?;
    let graph = probe.captured(&own)?;
    let mut made = None;
    let captured = own.capture(CaptureMode::Global, || {
        made = Some(graph.retarget(&small)?.instantiate());
        Ok::<(), RetargetError>(())
    });
    let captured = captured.map_err(|error| format!("the capture was invalidated: {error}"))?;
    assert_eq!(captured.node_count()?, 0);
    let made = made.ok_or("the capture did not run")??;
    assert_eq!(probe.sms(&made, &stream(&small)?)?.len(), 8);
    drop(made);
    Ok(())
}

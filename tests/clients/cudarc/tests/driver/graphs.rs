//! Graphs that cudarc captures, instantiates and launches.

use std::error::Error;

use cudarc::driver::sys::{
    CUgraphInstantiate_flags as Flags, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use cudarc::driver::{CudaContext, DriverError};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

#[test]
fn a_captured_graph_runs_when_it_is_launched() -> Result {
    let context = CudaContext::new(0)?;
    // Its slices have events of their own, which are recorded outside of captures.
    // SAFETY: each slice below is used in one stream alone.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let source = stream.clone_htod(&[3u32; 100])?;
    let mut target = stream.clone_htod(&[1u32; 100])?;
    stream.synchronize()?;

    stream.begin_capture(MODE)?;
    let capturing = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_eq!(stream.capture_status()?, capturing);
    stream.memset_zeros(&mut target)?;
    stream.memcpy_dtod(&source.slice(..10), &mut target.slice_mut(..10))?;
    let graph = stream.end_capture(Flags(0))?.ok_or("there is a graph")?;
    let idle = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    assert_eq!(stream.capture_status()?, idle);

    // Capturing runs nothing.
    assert_eq!(stream.clone_dtoh(&target)?, [1; 100]);
    let expected = [[3; 10].as_slice(), &[0; 90]].concat();
    graph.upload()?;
    for _ in 0..2 {
        stream.memcpy_htod(&[7; 100], &mut target)?;
        graph.launch()?;
        assert_eq!(stream.clone_dtoh(&target)?, expected);
    }
    drop(graph);
    Ok(context.check_err()?)
}

#[test]
fn a_capture_spreads_over_streams() -> Result {
    let context = CudaContext::new(0)?;
    // SAFETY: each slice below is used in one stream alone.
    unsafe { context.disable_event_tracking() };
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    let mut one = first.clone_htod(&[1u8; 64])?;
    let mut two = second.clone_htod(&[2u8; 64])?;
    context.synchronize()?;

    first.begin_capture(MODE)?;
    second.wait(&first.record_event(None)?)?;
    first.memset_zeros(&mut one)?;
    second.memset_zeros(&mut two)?;
    first.wait(&second.record_event(None)?)?;
    let graph = first.end_capture(Flags(0))?.ok_or("there is a graph")?;
    graph.launch()?;
    first.synchronize()?;
    assert_eq!(first.clone_dtoh(&one)?, [0; 64]);
    assert_eq!(second.clone_dtoh(&two)?, [0; 64]);
    Ok(context.check_err()?)
}

#[test]
fn what_no_graph_can_have_is_refused() -> Result {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    stream.begin_capture(MODE)?;
    let failed = |status| Err(DriverError(status));
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    assert_eq!(stream.synchronize(), failed(unsupported));
    let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    assert_eq!(stream.end_capture(Flags(0)).map(|_| ()), failed(invalidated));

    // Flags that exclude each other.
    stream.begin_capture(MODE)?;
    let flags = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(stream.end_capture(flags).map(|_| ()), failed(invalid));
    Ok(())
}

//! Calls that a capture in global mode forbids: calls on other streams, contexts and events of the same thread.
//! If a call invalidates the capture, ending the capture returns an error.

use green_ctx_sys::{CUevent, CUgreenCtx, CUresult, CUstream, CUstreamCaptureMode};

use super::Case;
use crate::answer::Failure;
use crate::gpu::{DEFAULT_STREAM, Gpu};

/// Objects for the calls. None of them is related to the captured stream.
struct Others {
    green: CUgreenCtx,
    stream: CUstream,
    event: CUevent,
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        during("nothing", |_, _| Ok(CUresult::CUDA_SUCCESS)),
        during("event-create", |gpu, _| Ok(gpu.cuEventCreate(0)?.status)),
        during("event-record", |gpu, others| {
            Ok(gpu.cuEventRecord(others.event, others.stream)?.status)
        }),
        during("event-query", |gpu, others| Ok(gpu.cuEventQuery(others.event)?.status)),
        during("event-query-relaxed", |gpu, others| {
            let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            gpu.cuThreadExchangeStreamCaptureMode(relaxed)?.must()?;
            Ok(gpu.cuEventQuery(others.event)?.status)
        }),
        during("stream-query-relaxed", |gpu, others| {
            let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            gpu.cuThreadExchangeStreamCaptureMode(relaxed)?.must()?;
            Ok(gpu.cuStreamQuery(others.stream)?.status)
        }),
        during("event-synchronize", |gpu, others| Ok(gpu.cuEventSynchronize(others.event)?.status)),
        during("event-destroy", |gpu, others| Ok(gpu.cuEventDestroy(others.event)?.status)),
        during("green-record", |gpu, others| {
            Ok(gpu.cuGreenCtxRecordEvent(others.green, others.event)?.status)
        }),
        during("green-create", |gpu, _| {
            let split = gpu.split_device(0, 16)?;
            let desc = gpu.describe(&split.groups[..1])?;
            Ok(gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?.status)
        }),
        during("primary-retain", |gpu, _| {
            let retained = gpu.cuDevicePrimaryCtxRetain(gpu.device)?;
            retained.must()?;
            Ok(gpu.cuDevicePrimaryCtxRelease(gpu.device)?.status)
        }),
        during("stream-create", |gpu, others| {
            Ok(gpu.cuGreenCtxStreamCreate(others.green, 1, 0)?.status)
        }),
        during("stream-query", |gpu, others| Ok(gpu.cuStreamQuery(others.stream)?.status)),
        during("stream-wait", |gpu, others| {
            Ok(gpu.cuStreamWaitEvent(others.stream, others.event, 0)?.status)
        }),
        during("stream-destroy", |gpu, others| Ok(gpu.cuStreamDestroy(others.stream)?.status)),
    ]
}

/// Makes a call during a capture of a green stream.
fn during(name: &str, call: impl Fn(&Gpu, &Others) -> Result<CUresult, Failure> + 'static) -> Case {
    Case::new(format!("capture/during-global-{name}"), move |gpu, answer| {
        let (captured, green) = (gpu.stream_of(gpu.green_with(64)?)?, gpu.green_with(32)?);
        let others = Others { green, stream: gpu.stream_of(green)?, event: gpu.event()? };
        gpu.cuEventRecord(others.event, others.stream)?.must()?;
        gpu.cuStreamSynchronize(others.stream)?.must()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        answer.add("begin", gpu.cuStreamBeginCapture(captured, mode)?);
        answer.add("call", call(gpu, &others)?);
        answer.add("end", gpu.cuStreamEndCapture(captured)?);
        Ok(())
    })
    .alone()
}

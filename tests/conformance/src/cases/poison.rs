//! Misuse that may end the process or make its device unusable. Each case runs in a separate process.

use std::ptr::{null_mut, without_provenance_mut};

use green_ctx_sys::CUstreamCaptureMode;

use super::{Case, Needs};
use crate::answer::Answer;
use crate::calls::Params;
use crate::gpu::{DEFAULT_STREAM, Gpu, SM, brief};

pub(super) fn cases() -> Vec<Case> {
    [
        Case::new("misuse/resource-before-init", |gpu, answer| {
            answer.add("status", gpu.cuDeviceGetDevResource(0, SM)?);
            Ok(())
        })
        .needs(Needs::Nothing),
        Case::new("misuse/create-null-descriptor", |gpu, answer| {
            let green = gpu.cuGreenCtxCreate(null_mut(), gpu.device, DEFAULT_STREAM)?;
            answer.add("create", green);
            answer.add("null", green.out.is_null());
            let own = gpu.cuGreenCtxGetDevResource(green.out, SM)?;
            answer.add("get_resource", own);
            answer.add("resource", brief(&own.out));
            answer.add("destroy", gpu.cuGreenCtxDestroy(green.out)?);
            Ok(())
        }),
        Case::new("misuse/create-garbage-descriptor", |gpu, answer| {
            let garbage = without_provenance_mut(0x1234_5678);
            answer.add("create", gpu.cuGreenCtxCreate(garbage, gpu.device, DEFAULT_STREAM)?);
            Ok(())
        }),
        Case::new("misuse/double-destroy", |gpu, answer| {
            let green = gpu.green_with(64)?;
            answer.add("first", gpu.cuGreenCtxDestroy(green)?);
            answer.add("second", gpu.cuGreenCtxDestroy(green)?);
            Ok(())
        }),
        Case::new("misuse/destroy-with-live-stream", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream_of(green)?;
            answer.add("destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("query", gpu.cuStreamQuery(stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("destroy_stream", gpu.cuStreamDestroy(stream)?);
            Ok(())
        }),
        Case::new("misuse/calls-on-stream-of-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let (stream, primary_stream) = (gpu.stream_of(green)?, gpu.stream()?);
            let event = gpu.event()?;
            let memory = gpu.probe_memory(1)?;
            gpu.sms_of(stream)?;
            gpu.cuGreenCtxDestroy(green)?.must()?;
            answer.add("launch", gpu.launch_probe(stream, 1, memory, crate::gpu::SHORT)?);
            answer.add("record", gpu.cuEventRecord(event, stream)?);
            answer.add("wait", gpu.cuStreamWaitEvent(stream, event, 0)?);
            answer.add("fill", gpu.cuMemsetD8Async(memory, 0, 8, stream)?);
            answer.add("get_green", gpu.cuStreamGetGreenCtx(stream)?);
            answer.add("get_ctx", gpu.cuStreamGetCtx(stream)?);
            answer.add("get_priority", gpu.cuStreamGetPriority(stream)?);
            answer.add(
                "primary_launch",
                gpu.launch_probe(primary_stream, 1, memory, crate::gpu::SHORT)?,
            );
            answer.add("primary_synchronize", gpu.cuStreamSynchronize(primary_stream)?);
            Ok(())
        }),
        Case::new("misuse/destroy-while-current", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let context = gpu.context_of(green)?;
            gpu.push(context)?;
            answer.add("destroy", gpu.cuGreenCtxDestroy(green)?);
            let current = gpu.cuCtxGetCurrent()?;
            answer.add("get_current", current);
            answer.add("still_the_same", current.out == context);
            answer.add("null", current.out.is_null());
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            answer.add("alloc", gpu.cuMemAlloc(4096)?);
            let popped = gpu.cuCtxPopCurrent()?;
            answer.add("pop", popped);
            answer.add("popped_the_same", popped.out == context);
            answer.add("primary_synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        }),
        Case::new("misuse/calls-on-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let event = gpu.event()?;
            gpu.cuGreenCtxDestroy(green)?.must()?;
            answer.add("stream_create", gpu.cuGreenCtxStreamCreate(green, 1, 0)?);
            answer.add("record", gpu.cuGreenCtxRecordEvent(green, event)?);
            answer.add("wait", gpu.cuGreenCtxWaitEvent(green, event)?);
            answer.add("from_green", gpu.cuCtxFromGreenCtx(green)?);
            answer.add("get_resource", gpu.cuGreenCtxGetDevResource(green, SM)?);
            answer.add("get_id", gpu.cuGreenCtxGetId(green)?);
            Ok(())
        }),
        Case::new("misuse/stream-create-on-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            gpu.cuGreenCtxDestroy(green)?.must()?;
            answer.add("status", gpu.cuGreenCtxStreamCreate(green, 1, 0)?);
            Ok(())
        }),
        // The driver accepts the destroyed context. The process may then abort at exit because of a double free
        // (in most runs on driver 580.159.04, but not in all). So the process leaves without its exit handlers,
        // and only the status of the push is the answer.
        Case::new("misuse/push-context-of-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let context = gpu.context_of(green)?;
            gpu.cuGreenCtxDestroy(green)?.must()?;
            answer.add("push", gpu.cuCtxPushCurrent(context)?);
            leave()
        }),
        Case::new("misuse/ctx-destroy-on-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            answer.add("ctx_destroy", gpu.cuCtxDestroy(gpu.context_of(green)?)?);
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            Ok(())
        }),
        Case::new("misuse/ctx-destroy-on-primary", |gpu, answer| {
            answer.add("ctx_destroy", gpu.cuCtxDestroy(gpu.primary()?)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        }),
        // The record of 2026-11 made these two destructions in one print statement, whose arguments a
        // compiler may evaluate in any order. So there is a case for each order.
        Case::new("misuse/release-primary-while-green-lives", |gpu, answer| {
            let (green, stream) = release_primary(gpu, answer)?;
            answer.add("stream_destroy", gpu.cuStreamDestroy(stream)?);
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("active_at_last", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("misuse/release-primary-while-green-lives-green-first", |gpu, answer| {
            let (green, stream) = release_primary(gpu, answer)?;
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("stream_destroy", gpu.cuStreamDestroy(stream)?);
            answer.add("active_at_last", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("misuse/reset-primary-while-green-lives", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream_of(green)?;
            answer.add("reset", gpu.cuDevicePrimaryCtxReset(gpu.device)?);
            answer.add("stream_synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            Ok(())
        }),
        Case::new("misuse/reset-primary", |gpu, answer| {
            let primary = gpu.primary()?;
            answer.add("reset", gpu.cuDevicePrimaryCtxReset(gpu.device)?);
            answer.add("active", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
            let current = gpu.cuCtxGetCurrent()?;
            answer.add("get_current", current);
            answer.add("still_the_same", current.out == primary);
            Ok(())
        }),
        Case::new("misuse/fault", |gpu, answer| {
            let (green, stream) = fault(gpu, answer)?;
            let primary_stream = gpu.stream();
            answer.add("stream_after_fault_is_ok", primary_stream.is_ok());
            answer.add("stream_destroy", gpu.cuStreamDestroy(stream)?);
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("alloc", gpu.cuMemAlloc(4096)?);
            answer.add("green_create", {
                let desc = gpu.describe(&[gpu.device_resource()?])?;
                gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?
            });
            Ok(())
        }),
        Case::new("misuse/fault-green-first", |gpu, answer| {
            let (green, stream) = fault(gpu, answer)?;
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("stream_destroy", gpu.cuStreamDestroy(stream)?);
            Ok(())
        }),
        Case::new("misuse/fault-of-primary-seen-in-green", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let primary_stream = gpu.stream()?;
            let kernel = gpu.cuLibraryGetKernel(gpu.library()?, c"green_ctx_fault")?.must()?;
            let mut params = Params::new(&[8]);
            let launch = gpu.cuLaunchKernel(kernel.cast(), 1, 1, primary_stream, &mut params)?;
            answer.add("launch", launch);
            answer.add("primary_stream", gpu.cuStreamSynchronize(primary_stream)?);
            answer.add("green_stream", gpu.cuStreamSynchronize(stream)?);
            answer.add("green_query", gpu.cuStreamQuery(stream)?);
            Ok(())
        }),
        Case::new("misuse/destroy-during-capture", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream_of(green)?;
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            answer.add("begin", gpu.cuStreamBeginCapture(stream, mode)?);
            answer.add("destroy", gpu.cuGreenCtxDestroy(green)?);
            let graph = gpu.cuStreamEndCapture(stream)?;
            answer.add("end", graph);
            answer.add("graph_null", graph.out.is_null());
            Ok(())
        }),
    ]
    .map(Case::alone)
    .into()
}

/// Ends the process successfully without exit handlers. The answer is already reported.
fn leave() -> ! {
    // SAFETY: the process runs only this case, so nothing needs to be cleaned up.
    unsafe { libc::_exit(0) }
}

/// Releases the program's reference to the primary context while a green context depends on it.
fn release_primary(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
) -> Result<(green_ctx_sys::CUgreenCtx, green_ctx_sys::CUstream), crate::answer::Failure> {
    gpu.cuDevicePrimaryCtxRetain(gpu.device)?.must()?;
    let green = gpu.green_with(64)?;
    let stream = gpu.stream_of(green)?;
    answer.add("release", gpu.cuDevicePrimaryCtxRelease(gpu.device)?);
    answer.add("stream_synchronize", gpu.cuStreamSynchronize(stream)?);
    answer.add("active", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    Ok((green, stream))
}

/// Stores to an invalid address in a green context, and queries both contexts.
fn fault(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
) -> Result<(green_ctx_sys::CUgreenCtx, green_ctx_sys::CUstream), crate::answer::Failure> {
    let green = gpu.green_with(64)?;
    let stream = gpu.stream_of(green)?;
    let kernel = gpu.cuLibraryGetKernel(gpu.library()?, c"green_ctx_fault")?.must()?;
    let mut params = Params::new(&[8]);
    answer.add("launch", gpu.cuLaunchKernel(kernel.cast(), 1, 1, stream, &mut params)?);
    answer.add("green_synchronize", gpu.cuStreamSynchronize(stream)?);
    answer.add("primary_synchronize", gpu.cuCtxSynchronize()?);
    Ok((green, stream))
}

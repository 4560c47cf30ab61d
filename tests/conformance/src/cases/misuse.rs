//! Misuse that the driver answers without harm. Misuse that may end the process is in `poison.rs`.

use std::ptr::null_mut;

use green_ctx_sys::{CUdevResourceType, CUstreamCaptureMode};

use super::{Case, Needs};
use crate::answer::{Answer, Outcome};
use crate::calls::blank;
use crate::gpu::{DEFAULT_STREAM, Gpu, NON_BLOCKING, SHORT, SM, sm, tampered, token};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = super::split::misuse();
    cases.extend([
        Case::new("misuse/describe-null", |gpu, answer| {
            answer.add("status", gpu.cuDevResourceGenerateDesc(null_mut(), 1)?);
            Ok(())
        }),
        Case::new("misuse/context-of-null-green", |gpu, answer| {
            answer.add("status", gpu.cuCtxFromGreenCtx(null_mut())?);
            Ok(())
        }),
        Case::new("misuse/destroy-null", |gpu, answer| {
            answer.add("status", gpu.cuGreenCtxDestroy(null_mut())?);
            Ok(())
        }),
        Case::new("misuse/create-on-device-99", |gpu, answer| {
            let desc = gpu.describe(&[gpu.device_resource()?])?;
            let green = gpu.cuGreenCtxCreate(desc, 99, DEFAULT_STREAM)?;
            answer.add("status", green);
            answer.add("null", green.out.is_null());
            Ok(())
        }),
        Case::new("misuse/record-event-of-primary-on-green-stream", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            answer.add("status", gpu.cuEventRecord(gpu.event()?, stream)?);
            Ok(())
        }),
        Case::new("misuse/record-event-on-null-green", |gpu, answer| {
            answer.add("status", gpu.cuGreenCtxRecordEvent(null_mut(), gpu.event()?)?);
            Ok(())
        }),
        Case::new("misuse/describe-siblings", |gpu, answer| {
            let split = gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?;
            for (name, mut pair) in [
                ("two_groups", [split.groups[0], split.groups[1]]),
                ("group_and_remainder", [split.groups[0], split.remainder]),
            ] {
                let desc = gpu.cuDevResourceGenerateDesc(pair.as_mut_ptr(), 2)?;
                answer.add(format!("{name}_describe"), desc);
                let green = gpu.cuGreenCtxCreate(desc.out, gpu.device, DEFAULT_STREAM)?;
                answer.add(format!("{name}_create"), green);
                let own = gpu.cuGreenCtxGetDevResource(green.out, SM)?.must()?;
                answer.add(format!("{name}_sms"), sm(&own).smCount);
            }
            Ok(())
        }),
        Case::new("misuse/describe-groups-of-two-equal-splits", |gpu, answer| {
            let (first, second) = (gpu.split_device(0, 32)?, gpu.split_device(0, 32)?);
            let mut pair = [first.groups[0], second.groups[1]];
            answer.add("different", gpu.cuDevResourceGenerateDesc(pair.as_mut_ptr(), 2)?);
            let mut same = [first.groups[0], first.groups[0]];
            answer.add("same_twice", gpu.cuDevResourceGenerateDesc(same.as_mut_ptr(), 2)?);
            Ok(())
        }),
        Case::new("misuse/zeros-and-forgeries", |gpu, answer| {
            answer.add("split_zeros", gpu.split(&blank(), 0, 2, 16)?.status);
            let mut zeros = blank();
            answer.add("describe_zeros", gpu.cuDevResourceGenerateDesc(&raw mut zeros, 1)?);
            let split = gpu.split_device(0, 32)?;
            let mut forged = tampered(&split.groups[0], 64);
            answer.add("describe_forged", gpu.cuDevResourceGenerateDesc(&raw mut forged, 1)?);
            Ok(())
        }),
        Case::new("misuse/two-contexts-of-overlapping-resources", |gpu, answer| {
            let (first, second) = (gpu.split_device(0, 32)?, gpu.split_device(0, 64)?);
            for (name, group) in [("first", first.groups[0]), ("second", second.groups[0])] {
                let desc = gpu.describe(&[group])?;
                answer.add(name, gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?);
            }
            Ok(())
        }),
        Case::new("misuse/green-of-other-streams", |gpu, answer| {
            let of_primary = gpu.cuStreamGetGreenCtx(gpu.stream()?)?;
            answer.add("primary", of_primary);
            answer.add("primary_null", of_primary.out.is_null());
            let of_null = gpu.cuStreamGetGreenCtx(null_mut())?;
            answer.add("null", of_null);
            answer.add("null_null", of_null.out.is_null());
            let green = gpu.green_with(64)?;
            gpu.push(gpu.context_of(green)?)?;
            for (name, number) in [("null", 0), ("legacy", 1), ("per_thread", 2)] {
                let reply = gpu.cuStreamGetGreenCtx(token(number))?;
                answer.add(format!("{name}_with_green_current"), reply);
                answer.add(format!("{name}_is_green"), reply.out == green);
            }
            Ok(())
        }),
        Case::new("misuse/green-current-for-everything", green_current_for_everything),
        Case::new("misuse/no-context-current", no_context_current).needs(Needs::Init),
        Case::new("misuse/split-unknown-flags", |gpu, answer| {
            let all = gpu.device_resource()?;
            answer.add("4", gpu.split(&all, 4, 2, 16)?.status);
            answer.add("0x80000000", gpu.split(&all, 0x8000_0000, 2, 16)?.status);
            Ok(())
        }),
        Case::new("misuse/stream-flags", |gpu, answer| {
            let green = gpu.green_with(64)?;
            for flags in [0, 1, 2, 3, 5] {
                let stream = gpu.cuGreenCtxStreamCreate(green, flags, 0)?;
                answer.add(flags.to_string(), stream);
            }
            Ok(())
        }),
        Case::new("misuse/resources-of-the-primary-context", |gpu, answer| {
            let primary = gpu.primary()?;
            for kind in [0, 1, 1000, 10000] {
                let reply = gpu.cuCtxGetDevResource(primary, CUdevResourceType(kind))?;
                answer.add(format!("type {kind}"), reply);
            }
            Ok(())
        }),
        Case::new("misuse/resources-of-a-green-context", |gpu, answer| {
            let green = gpu.green_with(64)?;
            for kind in [0, 1, 1000, 10000] {
                let reply = gpu.cuGreenCtxGetDevResource(green, CUdevResourceType(kind))?;
                answer.add(format!("type {kind}"), reply);
            }
            Ok(())
        }),
    ]);
    cases
}

/// Uses a green context where the primary context is usual.
fn green_current_for_everything(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let primary_stream = gpu.stream()?;
    let green = gpu.green_with(64)?;
    let stream = gpu.stream_of(green)?;
    gpu.push(gpu.context_of(green)?)?;
    answer.add("get_device", gpu.cuCtxGetDevice()?);
    answer.add("get_flags", gpu.cuCtxGetFlags()?);
    answer.add("synchronize", gpu.cuCtxSynchronize()?);
    let module = gpu.cuModuleLoadData(crate::gpu::ptx())?;
    answer.add("module_load", module);
    let function = gpu.cuModuleGetFunction(module.out, c"green_ctx_probe")?.must()?;
    let memory = gpu.cuMemAlloc(crate::gpu::BLOCK_BYTES)?;
    answer.add("alloc", memory);
    let memory = memory.must()?;
    for (name, stream) in [("primary", primary_stream), ("null", null_mut())] {
        let mut params = crate::gpu::probe_params(memory, SHORT);
        let launch = gpu.cuLaunchKernel(function, 1, 32, stream, &mut params)?;
        answer.add(format!("launch_on_{name}_stream"), launch);
        answer.add(format!("synchronize_{name}_stream"), gpu.cuStreamSynchronize(stream)?);
    }
    let from_pool = gpu.cuMemAllocAsync(4096, stream)?;
    answer.add("alloc_async", from_pool);
    let fill = gpu.cuMemsetD8Async(memory, 0, crate::gpu::BLOCK_BYTES, primary_stream)?;
    answer.add("fill_from_primary_stream", fill);
    answer.add("synchronize_primary_stream_again", gpu.cuStreamSynchronize(primary_stream)?);
    answer.add("synchronize_green_stream", gpu.cuStreamSynchronize(stream)?);
    Ok(())
}

/// Calls everything that works on a green context while no context is current on the thread.
fn no_context_current(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    // Memory for the kernel comes from the pool, since `cuMemAlloc` needs a current context.
    let green = gpu.green_with(64)?;
    let stream = gpu.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0)?;
    answer.add("stream_create", stream);
    let stream = stream.must()?;
    answer.add("library_load", gpu.cuLibraryLoadData(crate::gpu::ptx())?);
    let memory = gpu.cuMemAllocAsync(crate::gpu::BLOCK_BYTES, stream)?;
    answer.add("alloc_async", memory);
    let memory = memory.must()?;
    let fill = gpu.cuMemsetD8Async(memory, 0, crate::gpu::BLOCK_BYTES, stream)?;
    answer.add("fill_async", fill);
    answer.add("launch_kernel", gpu.launch_probe(stream, 1, memory, SHORT)?);
    answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
    answer.add("event_create", gpu.cuEventCreate(0)?);
    answer.add("priority_range", gpu.cuCtxGetStreamPriorityRange()?);
    answer.add("free_async", gpu.cuMemFreeAsync(memory, stream)?);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    answer.add("begin_capture", gpu.cuStreamBeginCapture(stream, mode)?);
    let capture = gpu.cuStreamIsCapturing(stream)?;
    answer.add("is_capturing", capture.out.to_string());
    let graph = gpu.cuStreamEndCapture(stream)?;
    answer.add("end_capture", graph);
    answer.add("graph_null", graph.out.is_null());
    Ok(())
}

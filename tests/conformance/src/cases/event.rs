//! Events that are created in one context, and recorded and waited for in another.

use std::ptr::null_mut;

use super::{Case, Needs};
use crate::answer::{Answer, Outcome};
use crate::gpu::{Gpu, LONG, SHORT};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [0, 1, 2, 3, 4, 6, 7, 8, 16].map(flags).into();
    cases.extend([
        Case::new("event/of-primary-on-green-streams", |gpu, answer| {
            across(gpu, answer, Gpu::event)
        }),
        Case::new("event/of-green-on-other-streams", |gpu, answer| {
            across(gpu, answer, |gpu| {
                gpu.push(gpu.context_of(gpu.green_with(16)?)?)?;
                let event = gpu.event();
                gpu.pop()?;
                event
            })
        }),
        Case::new("event/of-a-whole-green-context", of_a_whole_context),
        Case::new("event/null-contexts-and-events", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let event = gpu.event()?;
            answer.add("record_null_green", gpu.cuGreenCtxRecordEvent(null_mut(), event)?);
            answer.add("record_null_context", gpu.cuCtxRecordEvent(null_mut(), event)?);
            answer.add("wait_null_green", gpu.cuGreenCtxWaitEvent(null_mut(), event)?);
            answer.add("wait_null_context", gpu.cuCtxWaitEvent(null_mut(), event)?);
            answer.add("record_null_event", gpu.cuGreenCtxRecordEvent(green, null_mut())?);
            answer.add("wait_null_event", gpu.cuGreenCtxWaitEvent(green, null_mut())?);
            answer.add("stream_record_null", gpu.cuEventRecord(null_mut(), null_mut())?);
            answer.add("query_null", gpu.cuEventQuery(null_mut())?);
            answer.add("synchronize_null", gpu.cuEventSynchronize(null_mut())?);
            answer.add("destroy_null", gpu.cuEventDestroy(null_mut())?);
            Ok(())
        }),
        Case::new("event/never-recorded", |gpu, answer| {
            let (a, b) = (gpu.event()?, gpu.event()?);
            let (stream, green) = (gpu.stream()?, gpu.green_with(64)?);
            answer.add("query", gpu.cuEventQuery(a)?);
            answer.add("synchronize", gpu.cuEventSynchronize(a)?);
            answer.add("wait", gpu.cuStreamWaitEvent(stream, a, 0)?);
            answer.add("green_wait", gpu.cuGreenCtxWaitEvent(green, a)?);
            answer.add("elapsed", gpu.cuEventElapsedTime(a, b)?);
            answer.add("record_one", gpu.cuEventRecord(a, stream)?);
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("elapsed_one_recorded", gpu.cuEventElapsedTime(a, b)?);
            Ok(())
        }),
        Case::new("event/elapsed", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let (start, end) = (gpu.event()?, gpu.event()?);
            let memory = gpu.probe_memory(1)?;
            answer.add("record_start", gpu.cuEventRecord(start, stream)?);
            answer.add("launch", gpu.launch_probe(stream, 1, memory, SHORT)?);
            answer.add("record_end", gpu.cuEventRecord(end, stream)?);
            answer.add("synchronize", gpu.cuEventSynchronize(end)?);
            let elapsed = gpu.cuEventElapsedTime(start, end)?;
            answer.add("elapsed", elapsed);
            answer.add("at_least_the_kernel", elapsed.out >= 2.0);
            let backward = gpu.cuEventElapsedTime(end, start)?;
            answer.add("backward", backward);
            answer.add("backward_is_negative", backward.out < 0.0);
            answer.add("with_itself", gpu.cuEventElapsedTime(start, start)?.out == 0.0);
            Ok(())
        }),
        Case::new("event/elapsed-across-contexts", |gpu, answer| {
            let green = gpu.stream_of(gpu.green_with(64)?)?;
            let primary = gpu.stream()?;
            let (start, end) = (gpu.event()?, gpu.event()?);
            gpu.cuEventRecord(start, primary)?.must()?;
            gpu.cuEventRecord(end, green)?.must()?;
            gpu.cuCtxSynchronize()?.must()?;
            gpu.cuStreamSynchronize(green)?.must()?;
            answer.add("elapsed", gpu.cuEventElapsedTime(start, end)?);
            Ok(())
        }),
        Case::new("event/elapsed-without-timing", |gpu, answer| {
            let stream = gpu.stream()?;
            let (start, end) = (gpu.cuEventCreate(2)?.must()?, gpu.cuEventCreate(2)?.must()?);
            gpu.cuEventRecord(start, stream)?.must()?;
            gpu.cuEventRecord(end, stream)?.must()?;
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("query", gpu.cuEventQuery(end)?);
            answer.add("elapsed", gpu.cuEventElapsedTime(start, end)?);
            let timed = gpu.event()?;
            gpu.cuEventRecord(timed, stream)?.must()?;
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("elapsed_one_timed", gpu.cuEventElapsedTime(timed, end)?);
            Ok(())
        }),
        Case::new("event/busy", |gpu, answer| {
            let (busy, idle) = (gpu.stream_of(gpu.green_with(64)?)?, gpu.stream()?);
            let event = gpu.event()?;
            let memory = gpu.probe_memory(1)?;
            gpu.sms_of(busy)?;
            answer.add("launch", gpu.launch_probe(busy, 1, memory, LONG)?);
            answer.add("record", gpu.cuEventRecord(event, busy)?);
            answer.add("query_busy", gpu.cuEventQuery(event)?);
            answer.add("stream_query_busy", gpu.cuStreamQuery(busy)?);
            answer.add("elapsed_busy", gpu.cuEventElapsedTime(event, event)?);
            answer.add("wait", gpu.cuStreamWaitEvent(idle, event, 0)?);
            answer.add("stream_query_waiting", gpu.cuStreamQuery(idle)?);
            answer.add("destroy_event", gpu.cuEventDestroy(event)?);
            answer.add("synchronize_waiting", gpu.cuStreamSynchronize(idle)?);
            answer.add("complete", gpu.probe_is_complete(memory, 1)?);
            Ok(())
        }),
        Case::new("event/with-none-current", |gpu, answer| {
            gpu.push(gpu.primary()?)?;
            let event = gpu.event()?;
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let primary_stream = gpu.stream()?;
            gpu.pop()?;
            answer.add("create", gpu.cuEventCreate(0)?);
            answer.add("record_on_green_stream", gpu.cuEventRecord(event, stream)?);
            answer.add("record_on_primary_stream", gpu.cuEventRecord(event, primary_stream)?);
            answer.add("record_on_null_stream", gpu.cuEventRecord(event, null_mut())?);
            answer.add("wait", gpu.cuStreamWaitEvent(stream, event, 0)?);
            answer.add("synchronize", gpu.cuEventSynchronize(event)?);
            answer.add("query", gpu.cuEventQuery(event)?);
            answer.add("destroy", gpu.cuEventDestroy(event)?);
            Ok(())
        })
        .needs(Needs::Init),
    ]);
    cases
}

/// Creation flags: 1 blocks while synchronising, 2 disables timing, 4 allows interprocess use and requires 2.
fn flags(flags: u32) -> Case {
    Case::new(format!("event/create-flags={flags}"), move |gpu, answer| {
        let event = gpu.cuEventCreate(flags)?;
        answer.add("create", event);
        if event.is_ok() {
            answer.add("destroy", gpu.cuEventDestroy(event.out)?);
        }
        Ok(())
    })
}

/// Records and waits for one event on streams of two green contexts and of the primary context.
fn across(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
    event: impl Fn(&Gpu) -> Result<green_ctx_sys::CUevent, crate::answer::Failure>,
) -> Outcome {
    let split = gpu.split(&gpu.device_resource()?, 0, 1, 64)?.must()?;
    let group = gpu.stream_of(gpu.green(&split.groups)?)?;
    let remainder = gpu.stream_of(gpu.green(&[split.remainder])?)?;
    let primary = gpu.stream()?;
    let event = event(gpu)?;
    for (name, stream) in
        [("group", group), ("remainder", remainder), ("primary", primary), ("null", null_mut())]
    {
        answer.add(format!("record_on_{name}"), gpu.cuEventRecord(event, stream)?);
        for (waiting, other) in [("group", group), ("remainder", remainder), ("primary", primary)] {
            answer.add(
                format!("record_on_{name}_wait_on_{waiting}"),
                gpu.cuStreamWaitEvent(other, event, 0)?,
            );
        }
    }
    answer.add("synchronize", gpu.cuEventSynchronize(event)?);
    answer.add("destroy", gpu.cuEventDestroy(event)?);
    Ok(())
}

/// Records an event on all streams of a context, and makes all streams of a context wait.
fn of_a_whole_context(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (a, b) = (gpu.green_with(64)?, gpu.green_with(32)?);
    let (context_a, primary) = (gpu.context_of(a)?, gpu.primary()?);
    let stream = gpu.stream_of(a)?;
    let event = gpu.event()?;
    let memory = gpu.probe_memory(1)?;
    gpu.sms_of(stream)?;
    answer.add("launch", gpu.launch_probe(stream, 1, memory, LONG)?);
    answer.add("green_record", gpu.cuGreenCtxRecordEvent(a, event)?);
    answer.add("query_busy", gpu.cuEventQuery(event)?);
    answer.add("other_green_wait", gpu.cuGreenCtxWaitEvent(b, event)?);
    let waiting = gpu.stream_of(b)?;
    answer.add("new_stream_of_waiting_query", gpu.cuStreamQuery(waiting)?);
    answer.add("synchronize", gpu.cuEventSynchronize(event)?);
    answer.add("complete", gpu.probe_is_complete(memory, 1)?);
    answer.add("elapsed_with_itself", gpu.cuEventElapsedTime(event, event)?);
    answer.add("ctx_record_derived", gpu.cuCtxRecordEvent(context_a, event)?);
    answer.add("ctx_wait_derived", gpu.cuCtxWaitEvent(context_a, event)?);
    answer.add("ctx_record_primary", gpu.cuCtxRecordEvent(primary, event)?);
    answer.add("ctx_wait_primary", gpu.cuCtxWaitEvent(primary, event)?);
    answer.add("green_wait_own", gpu.cuGreenCtxWaitEvent(a, event)?);
    answer.add("synchronize_last", gpu.cuEventSynchronize(event)?);
    Ok(())
}

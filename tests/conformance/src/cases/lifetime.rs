//! Lifetimes: work and its stream, events and their context, resources and the primary context.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use green_ctx_sys::{CUcontext, CUevent, CUgreenCtx, CUresult, CUstream};
use serde_json::Value;

use super::{Case, Needs};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::{DEFAULT_STREAM, Gpu, LONG, SHORT};

/// A call that returns within this time did not wait for a probe of [`LONG`].
const AT_ONCE: Duration = Duration::from_millis(25);

/// A probe of [`LONG`] that has not ended after this time never will.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn cases() -> Vec<Case> {
    [
        Case::new("lifetime/stream-destroyed-while-busy", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            let begun = Instant::now();
            answer.add("stream_destroy", gpu.cuStreamDestroy(busy.stream)?);
            answer.add("returned_at_once", begun.elapsed() < AT_ONCE);
            answer.add("complete_at_once", busy.is_complete(gpu)?);
            answer.add("context_synchronize", gpu.cuCtxSynchronize()?);
            answer.add("complete_after_primary_synchronize", busy.is_complete(gpu)?);
            answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/green-event-after-stream-destroyed", |gpu, answer| {
            event_after_stream_destroyed(gpu, answer, |gpu, green, event| {
                Ok(gpu.cuGreenCtxRecordEvent(green, event)?.status)
            })
        }),
        Case::new("lifetime/ctx-event-after-stream-destroyed", |gpu, answer| {
            event_after_stream_destroyed(gpu, answer, |gpu, green, event| {
                Ok(gpu.cuCtxRecordEvent(gpu.context_of(green)?, event)?.status)
            })
        }),
        Case::new("lifetime/stream-event-before-stream-destroyed", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            let event = gpu.event()?;
            answer.add("record", gpu.cuEventRecord(event, busy.stream)?);
            answer.add("stream_destroy", gpu.cuStreamDestroy(busy.stream)?);
            answer.add("query", gpu.cuEventQuery(event)?);
            answer.add("event_synchronize", gpu.cuEventSynchronize(event)?);
            answer.add("complete", busy.is_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/synchronize-green-after-stream-destroyed", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            answer.add("stream_destroy", gpu.cuStreamDestroy(busy.stream)?);
            gpu.push(gpu.context_of(busy.green)?)?;
            answer.add("green_synchronize", gpu.cuCtxSynchronize()?);
            answer.add("complete", busy.is_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/green-destroyed-after-busy-stream", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            answer.add("stream_destroy", gpu.cuStreamDestroy(busy.stream)?);
            destroy_green(gpu, answer, &busy)
        }),
        Case::new("lifetime/green-destroyed-with-busy-stream", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            destroy_green(gpu, answer, &busy)
        }),
        // These calls wait for the device, which `complete_at_once` shows.
        Case::new("lifetime/green-created-while-busy", |gpu, answer| {
            let split = gpu.split_device(0, 16)?;
            let busy = Busy::start(gpu, answer)?;
            let desc = gpu.describe(&split.groups[..1])?;
            answer.add("complete_after_describe", busy.is_complete(gpu)?);
            answer.add("create", gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?);
            answer.add("complete_at_once", busy.is_complete(gpu)?);
            answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/stream-and-event-created-while-busy", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            let stream = gpu.stream_of(busy.green)?;
            let event = gpu.event()?;
            answer.add("complete_at_once", busy.is_complete(gpu)?);
            answer.add("stream_destroy", gpu.cuStreamDestroy(stream)?);
            answer.add("event_destroy", gpu.cuEventDestroy(event)?);
            answer.add("complete_after_destroy", busy.is_complete(gpu)?);
            answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/library-unloaded-while-busy", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            answer.add("unload", gpu.cuLibraryUnload(gpu.library()?)?);
            answer.add("complete_at_once", busy.is_complete(gpu)?);
            answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/memory-freed-while-busy", |gpu, answer| {
            let busy = Busy::start(gpu, answer)?;
            let other = gpu.probe_memory(1)?;
            answer.add("free_of_other", gpu.cuMemFree(other)?);
            answer.add("complete_at_once", busy.is_complete(gpu)?);
            answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
            Ok(())
        }),
        Case::new("lifetime/event-of-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream()?;
            gpu.push(gpu.context_of(green)?)?;
            let event = gpu.event()?;
            gpu.pop()?;
            answer.add("record_before", gpu.cuEventRecord(event, stream)?);
            answer.add("synchronize_before", gpu.cuEventSynchronize(event)?);
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("query", gpu.cuEventQuery(event)?);
            answer.add("record", gpu.cuEventRecord(event, stream)?);
            answer.add("wait", gpu.cuStreamWaitEvent(stream, event, 0)?);
            answer.add("synchronize", gpu.cuEventSynchronize(event)?);
            answer.add("event_destroy", gpu.cuEventDestroy(event)?);
            Ok(())
        }),
        Case::new("lifetime/event-recorded-in-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream_of(green)?;
            let (event, other) = (gpu.event()?, gpu.stream()?);
            answer.add("record", gpu.cuEventRecord(event, stream)?);
            answer.add("stream_synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("stream_destroy", gpu.cuStreamDestroy(stream)?);
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("query", gpu.cuEventQuery(event)?);
            answer.add("synchronize", gpu.cuEventSynchronize(event)?);
            answer.add("wait", gpu.cuStreamWaitEvent(other, event, 0)?);
            answer.add("record_elsewhere", gpu.cuEventRecord(event, other)?);
            answer.add("event_destroy", gpu.cuEventDestroy(event)?);
            Ok(())
        }),
        Case::new("lifetime/function-loaded-in-destroyed-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let stream = gpu.stream()?;
            gpu.push(gpu.context_of(green)?)?;
            let module = gpu.cuModuleLoadData(crate::gpu::ptx())?.must()?;
            let function = gpu.cuModuleGetFunction(module, c"green_ctx_probe")?.must()?;
            gpu.pop()?;
            let memory = gpu.probe_memory(1)?;
            answer.add("green_destroy", gpu.cuGreenCtxDestroy(green)?);
            let mut params = crate::gpu::probe_params(memory, SHORT);
            answer.add("launch", gpu.cuLaunchKernel(function, 1, 32, stream, &mut params)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("complete", gpu.probe_is_complete(memory, 1)?);
            Ok(())
        }),
        Case::new("lifetime/old-resource-after-primary-was-inactive", |gpu, answer| {
            let before = split_and_forget(gpu, answer)?;
            let desc = gpu.cuDevResourceGenerateDesc([before.group].as_mut_ptr(), 1)?;
            answer.add("describe", desc);
            let green = gpu.cuGreenCtxCreate(desc.must()?, gpu.device, DEFAULT_STREAM)?;
            answer.add("create", green);
            answer.add("same_sms", sms_then_destroy(gpu, green.must()?)? == before.sms);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("lifetime/old-descriptor-after-primary-was-inactive", |gpu, answer| {
            let before = split_and_forget(gpu, answer)?;
            let green = gpu.cuGreenCtxCreate(before.desc, gpu.device, DEFAULT_STREAM)?;
            answer.add("create", green);
            answer.add("same_sms", sms_then_destroy(gpu, green.must()?)? == before.sms);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("lifetime/resource-and-descriptor-after-their-context", |gpu, answer| {
            let split = gpu.split_device(0, 64)?;
            let desc = gpu.describe(&split.groups[..1])?;
            let green = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?.must()?;
            let sms = sms_then_destroy(gpu, green)?;
            let again = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?;
            answer.add("create_from_descriptor", again);
            answer.add("same_sms", sms_then_destroy(gpu, again.must()?)? == sms);
            let green = gpu.green(&split.groups[..1])?;
            answer.add("same_sms_from_resource", sms_then_destroy(gpu, green)? == sms);
            Ok(())
        }),
        Case::new("lifetime/children-outlive-their-parent", |gpu, answer| {
            let parent = gpu.green_with(64)?;
            let own = gpu.cuGreenCtxGetDevResource(parent, crate::gpu::SM)?.must()?;
            let children = gpu.split(&own, 0, 2, 16)?.must()?;
            let child = gpu.green(&children.groups[..1])?;
            answer.add("parent_destroy", gpu.cuGreenCtxDestroy(parent)?);
            answer.add("child_sms", gpu.sms_of(gpu.stream_of(child)?)?);
            let desc = gpu.cuDevResourceGenerateDesc([children.groups[1]].as_mut_ptr(), 1)?;
            answer.add("describe_sibling", desc);
            let sibling = gpu.cuGreenCtxCreate(desc.must()?, gpu.device, DEFAULT_STREAM)?;
            answer.add("create_sibling", sibling);
            answer.add("sibling_sms", gpu.sms_of(gpu.stream_of(sibling.must()?)?)?);
            Ok(())
        }),
        Case::new("lifetime/current-on-two-threads", current_on_two_threads),
    ]
    .map(Case::alone)
    .into()
}

/// A probe of one block that runs for [`LONG`] on a stream of a green context.
struct Busy {
    green: CUgreenCtx,
    stream: CUstream,
    memory: u64,
}

impl Busy {
    fn start(gpu: &Gpu, answer: &mut Answer<'_>) -> Result<Busy, Failure> {
        let green = gpu.green_with(64)?;
        let stream = gpu.stream_of(green)?;
        // The first launch loads the kernel, which must not be timed here.
        gpu.sms_of(stream)?;
        let memory = gpu.probe_memory(1)?;
        answer.add("launch", gpu.launch_probe(stream, 1, memory, LONG)?);
        Ok(Busy { green, stream, memory })
    }

    fn is_complete(&self, gpu: &Gpu) -> Result<bool, Failure> {
        gpu.probe_is_complete(self.memory, 1)
    }

    /// Returns whether the probe ends at all. Polls instead of sleeping, since a simulated driver's time
    /// advances with its calls.
    fn gets_complete(&self, gpu: &Gpu) -> Result<bool, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.is_complete(gpu)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Does an event recorded on the whole context wait for work whose stream was destroyed?
fn event_after_stream_destroyed(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
    record: impl Fn(&Gpu, CUgreenCtx, CUevent) -> Result<CUresult, Failure>,
) -> Outcome {
    let event = gpu.event()?;
    let busy = Busy::start(gpu, answer)?;
    answer.add("stream_destroy", gpu.cuStreamDestroy(busy.stream)?);
    answer.add("record", record(gpu, busy.green, event)?);
    answer.add("query", gpu.cuEventQuery(event)?);
    answer.add("event_synchronize", gpu.cuEventSynchronize(event)?);
    answer.add("complete", busy.is_complete(gpu)?);
    answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
    Ok(())
}

/// Destroys the context of running work: does the call wait, and does the work complete?
fn destroy_green(gpu: &Gpu, answer: &mut Answer<'_>, busy: &Busy) -> Outcome {
    let begun = Instant::now();
    answer.add("green_destroy", gpu.cuGreenCtxDestroy(busy.green)?);
    answer.add("returned_at_once", begun.elapsed() < AT_ONCE);
    answer.add("complete_at_once", busy.is_complete(gpu)?);
    answer.add("primary_synchronize", gpu.cuCtxSynchronize()?);
    answer.add("complete_after_primary_synchronize", busy.is_complete(gpu)?);
    answer.add("complete_in_the_end", busy.gets_complete(gpu)?);
    let stream = gpu.stream()?;
    answer.add("primary_still_runs", gpu.sms_of(stream)?.len());
    Ok(())
}

/// Objects that remain from a split after all its contexts and the primary context are gone.
struct Left {
    group: green_ctx_sys::CUdevResource,
    desc: green_ctx_sys::CUdevResourceDesc,
    sms: Vec<u32>,
}

/// Creates a context, runs work in it, lets the primary context become inactive, and retains it again.
fn split_and_forget(gpu: &Gpu, answer: &mut Answer<'_>) -> Result<Left, Failure> {
    let primary = gpu.cuDevicePrimaryCtxRetain(gpu.device)?.must()?;
    gpu.push(primary)?;
    let group = gpu.split_device(0, 16)?.groups[1];
    let desc = gpu.describe(&[group])?;
    let green = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?.must()?;
    let sms = sms_then_destroy(gpu, green)?;
    gpu.pop()?;
    answer.add("release", gpu.cuDevicePrimaryCtxRelease(gpu.device)?);
    answer.add("active", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    let again = gpu.cuDevicePrimaryCtxRetain(gpu.device)?;
    answer.add("retain_again", again);
    answer.add("active_again", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    gpu.push(again.must()?)?;
    Ok(Left { group, desc, sms })
}

fn sms_then_destroy(gpu: &Gpu, green: CUgreenCtx) -> Result<Vec<u32>, Failure> {
    let stream = gpu.stream_of(green)?;
    let sms = gpu.sms_of(stream)?;
    gpu.cuStreamDestroy(stream)?.must()?;
    gpu.cuGreenCtxDestroy(green)?.must()?;
    Ok(sms)
}

/// A handle to move to another thread.
pub(super) struct Sent<T>(pub(super) T);

// SAFETY: driver handles do not belong to a thread. Using one context on several threads is the subject of the cases.
unsafe impl<T> Send for Sent<T> {}

/// Makes one green context current on two threads at the same time, each of which launches on its own stream.
fn current_on_two_threads(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let green = gpu.green_with(64)?;
    let context = gpu.context_of(green)?;
    let function = gpu.probe()?;
    gpu.sms_of(gpu.stream_of(green)?)?;
    let mut work = Vec::new();
    for _ in 0..2 {
        work.push((gpu.stream_of(green)?, gpu.probe_memory(1)?));
    }
    let calls: &crate::calls::Calls = gpu;
    let both_pushed = Barrier::new(2);
    let replies: Vec<Result<Vec<(&str, Value)>, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = work
            .iter()
            .map(|(stream, memory)| {
                let sent = Sent((context, *stream, function));
                let (memory, both_pushed) = (*memory, &both_pushed);
                scope.spawn(move || {
                    let Sent((context, stream, function)) = { sent };
                    let pushed = calls.cuCtxPushCurrent(context)?;
                    // Both threads continue only after the context is current on both.
                    both_pushed.wait();
                    let is_current: CUcontext = calls.cuCtxGetCurrent()?.out;
                    let mut params = crate::gpu::probe_params(memory, SHORT);
                    let launch = calls.cuLaunchKernel(function, 1, 32, stream, &mut params)?;
                    let synchronize = calls.cuStreamSynchronize(stream)?;
                    let all = calls.cuCtxSynchronize()?;
                    both_pushed.wait();
                    let popped = calls.cuCtxPopCurrent()?;
                    let same = is_current == context && popped.out == context;
                    Ok(vec![
                        ("push", pushed.value()),
                        ("launch", launch.value()),
                        ("stream_synchronize", synchronize.value()),
                        ("context_synchronize", all.value()),
                        ("pop", popped.value()),
                        ("same_context", Value::Bool(same)),
                    ])
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Failure::Other("a thread panicked".to_owned())))
            })
            .collect()
    });
    for (thread, reply) in replies.into_iter().enumerate() {
        for (name, fact) in reply? {
            answer.add(format!("thread {thread} {name}"), fact);
        }
    }
    for (thread, (_, memory)) in work.iter().enumerate() {
        answer.add(format!("thread {thread} complete"), gpu.probe_is_complete(*memory, 1)?);
    }
    Ok(())
}

//! The life of a partition, from querying resources to closing, on drivers with different interfaces.

use std::time::Duration;

use green_ctx::{
    Device, DeviceBuffer, Error, LaunchConfig, Result, SplitRequest, Stream, StreamOptions,
    context::{CloseReason, Context},
    event::EventOptions,
    resource::{Granularity, SmGroup, WorkqueueOptions, WorkqueueScope},
    verify,
};

use super::scenario::Scenario;
use crate::common::{Outcome, kernels};

/// Runs a scenario that needs no objects around it.
fn exhaust(
    name: &'static str,
    spec: &'static str,
    at_least: usize,
    run: fn(&Device, &mut ()) -> Result<()>,
) -> Outcome {
    let (set_up, tear_down) = (|_: &Device| Ok(()), |_: &Device, ()| Ok(()));
    Scenario { name, spec, at_least, set_up, run, tear_down }.exhaust()
}

fn partitions(spec: &'static str) -> Outcome {
    exhaust("partitions", spec, 100, |device, ()| everything(device))
}

#[test]
fn partitions_of_12_5() -> Outcome {
    partitions("h200@12.5")
}

#[test]
fn partitions_of_13_0() -> Outcome {
    partitions("h200@13.0")
}

#[test]
fn partitions_of_13_1() -> Outcome {
    partitions("h200@13.1")
}

#[test]
fn work_that_goes_on() -> Outcome {
    exhaust("work that still runs", "h200@13.0", 40, |device, ()| busy(device))
}

#[test]
fn partitions_of_the_first_driver() -> Outcome {
    exhaust("one piece a group", "h200@12.4", 30, |device, ()| first_driver(device))
}

#[test]
fn structured_splits() -> Outcome {
    exhaust("structured splits", "h200@13.1", 40, |device, ()| structured(device))
}

#[test]
fn workqueues() -> Outcome {
    exhaust("workqueues", "h200@13.1", 20, |device, ()| queues(device))
}

fn describe(device: &Device) -> Result<()> {
    device.name()?;
    device.uuid()?;
    device.compute_capability()?;
    device.sm_count()?;
    device.total_memory()?;
    device.free_memory()?;
    Ok(())
}

/// Closes a context. Returns the driver error if the driver refused.
fn close(context: Context) -> Result<Option<SmGroup>> {
    context.close().map_err(|error| match error.reason {
        CloseReason::Driver(error) => error,
        reason => Error::InvalidRequest(reason.to_string()),
    })
}

/// Operations of drivers from CUDA 12.5 on.
fn everything(device: &Device) -> Result<()> {
    describe(device)?;
    let sms = device.resources().sm()?;
    for granularity in Granularity::ALL {
        sms.unit_counts(granularity)?;
    }
    sms.dry_run([16])?;
    drop(sms.split(SplitRequest::from([16]).overlapping(true))?);
    let mut split = sms.split(SplitRequest::from([16, 24]).rest("rest"))?;
    let parent = split.groups.pop().expect("two groups");
    parent.dry_run([8])?;
    let nested = parent.split([8, 16]).map_err(|error| error.reason)?;
    let mut contexts = crate::contexts(device, split)?;
    contexts.extend(crate::contexts(device, nested)?);
    let context = &contexts[0];
    context.id()?;
    context.sm_count()?;
    context.resources().sm()?;
    let stream = context.create_stream(StreamOptions::default())?;
    let other = device.primary_context()?.create_stream(StreamOptions::default())?;
    stream.resources().sm()?;
    other.resources().sm()?;
    stream.id()?;
    stream.priority()?;
    stream.is_capturing()?;
    events(device, context, &stream, &other)?;
    let buffer = DeviceBuffer::from_slice(device, &[1u32, 2])?;
    buffer.read(&stream)?;
    kernels::probe(device)?;
    drop(context.make_current()?);
    Context::current(device.driver())?;
    stream.is_idle()?;
    stream.launch_host(|| {})?;
    stream.synchronize()?;
    context.synchronize()?;
    drop(stream);
    verify::contexts(&contexts, Duration::from_millis(1))?;
    let group = close(contexts.pop().expect("four contexts"))?;
    drop(device.create_context(group.expect("it is green"))?);
    device.set_idle_limit(1);
    device.release_idle();
    Ok(())
}

fn events(device: &Device, context: &Context, stream: &Stream, other: &Stream) -> Result<()> {
    let timing = EventOptions::default().timing(true);
    let (start, end) = (device.create_event(timing)?, device.create_event(timing)?);
    stream.record(&start)?;
    context.record(&end)?;
    context.wait(&end)?;
    other.wait(&start)?;
    other.wait_for(stream)?;
    stream.synchronize()?;
    end.is_complete()?;
    end.synchronize()?;
    end.elapsed_since(&start)?;
    Ok(())
}

/// Drops a partition while its work runs, and creates the next one on the same SMs.
fn busy(device: &Device) -> Result<()> {
    let (kernel, buffer) = (kernels::probe(device)?, DeviceBuffer::<u64>::zeroed(device, 64)?);
    let partition = || {
        let group = device.resources().sm()?.split([8])?.groups.remove(0);
        device.create_context(group)?.create_stream(StreamOptions::default())
    };
    let stream = partition()?;
    let nanoseconds = 1_000_000u64;
    let arguments = (buffer.as_argument(), nanoseconds);
    // SAFETY: one block writes three words, which `buffer` has. Freeing `buffer` waits for the work.
    unsafe { stream.launch(&kernel, LaunchConfig::new(1, 32), arguments) }?;
    drop(stream);
    let next = partition()?;
    next.synchronize()?;
    // A new stream queries the fence. The work is done, so the stream need not wait.
    next.context().create_stream(StreamOptions::default())?;
    Ok(())
}

/// Operations of a CUDA 12.4 driver.
fn first_driver(device: &Device) -> Result<()> {
    let sms = device.resources().sm()?;
    let contexts = crate::contexts(device, sms.split(SplitRequest::from([16, 16]).rest("rest"))?)?;
    let context = &contexts[0];
    context.resources().sm()?;
    let stream = context.create_stream(StreamOptions::default().priority(-1))?;
    stream.resources().sm()?;
    let event = device.create_event(EventOptions::default())?;
    context.record(&event)?;
    context.wait(&event)?;
    stream.synchronize()?;
    drop(stream);
    drop(contexts);
    device.release_idle();
    Ok(())
}

/// Splits made by the driver's structured split (`cuDevSmResourceSplit`).
fn structured(device: &Device) -> Result<()> {
    let sms = device.resources().sm()?;
    let request = SplitRequest::from([32, 24]).coscheduled(8).rest("rest");
    sms.dry_run(request.clone())?;
    let mut split = sms.split(request)?;
    let context = device.create_context(split.groups.remove(0))?;
    context.create_stream(StreamOptions::default())?.resources().sm()?;
    let parent = close(context)?.expect("it is green");
    let inner = SplitRequest::from([16]).backfill(true).rest("spare");
    parent.dry_run(inner.clone())?;
    let children = parent.split(inner).map_err(|error| error.reason)?;
    let contexts = crate::contexts(device, children)?;
    drop(split);
    verify::contexts(&contexts, Duration::from_millis(1))?;
    drop(contexts);
    device.release_idle();
    Ok(())
}

fn queues(device: &Device) -> Result<()> {
    let budget = device.resources().workqueue()?;
    let options = WorkqueueOptions::default().scope(WorkqueueScope::GreenContextBalanced);
    let queues = [budget.divide(2)?, budget.configure(options.concurrency_limit(1))?];
    for workqueue in queues {
        let group = device.resources().sm()?.split([16])?.groups.remove(0);
        let context = device.create_context(group.with_workqueue(workqueue))?;
        context.resources().workqueue()?;
        context.create_stream(StreamOptions::default())?.resources().workqueue()?;
        let group = device.resources().sm()?.split([8])?.groups.remove(0);
        device.create_context(group.with_workqueue(context.shared_workqueue()?))?;
    }
    device.release_idle();
    Ok(())
}

//! Partitions whose work goes on: what becomes of their SMs and of their contexts.

use std::time::Duration;

use green_ctx::{
    DeviceBuffer, Kernel, LaunchConfig, SplitRequest, Stream, StreamOptions, context::Context,
    event::EventOptions, graph::CaptureMode, resource::Granularity,
};

use crate::common::{Outcome, device, group, kernels, partition};

pub(crate) fn keep_busy(
    stream: &Stream,
    kernel: &Kernel,
    results: &DeviceBuffer<u64>,
    time: Duration,
) -> green_ctx::Result<()> {
    let nanoseconds = u64::try_from(time.as_nanos()).expect("a short time");
    // SAFETY: the kernel's two parameters; one block writes three words, which the buffer has, and
    // the callers keep it until the work is done.
    unsafe { stream.launch(kernel, LaunchConfig::new(1, 32), (results.as_argument(), nanoseconds)) }
}

/// A partition of 8 SMs that is busy for a while, and what says when it is done.
pub(crate) struct Busy {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) done: green_ctx::Event,
    /// Unloading a kernel's library waits for the kernel, and freeing its memory does too: both are
    /// kept until the end of a test.
    pub(crate) keep: (Kernel, DeviceBuffer<u64>),
}

impl Busy {
    pub(crate) fn start(device: &green_ctx::Device) -> green_ctx::Result<Busy> {
        let context = partition(device, 8)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let keep = (kernels::probe(device)?, DeviceBuffer::zeroed(device, 3)?);
        let done = device.create_event(EventOptions::default())?;
        // Loaded into the context first: what follows is about time.
        keep_busy(&stream, &keep.0, &keep.1, Duration::ZERO)?;
        stream.synchronize()?;
        keep_busy(&stream, &keep.0, &keep.1, Duration::from_millis(50))?;
        stream.record(&done)?;
        Ok(Busy { context, stream, done, keep })
    }

    /// Drops the partition, whose work goes on, and returns what says when it is done.
    fn give_up(self) -> (green_ctx::Event, impl Sized) {
        (self.done, self.keep)
    }
}

#[test]
fn whoever_takes_sms_waits_for_what_still_runs_on_them() -> Outcome {
    let device = device()?;
    // So that no other test's context is preferred to the one that this partition leaves.
    device.release_idle();
    let busy = Busy::start(&device)?;
    let raw = busy.context.as_raw_green();
    let (done, _keep) = busy.give_up();
    assert_eq!(device.resources().sm()?.free_sm_count(), device.sm_count()?);
    assert!(!done.is_complete()?, "giving the SMs back waited on the host");

    // The same SMs, and with them the same driver context.
    let next = partition(&device, 8)?;
    assert_eq!(next.as_raw_green(), raw);
    let stream = next.create_stream(StreamOptions::default())?;
    assert!(!stream.is_idle()?, "the new stream does not wait for the work before it");
    stream.synchronize()?;
    assert!(done.is_complete()?);
    // What is done is waited for no more.
    assert!(next.create_stream(StreamOptions::default())?.is_idle()?);
    Ok(())
}

/// Does some work while a stream is captured in the strictest mode.
fn during_a_capture(device: &green_ctx::Device, work: impl FnOnce() -> Outcome) -> Outcome {
    let captured = device.primary_context()?.create_stream(StreamOptions::default())?;
    captured.capture(CaptureMode::Global, work).map(drop)
}

#[test]
fn partitions_come_and_go_while_a_stream_is_captured() -> Outcome {
    let device = device()?;
    drop(partition(&device, 8)?);
    let busy = Busy::start(&device)?;
    let captured = during_a_capture(&device, || {
        let (done, keep) = busy.give_up();
        // The same SMs, still fenced, and others.
        let again = [partition(&device, 8)?, partition(&device, 8)?];
        for context in again {
            drop(context.create_stream(StreamOptions::default())?);
        }
        // Freeing memory and unloading kernels wait for the device, which a capture forbids.
        std::mem::forget(keep);
        drop(done);
        Ok(())
    });
    captured.map_err(|error| format!("the capture was invalidated: {error}"))?;

    let event = device.create_event(EventOptions::default())?;
    let captured = during_a_capture(&device, || {
        assert!(event.is_complete().is_err(), "the driver forbids it, which is why this is a test");
        Ok(())
    });
    assert!(captured.is_err());
    Ok(())
}

#[test]
fn other_sms_need_not_wait() -> Outcome {
    let device = device()?;
    // Made before: making a driver context waits for the device's work.
    let other = partition(&device, 8)?;
    let busy = Busy::start(&device)?;
    let (done, _keep) = busy.give_up();
    assert!(other.create_stream(StreamOptions::default())?.is_idle()?);
    assert!(!done.is_complete()?);
    done.synchronize()?;
    Ok(())
}

#[test]
fn fences_outlive_a_group_that_was_never_used() -> Outcome {
    let device = device()?;
    device.release_idle();
    let (done, _keep) = Busy::start(&device)?.give_up();
    drop(group(&device, 8)?);
    // A context without streams has nothing to wait with, and hands on what it was given.
    drop(partition(&device, 8)?);
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    assert!(!stream.is_idle()? && !done.is_complete()?);
    stream.synchronize()?;
    assert!(done.is_complete()?);
    Ok(())
}

#[test]
fn fences_hold_across_granularities() -> Outcome {
    let device = device()?;
    // Made before: making a driver context waits for the device's work.
    let fine = || -> green_ctx::Result<Context> {
        let request = SplitRequest::from([2]).granularity(Granularity::Fine);
        Ok(device.create_context(device.resources().sm()?.split(request)?.groups.remove(0))?)
    };
    drop(fine()?);
    let (done, _keep) = Busy::start(&device)?.give_up();
    let stream = fine()?.create_stream(StreamOptions::default())?;
    assert!(!stream.is_idle()?);
    stream.synchronize()?;
    assert!(done.is_complete()?);
    Ok(())
}

//! Partitions that are dropped while their work still runs: when the next owner may use the SMs and the
//! context.

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
    // SAFETY: the arguments match the kernel's two parameters. The one block writes three words, which
    // `results` has, and the callers keep `results` until the work is done.
    unsafe { stream.launch(kernel, LaunchConfig::new(1, 32), (results.as_argument(), nanoseconds)) }
}

/// A partition of 8 SMs that is busy for 50 ms, with an event at the end of the work.
pub(crate) struct Busy {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) done: green_ctx::Event,
    /// The kernel and its memory, kept until the end of a test: unloading the library and freeing the memory
    /// would wait for the kernel.
    pub(crate) keep: (Kernel, DeviceBuffer<u64>),
}

impl Busy {
    pub(crate) fn start(device: &green_ctx::Device) -> green_ctx::Result<Busy> {
        let context = partition(device, 8)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let keep = (kernels::probe(device)?, DeviceBuffer::zeroed(device, 3)?);
        let done = device.create_event(EventOptions::default())?;
        // Load the kernel into the context first, since loading would disturb the timing below.
        keep_busy(&stream, &keep.0, &keep.1, Duration::ZERO)?;
        stream.synchronize()?;
        keep_busy(&stream, &keep.0, &keep.1, Duration::from_millis(50))?;
        stream.record(&done)?;
        Ok(Busy { context, stream, done, keep })
    }

    /// Drops the partition while its work runs. Returns the event that ends the work, and the kept resources.
    fn give_up(self) -> (green_ctx::Event, impl Sized) {
        (self.done, self.keep)
    }
}

#[test]
fn whoever_takes_sms_waits_for_what_still_runs_on_them() -> Outcome {
    let device = device()?;
    // Otherwise the next partition might reuse a context of another test instead of the one that this partition
    // leaves.
    device.release_idle();
    let busy = Busy::start(&device)?;
    let raw = busy.context.as_raw_green();
    let (done, _keep) = busy.give_up();
    assert_eq!(device.resources().sm()?.free_sm_count(), device.sm_count()?);
    assert!(!done.is_complete()?, "returning the SMs waited on the host");

    // The same SMs, and therefore the same driver context.
    let next = partition(&device, 8)?;
    assert_eq!(next.as_raw_green(), raw);
    let stream = next.create_stream(StreamOptions::default())?;
    assert!(!stream.is_idle()?, "the new stream does not wait for the previous work");
    stream.synchronize()?;
    assert!(done.is_complete()?);
    // No stream waits for work that is already done.
    assert!(next.create_stream(StreamOptions::default())?.is_idle()?);
    Ok(())
}

/// Calls `work` while a stream is captured in global mode, the strictest.
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
        // The first partition gets the same SMs, still fenced; the second gets others.
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
        assert!(event.is_complete().is_err(), "the driver allows event queries");
        Ok(())
    });
    assert!(captured.is_err());
    Ok(())
}

#[test]
fn other_sms_need_not_wait() -> Outcome {
    let device = device()?;
    // Created before the work starts: creating a driver context waits for the device's work.
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
    // A context without streams waits for nothing; it passes its fences on to the next owner.
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
    // Created before the work starts: creating a driver context waits for the device's work.
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

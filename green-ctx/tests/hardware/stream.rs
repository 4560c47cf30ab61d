//! Streams and events.

use std::time::Duration;

use green_ctx::{DeviceBuffer, StreamOptions, event::EventOptions};

use crate::busy::{Busy, keep_busy};
use crate::common::{Outcome, device, kernels, partition};

#[test]
fn work_of_one_partition_waits_for_another() -> Outcome {
    let device = device()?;
    let second = partition(&device, 8)?;
    let consumer = second.create_stream(StreamOptions::default())?;
    let seen = device.create_event(EventOptions::default())?;
    let busy = Busy::start(&device)?;
    consumer.wait(&busy.done)?;
    consumer.record(&seen)?;
    assert!(!busy.stream.is_idle()?);
    assert!(!seen.is_complete()?, "the wait did not hold the consumer back");
    seen.synchronize()?;
    assert!(busy.done.is_complete()? && consumer.is_idle()?);
    assert_ne!(busy.keep.1.read(&busy.stream)?[2], 0);
    Ok(())
}

#[test]
fn time_is_taken_between_events() -> Outcome {
    let device = device()?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    let kernel = kernels::probe(&device)?;
    let results = DeviceBuffer::zeroed(&device, 3)?;
    let options = EventOptions::default().timing(true).blocking(true);
    let (start, end) = (device.create_event(options)?, device.create_event(options)?);
    stream.record(&start)?;
    keep_busy(&stream, &kernel, &results, Duration::from_millis(10))?;
    stream.record(&end)?;
    end.synchronize()?;
    assert!(end.elapsed_since(&start)? >= Duration::from_millis(9));
    Ok(())
}

//! Streams, events, and what runs in them.

use std::time::Duration;

use green_ctx::{
    DeviceBuffer, LaunchConfig, Library, StreamOptions, error::ErrorKind, event::EventOptions,
};

use crate::busy::{Busy, busy_kernel, keep_busy};
use crate::common::{Outcome, device, partition};

#[test]
fn a_stream_keeps_its_partition() -> Outcome {
    let device = device()?;
    let context = partition(&device, 16)?;
    let stream = context.create_stream(StreamOptions::default())?;
    drop(context);
    assert_eq!(stream.context().sm_count()?, 16);
    stream.synchronize()?;
    assert_eq!(device.resources().sm()?.free(), device.sm_count()? - 16);
    drop(stream);
    assert_eq!(device.resources().sm()?.free(), device.sm_count()?);
    Ok(())
}

#[test]
fn priorities_are_clamped_and_readable() -> Outcome {
    let device = device()?;
    assert_eq!(device.stream_priorities()?, -5..=0);
    for context in [device.primary_context()?, partition(&device, 8)?] {
        for (asked, given) in [(0, 0), (-1, -1), (-100, -5), (100, 0)] {
            let stream = context.create_stream(StreamOptions::default().priority(asked))?;
            assert_eq!(stream.priority()?, given, "{asked}");
        }
    }
    Ok(())
}

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
fn events_cover_a_whole_context() -> Outcome {
    let device = device()?;
    let (busy, waiting) = (partition(&device, 8)?, partition(&device, 8)?);
    let stream = busy.create_stream(StreamOptions::default())?;
    let other = waiting.create_stream(StreamOptions::default())?;
    let kernel = busy_kernel(&device)?;
    let results = DeviceBuffer::zeroed(&device, 3)?;
    let (done, seen) = (
        device.create_event(EventOptions::default())?,
        device.create_event(EventOptions::default())?,
    );
    keep_busy(&stream, &kernel, &results, Duration::from_millis(50))?;
    busy.record(&done)?;
    waiting.wait(&done)?;
    other.record(&seen)?;
    assert!(!done.is_complete()? && !seen.is_complete()?);
    waiting.synchronize()?;
    assert!(done.is_complete()? && seen.is_complete()?);
    Ok(())
}

#[test]
fn time_is_taken_between_events() -> Outcome {
    let device = device()?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    let kernel = busy_kernel(&device)?;
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

#[test]
fn a_buffer_brings_values_back() -> Outcome {
    let device = device()?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    let values: Vec<f64> = (0..1000).map(f64::from).collect();
    assert_eq!(DeviceBuffer::from_slice(&device, &values)?.read(&stream)?, values);
    assert_eq!(DeviceBuffer::<u16>::zeroed(&device, 3)?.read(&stream)?, [0; 3]);
    for len in [0, usize::MAX] {
        let error = DeviceBuffer::<u64>::zeroed(&device, len).expect_err("no such buffer");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    let error = DeviceBuffer::<u8>::zeroed(&device, 1 << 50).expect_err("a pebibyte");
    assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
    Ok(())
}

#[test]
fn arguments_must_match_the_kernel() -> Outcome {
    let device = device()?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    let kernel = busy_kernel(&device)?;
    assert_eq!(kernel.parameter_sizes(), [8, 8]);
    let config = LaunchConfig::new(1, 32);
    // SAFETY: refused before anything runs, which is what is tested.
    let error = unsafe { stream.launch(&kernel, config, (0u64,)) }.expect_err("one is missing");
    assert_eq!(error.to_string(), "kernel green_ctx_probe takes 2 parameters, not 1");
    // SAFETY: as above.
    let error = unsafe { stream.launch(&kernel, config, (0u64, 0u32)) }.expect_err("too small");
    assert!(error.to_string().contains("parameters of [8, 8] bytes, not [8, 4]"), "{error}");
    // SAFETY: as above, by the driver: a block has at most 1024 threads.
    let error = unsafe { stream.launch(&kernel, LaunchConfig::new(1, 2048), (0u64, 0u64)) }
        .expect_err("too many threads");
    assert!(error.to_string().ends_with("the device takes at most 1024"), "{error}");
    stream.synchronize()?;
    Ok(())
}

#[test]
fn a_library_refuses_what_is_not_there() -> Outcome {
    let device = device()?;
    assert_eq!(
        Library::from_ptx(&device, "a\0b").expect_err("a NUL").kind(),
        ErrorKind::InvalidRequest
    );
    assert_eq!(
        Library::from_ptx(&device, "not PTX").expect_err("no `.version`").kind(),
        ErrorKind::InvalidRequest
    );
    // A driver looks at the text only when it is asked for a kernel (recorded on an H200).
    let wrong = Library::from_ptx(&device, ".version not PTX");
    let error = wrong.and_then(|library| library.kernel("any"));
    assert_eq!(error.expect_err("not PTX").kind(), ErrorKind::Driver);
    let library = Library::from_ptx(&device, include_str!("../../src/probe.ptx"))?;
    let error = library.kernel("missing").expect_err("no such kernel");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    Ok(())
}

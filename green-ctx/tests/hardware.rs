//! The safe layer's behaviour, on the simulated H200 and, with `GREEN_CTX_DRIVER=cuda`, on a real
//! GPU: the same tests hold on both.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Outcome, device, group, partition};
use green_ctx::{
    CloseReason, Context, DeviceBuffer, Error, ErrorKind, EventOptions, Granularity, Kernel,
    LaunchConfig, Library, SplitRequest, Stream, StreamOptions, verify,
};

/// The probe as a kernel of the test's own: it keeps an SM busy for as long as it is told to.
fn busy_kernel(device: &green_ctx::Device) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, include_str!("../src/probe.ptx"))?.kernel("green_ctx_probe")
}

fn keep_busy(
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

#[test]
fn partitions_run_on_their_own_sms_and_only_there() -> Outcome {
    let device = device()?;
    let request = SplitRequest::from([16, 24]).rest("remainder");
    let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
    let counts: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    assert_eq!(counts, [16, 24, device.sm_count()? - 40]);
    assert!(report.disjoint() && report.concurrent() && report.ok());
    for partition in &report.partitions {
        assert_eq!(partition.observed_sms().len(), partition.sm_count as usize);
    }
    assert_eq!(device.resources().sm()?.free(), device.sm_count()?);
    Ok(())
}

#[test]
fn an_uneven_split_needs_no_newer_driver() -> Outcome {
    let device = device()?;
    let report = verify::split(&device, [8, 24, 100], verify::DEFAULT_STAY)?;
    let counts: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    assert_eq!(counts, [8, 24, 100]);
    assert!(report.ok());
    Ok(())
}

#[test]
fn fine_partitions_are_verified_too() -> Outcome {
    let device = device()?;
    let request = SplitRequest::from([6, 10]).granularity(Granularity::Fine).rest("rest");
    let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
    let counts: Vec<u32> = report.partitions.iter().map(|partition| partition.sm_count).collect();
    assert_eq!(counts, [6, 10, device.sm_count()? - 16]);
    assert!(report.ok());
    Ok(())
}

#[test]
fn two_splits_anywhere_are_disjoint() -> Outcome {
    let device = device()?;
    let first = partition(&device, 16)?;
    let second = partition(&device, 16)?;
    let report = verify::partitions(&[first, second], verify::DEFAULT_STAY)?;
    assert!(report.disjoint() && report.ok());
    Ok(())
}

#[test]
fn what_is_asked_and_what_is_given_are_both_told() -> Outcome {
    let device = device()?;
    let group = group(&device, 17)?;
    assert_eq!((group.requested(), group.sm_count(), group.name()), (Some(17), 24, "p0"));
    let plan = device.resources().sm()?.plan([9])?;
    let planned = &plan.groups[0];
    assert_eq!((plan.unit, planned.requested, planned.sm_count), (8, Some(9), 16));
    assert_eq!(plan.remainder, device.sm_count()? - 24 - 16);
    Ok(())
}

#[test]
fn asking_for_too_much_says_what_fits_and_who_has_the_rest() -> Outcome {
    let device = device()?;
    let sms = device.resources().sm()?;
    let error = sms.split([64, 64, 64]).expect_err("192 SMs of 132");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(
        error.to_string(),
        "3 groups of 64 SMs do not fit, 2 fit: 132 of the device's 132 SMs are free, in units of 8; \
         3 groups of 40 would fit"
    );
    assert_eq!(sms.free(), 132);

    let decode = sms.split(SplitRequest::new().group("decode", 100))?;
    let error = sms.split([16, 24]).expect_err("32 SMs are left");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "groups of 16, 24 SMs do not fit, the first 1 fit: 32 of the device's 132 SMs are free, in \
         units of 8; 2 groups of 16 would fit; the rest is held by decode (100 SMs)"
    );
    drop(decode);
    assert_eq!(sms.free(), 132);
    Ok(())
}

#[test]
fn requests_that_make_no_sense_are_refused() -> Outcome {
    let device = device()?;
    let sms = device.resources().sm()?;
    for request in [SplitRequest::from([0]), SplitRequest::from([16, 0]), SplitRequest::new()] {
        let error = sms.split(request).expect_err("nothing to give");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
    assert!(matches!(sms.split([8; 40]), Err(Error::NotEnoughSms(_))));
    assert!(matches!(sms.split([133]), Err(Error::NotEnoughSms(_))));
    assert!(matches!(sms.split([u32::MAX]), Err(Error::NotEnoughSms(_))));
    let error = device.driver().device(9).expect_err("there are fewer devices");
    assert!(matches!(error, Error::NoSuchDevice { ordinal: 9, .. }), "{error}");
    assert_eq!(sms.free(), sms.sm_count());
    Ok(())
}

#[test]
fn fine_and_coarse_groups_do_not_meet() -> Outcome {
    let device = device()?;
    let sms = device.resources().sm()?;
    let fine = |count| SplitRequest::from([count]).granularity(Granularity::Fine);
    let coarse = sms.split([16])?;
    let error = sms.split(fine(2)).expect_err("coarse groups are out");
    assert_eq!(
        error.to_string(),
        "the device is cut into coarse units, of which some are held; drop them to cut it otherwise"
    );
    drop(coarse);
    let fine = sms.split(fine(2))?;
    assert_eq!(fine.groups[0].sm_count(), 2);
    let error = sms.split([16]).expect_err("fine groups are out");
    assert!(matches!(&error, Error::CutInUse { held } if held == "fine units"), "{error}");
    Ok(())
}

#[test]
fn a_context_knows_what_it_is() -> Outcome {
    let device = device()?;
    let primary = device.primary_context()?;
    let green = partition(&device, 32)?;
    assert!(!primary.is_green() && green.is_green());
    assert_eq!((primary.sm_count()?, green.sm_count()?), (device.sm_count()?, 32));
    assert_ne!(primary.id()?, green.id()?);
    assert_ne!(primary, green);
    assert_eq!(primary, device.primary_context()?);
    assert_eq!(green.group().map(|group| group.sm_count()), Some(32));
    assert!(primary.group().is_none());
    Ok(())
}

#[test]
fn a_raw_handle_leads_to_the_object_that_owns_it() -> Outcome {
    let device = device()?;
    let driver = device.driver();
    let green = partition(&device, 8)?;
    let stream = green.create_stream(StreamOptions::default())?;
    assert_eq!(driver.find_context(green.as_raw()), Some(green.clone()));
    assert_eq!(driver.find_stream(stream.as_raw()), Some(stream.clone()));
    assert_eq!(driver.find_stream(std::ptr::null_mut()), None);
    let raw = stream.as_raw();
    drop(stream);
    assert_eq!(driver.find_stream(raw), None);
    Ok(())
}

#[test]
fn closing_a_context_gives_its_group_back() -> Outcome {
    let device = device()?;
    let context = partition(&device, 24)?;
    let group = context.close()?.expect("a green context has a group");
    assert_eq!(group.sm_count(), 24);
    // The same SMs make another context.
    let context = device.create_context(group)?;
    assert_eq!(context.sm_count()?, 24);
    drop(context);
    assert_eq!(device.resources().sm()?.free(), device.sm_count()?);
    Ok(())
}

#[test]
fn a_context_in_use_is_not_closed() -> Outcome {
    let device = device()?;
    let context = partition(&device, 8)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let error = context.close().expect_err("a stream uses it");
    assert!(matches!(error.reason, CloseReason::Shared), "{error:?}");
    let context = error.context;
    assert_eq!(device.driver().find_context(context.as_raw()), Some(context.clone()));
    stream.synchronize()?;
    drop(stream);

    let current = context.make_current()?;
    let error = context.close().expect_err("a guard keeps it");
    assert!(matches!(error.reason, CloseReason::Shared), "{error:?}");
    drop(current);
    assert!(error.context.close()?.is_some());
    Ok(())
}

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

/// A partition of 8 SMs that is busy for a while, and what tells when it is done.
struct Busy {
    context: Context,
    stream: Stream,
    done: green_ctx::Event,
    /// Unloading a kernel's library waits for the kernel, and freeing its memory does too: both are
    /// kept until the end of a test.
    keep: (Kernel, DeviceBuffer<u64>),
}

impl Busy {
    fn start(device: &green_ctx::Device) -> green_ctx::Result<Busy> {
        let context = partition(device, 8)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let keep = (busy_kernel(device)?, DeviceBuffer::zeroed(device, 3)?);
        let done = device.create_event(EventOptions::default())?;
        // Loaded into the context first: what follows is about time.
        keep_busy(&stream, &keep.0, &keep.1, Duration::ZERO)?;
        stream.synchronize()?;
        keep_busy(&stream, &keep.0, &keep.1, Duration::from_millis(50))?;
        stream.record(&done)?;
        Ok(Busy { context, stream, done, keep })
    }

    /// Drops the partition, whose work goes on, and returns what tells when it is done.
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
    assert_eq!(device.resources().sm()?.free(), device.sm_count()?);
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

/// Captures a stream in the strictest mode, does something, and ends the capture.
fn during_a_capture(
    device: &green_ctx::Device,
    work: impl FnOnce() -> Outcome,
) -> Result<green_ctx::CUresult, Box<dyn std::error::Error>> {
    let captured = device.primary_context()?.create_stream(StreamOptions::default())?;
    let api = device.driver().api();
    let mode = green_ctx::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive.
    let begun = unsafe { api.cuStreamBeginCapture()?(captured.as_raw(), mode) };
    assert_eq!(begun, green_ctx::CUresult::CUDA_SUCCESS);
    work()?;
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is alive, the pointer is to a live handle.
    let ended = unsafe { api.cuStreamEndCapture()?(captured.as_raw(), &raw mut graph) };
    if !graph.is_null() {
        // SAFETY: the graph was made just now, and nobody else has it.
        unsafe { api.cuGraphDestroy()?(graph) };
    }
    Ok(ended)
}

#[test]
fn partitions_come_and_go_while_a_stream_is_captured() -> Outcome {
    let device = device()?;
    drop(partition(&device, 8)?);
    let busy = Busy::start(&device)?;
    let ended = during_a_capture(&device, || {
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
    })?;
    assert_eq!(ended, green_ctx::CUresult::CUDA_SUCCESS, "the capture was spoiled");

    let event = device.create_event(EventOptions::default())?;
    let ended = during_a_capture(&device, || {
        assert!(event.is_complete().is_err(), "the driver forbids it, which is why this is a test");
        Ok(())
    })?;
    assert_ne!(ended, green_ctx::CUresult::CUDA_SUCCESS);
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
        device.create_context(device.resources().sm()?.split(request)?.groups.remove(0))
    };
    drop(fine()?);
    let (done, _keep) = Busy::start(&device)?.give_up();
    let stream = fine()?.create_stream(StreamOptions::default())?;
    assert!(!stream.is_idle()?);
    stream.synchronize()?;
    assert!(done.is_complete()?);
    Ok(())
}

#[test]
fn closing_waits_for_the_work() -> Outcome {
    let device = device()?;
    let Busy { context, stream, done, keep: _keep } = Busy::start(&device)?;
    drop(stream);
    assert!(!done.is_complete()?);
    assert!(context.close()?.is_some());
    assert!(done.is_complete()?, "the group came back while its work went on");
    Ok(())
}

#[test]
fn contexts_are_used_again() -> Outcome {
    let device = device()?;
    device.release_idle();
    let before = device.context_counts();
    for _ in 0..10 {
        let contexts = [partition(&device, 16)?, partition(&device, 24)?];
        assert_eq!([contexts[0].sm_count()?, contexts[1].sm_count()?], [16, 24]);
    }
    let after = device.context_counts();
    assert_eq!((after.created - before.created, after.reused - before.reused), (2, 18));
    assert_eq!(after.idle, 2);

    // Elsewhere on the device, where the first units are taken by somebody else.
    let _first = group(&device, 8)?;
    assert_eq!(partition(&device, 24)?.sm_count()?, 24);
    assert_eq!(device.context_counts().created, after.created);
    assert_eq!(device.release_idle(), 2);
    assert_eq!(device.context_counts().idle, 0);
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
    let error = unsafe { stream.launch(&kernel, LaunchConfig::new(1, 2048), (0u64, 0u64)) };
    assert_eq!(error.expect_err("too many threads").kind(), ErrorKind::Driver);
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
    // A driver looks at the text only when it is asked for a kernel (recorded on an H200).
    let error = Library::from_ptx(&device, "not PTX").and_then(|library| library.kernel("any"));
    assert_eq!(error.expect_err("not PTX").kind(), ErrorKind::Driver);
    let library = Library::from_ptx(&device, include_str!("../src/probe.ptx"))?;
    assert_eq!(library.kernel("missing").expect_err("no such kernel").kind(), ErrorKind::Driver);
    Ok(())
}

#[test]
fn guards_nest_and_restore() -> Outcome {
    let device = device()?;
    let driver = device.driver();
    let (primary, green) = (device.primary_context()?, partition(&device, 8)?);
    assert_eq!(Context::current(driver)?, None);
    let outer = primary.make_current()?;
    {
        let _inner = green.make_current()?;
        assert_eq!(Context::current(driver)?, Some(green.clone()));
    }
    assert_eq!(Context::current(driver)?, Some(primary.clone()));
    drop(outer);
    assert_eq!(Context::current(driver)?, None);
    Ok(())
}

#[test]
fn a_guard_out_of_order_is_reported_and_harms_nothing() -> Outcome {
    let device = device()?;
    let driver = device.driver().clone();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    driver.on_cleanup_failure(move |error| {
        sink.lock().expect("no test panics here").push(error.to_string());
    });
    // On a thread of its own: a guard that ended out of order stays on the thread's stack.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> green_ctx::Result<()> {
            let (primary, green) = (device.primary_context()?, partition(&device, 8)?);
            let outer = primary.make_current()?;
            let inner = green.make_current()?;
            drop(outer);
            assert_eq!(Context::current(&driver)?, Some(green.clone()));
            drop(inner);
            assert_eq!(Context::current(&driver)?, Some(primary));
            Ok(())
        });
        thread.join().expect("no panic")
    })?;
    let reports = reports.lock().expect("no test panics here");
    assert_eq!(*reports, ["a guard ended out of order: another context is current"]);
    Ok(())
}

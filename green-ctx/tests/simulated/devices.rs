//! Two devices of one driver, and two drivers.

use std::time::Duration;

use green_ctx::sim::{Fault, Live, Sim};
use green_ctx::{
    Device, DeviceBuffer, Driver, Error, Event, StreamOptions,
    event::EventOptions,
    graph::{CaptureMode, RetargetError},
    verify,
};

use crate::common::{Outcome, group, partition, simulated};
use crate::{DRIVERS, launch, work};

/// Runs a test on each driver with two devices. No object may be left afterwards.
fn each_pair(test: impl Fn(&Sim, [&Device; 2]) -> Outcome) -> Outcome {
    for spec in DRIVERS {
        let sim = Sim::builder(spec).devices(2).build()?;
        let driver = Driver::simulated(&sim)?;
        let devices = [driver.device(0)?, driver.device(1)?];
        test(&sim, [&devices[0], &devices[1]]).map_err(|error| format!("{spec}: {error}"))?;
        for device in &devices {
            device.release_idle();
        }
        assert_eq!(sim.live(), Live::default(), "{spec}: something is left");
    }
    Ok(())
}

#[test]
fn a_graph_over_two_devices_is_launched_once() -> Outcome {
    for fault in [None, Some("cuEventRecord"), Some("cuStreamWaitEvent")] {
        each_pair(|sim, [first, second]| {
            let kernel = work::kernel(sim, first, "work", Duration::from_millis(1))?;
            let (here, there) = (partition(first, 16)?, partition(second, 16)?);
            let stream = here.create_stream(StreamOptions::default())?;
            let forked = there.create_stream(StreamOptions::default())?;
            let graph = stream.capture(CaptureMode::default(), || {
                launch(&stream, &kernel)?;
                forked.wait_for(&stream)?;
                launch(&forked, &kernel)?;
                stream.wait_for(&forked)
            })?;
            assert_eq!(graph.contexts().len(), 2);
            let exec = graph.instantiate()?;
            // The first launch creates the events that track it in the other device's partition.
            // SAFETY: the kernel touches no memory.
            unsafe { stream.launch_graph(&exec) }?;
            stream.synchronize()?;
            sim.take_launches();
            let mut _hook = None;
            if let Some(call) = fault {
                _hook = Some(first.driver().on_cleanup_failure(|_| {}));
                sim.fail(Fault::on(call))?;
            }
            // SAFETY: as above.
            unsafe { stream.launch_graph(&exec) }?;
            sim.clear_faults();
            assert_eq!(sim.launches().len(), 2, "after {fault:?}");
            // Closing the other device's partition waits for the graph.
            drop((graph, exec, forked));
            let group = there.close()?.ok_or("a group")?;
            let end = sim.launches().iter().map(|launch| launch.end_ns).max();
            let next = second.create_context(group)?.create_stream(StreamOptions::default())?;
            launch(&next, &kernel)?;
            let next = sim.launches().pop().ok_or("a launch")?;
            assert!(Some(next.start_ns) >= end, "after {fault:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_graph_over_two_devices_is_not_moved() -> Outcome {
    each_pair(|sim, [first, second]| {
        let kernel = work::kernel(sim, first, "work", Duration::from_millis(1))?;
        let (here, there) = (partition(first, 16)?, partition(second, 16)?);
        let stream = here.create_stream(StreamOptions::default())?;
        let forked = there.create_stream(StreamOptions::default())?;
        let graph = stream.capture(CaptureMode::default(), || {
            forked.wait_for(&stream)?;
            launch(&forked, &kernel)?;
            stream.wait_for(&forked)
        })?;
        let before = sim.live();
        let error = graph.retarget(&here).expect_err("a node runs on the other device");
        let mismatch = RetargetError::Error(Error::DeviceMismatch { what: "" });
        assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&mismatch), "{error}");
        assert_eq!(sim.live(), before);
        Ok(())
    })
}

#[test]
fn devices_have_ledgers_of_their_own() -> Outcome {
    each_pair(|_, [first, second]| {
        assert_ne!(first, second);
        let error = first.driver().device(2).expect_err("only two devices exist");
        assert!(matches!(error, Error::NoSuchDevice { ordinal: 2, .. }), "{error}");
        let _held = group(first, 132)?;
        assert_eq!(second.resources().sm()?.free_sm_count(), 132);
        let contexts = [partition(second, 8)?, first.primary_context()?];
        let error = verify::contexts(&contexts, Duration::ZERO).expect_err("two devices");
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
        let stream =
            |context: green_ctx::context::Context| context.create_stream(StreamOptions::default());
        let [here, there] = [first, second].map(|device| device.primary_context().and_then(stream));
        here?.wait_for(&there?)?;
        let event = first.create_event(EventOptions::default())?;
        // SAFETY: `event` keeps the raw event alive.
        let error = unsafe { Event::from_raw_borrowed(second, event.as_raw(), ()) };
        assert!(matches!(error, Err(Error::DeviceMismatch { .. })));
        Ok(())
    })
}

#[test]
fn one_library_is_one_driver_and_two_are_two() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let again = Driver::simulated(&sim)?;
    assert_eq!(&again, device.driver());
    let held = group(&again.device(0)?, 100)?;
    assert!(matches!(group(&device, 100), Err(Error::NotEnoughSms(_))));

    let (_other, stranger) = simulated("h200")?;
    let event = stranger.create_event(EventOptions::default())?;
    let context = device.primary_context()?;
    let stream = context.create_stream(StreamOptions::default())?;
    let theirs = stranger.primary_context()?.create_stream(StreamOptions::default())?;
    for result in [
        stream.record(&event),
        stream.wait(&event),
        stream.wait_for(&theirs),
        context.record(&event),
        context.wait(&event),
    ] {
        let error = result.expect_err("another driver's event");
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    }
    assert_ne!(stranger.driver(), device.driver());
    assert_eq!(stranger.resources().sm()?.free_sm_count(), 132);
    let timed = |device: &Device| device.create_event(EventOptions::default().timing(true));
    let error =
        timed(&device)?.elapsed_since(&timed(&stranger)?).expect_err("another driver's event");
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    let error = DeviceBuffer::<u32>::zeroed(&stranger, 1)?.read(&stream).expect_err("its buffer");
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    // An object of one driver is refused by the other, and returned in the error.
    let error = stranger.create_context(held).expect_err("another driver's group");
    assert!(matches!(error.reason, Error::DeviceMismatch { .. }), "{:?}", error.reason);
    assert_eq!((error.given.group.sm_count(), device.resources().sm()?.free_sm_count()), (100, 32));
    drop(device.create_context(error.given.group)?);
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    Ok(())
}

//! Work on two devices of one driver.

use std::time::Duration;

use green_ctx::sim_0_1::{Fault, Live, Sim};
use green_ctx::{
    Device, Driver, Error, Kernel, Library, StreamOptions,
    graph::{CaptureMode, RetargetError},
};

use crate::common::{Outcome, partition};
use crate::{DRIVERS, PTX, launch};

/// Runs a test on each driver with two devices. Nothing may be left behind.
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

/// A kernel that runs for a millisecond.
fn kernel(sim: &Sim, device: &Device) -> green_ctx::Result<Kernel> {
    let nanoseconds = Duration::from_millis(1).as_nanos() as u64;
    sim.register_kernel("work", move |call| call.set_duration_ns(nanoseconds));
    Library::from_ptx(device, PTX)?.kernel("work")
}

#[test]
fn a_graph_over_two_devices_is_launched_once() -> Outcome {
    for fault in [None, Some("cuEventRecord"), Some("cuStreamWaitEvent")] {
        each_pair(|sim, [first, second]| {
            let kernel = kernel(sim, first)?;
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
            // The first launch makes what stands for it in the other device's partition.
            // SAFETY: the kernel reaches no memory.
            unsafe { stream.launch_graph(&exec) }?;
            stream.synchronize()?;
            sim.clear_trace();
            let mut _hook = None;
            if let Some(call) = fault {
                _hook = Some(first.driver().on_cleanup_failure(|_| {}));
                sim.fail(Fault::on(call))?;
            }
            // SAFETY: as above.
            unsafe { stream.launch_graph(&exec) }?;
            sim.clear_faults();
            assert_eq!(sim.launches().len(), 2, "after {fault:?}");
            // The other device's partition waits for it when it is closed.
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
        let kernel = kernel(sim, first)?;
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

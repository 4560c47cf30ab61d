//! Driver contexts: created once, kept, reused, and destroyed on request.

use std::time::Duration;

use green_ctx::sim::{Fault, Live};
use green_ctx::{CUresult, StreamOptions, event::EventOptions, resource::ContextCounts};

use crate::common::{Outcome, group, partition};
use crate::{LONG, Machine, each_driver, each_failing_driver, launch};

#[track_caller]
fn check(machine: &Machine, created: u64, reused: u64, idle: usize) {
    let ContextCounts { created: made, reused: again, idle: kept, .. } =
        machine.device.context_counts();
    assert_eq!((made, again, kept), (created, reused, idle));
}

#[test]
fn contexts_of_the_same_sms_are_used_again() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        check(machine, 0, 0, 0);
        let first = partition(device, 16)?;
        let raw = first.as_raw_green();
        check(machine, 1, 0, 0);
        drop(first);
        check(machine, 1, 0, 1);
        for round in 1..5 {
            let context = partition(device, 16)?;
            assert_eq!((context.as_raw_green(), context.sm_count()?), (raw, 16));
            check(machine, 1, round, 0);
            // After a close the context is idle too, as after a drop.
            drop(context.close()?);
            check(machine, 1, round, 1);
        }
        // While those SMs are held, a new partition needs another context.
        let held = group(device, 16)?;
        let other = partition(device, 16)?;
        assert_ne!(other.as_raw_green(), raw);
        check(machine, 2, 4, 1);
        drop((held, other));
        check(machine, 2, 4, 2);
        assert_eq!((device.release_idle(), sim.live().green_contexts), (2, 0));
        check(machine, 2, 4, 0);
        assert_eq!(device.release_idle(), 0);
        drop(partition(device, 16)?);
        check(machine, 3, 4, 1);
        Ok(())
    })
}

#[test]
fn no_more_are_kept_than_allowed() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let partitions =
            || (0..4).map(|_| partition(device, 8)).collect::<green_ctx::Result<Vec<_>>>();
        device.set_idle_limit(2);
        let all = partitions()?;
        let last = all[3].as_raw_green();
        drop(all);
        assert_eq!((device.context_counts().idle, sim.live().green_contexts), (2, 2));
        // The oldest contexts are destroyed first.
        device.set_idle_limit(1);
        assert_eq!(device.context_counts().idle, 1);
        let all = partitions()?;
        assert!(all.iter().any(|context| context.as_raw_green() == last));
        drop(all);
        device.set_idle_limit(0);
        assert_eq!(sim.live(), Live::default());
        drop(partition(device, 8)?);
        assert_eq!(sim.live(), Live::default());
        Ok(())
    })
}

/// Reusing a context does not wait on the host: new work waits on the device for the work that still runs.
#[test]
fn a_context_that_is_used_again_waits_for_what_was_there() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let context = partition(device, 8)?;
        let raw = context.as_raw_green();
        launch(&context.create_stream(StreamOptions::default())?, &kernel)?;
        drop(context);
        assert_eq!(machine.free()?, 132);
        let again = partition(device, 8)?;
        assert_eq!(again.as_raw_green(), raw);
        let stream = again.create_stream(StreamOptions::default())?;
        assert!(!stream.is_idle()?, "the stream does not wait");
        machine.kernel(Duration::from_micros(1))?;
        launch(&stream, &kernel)?;
        let launches = sim.launches();
        assert!(launches[0].happens_before(&launches[1]) && !launches[0].overlaps(&launches[1]));
        stream.synchronize()?;
        assert!(again.create_stream(StreamOptions::default())?.is_idle()?);
        Ok(())
    })
}

/// A context is destroyed if the state of its last work cannot be determined, whatever call failed.
#[test]
fn a_context_in_doubt_is_not_kept() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let reported = machine.hook();
        let failures = ["cuGreenCtxRecordEvent", "cuEventCreate", "cuEventQuery"];
        for (number, function) in (1..).zip(failures) {
            let context = partition(device, 8)?;
            sim.fail(Fault::on(function).with(CUresult::CUDA_ERROR_UNKNOWN))?;
            drop(context);
            check(machine, number, 0, 0);
            assert_eq!((sim.live(), machine.free()?), (Live::default(), 132), "{function}");
            assert!(
                reported
                    .lock()
                    .expect("no panic")
                    .pop()
                    .is_some_and(|text| text.starts_with(function))
            );
        }
        Ok(())
    })
}

/// After a device fault no context is reused, including contexts that were already idle.
#[test]
fn a_failed_device_recycles_nothing() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        machine.hook();
        drop(partition(device, 16)?);
        check(machine, 1, 0, 1);
        let event = device.create_event(EventOptions::default())?;
        sim.fail(Fault::on("cuEventQuery").with(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS))?;
        assert!(event.is_complete().expect_err("it fails").is_sticky());
        // The simulator only reported the fault, so creating a new context succeeds.
        drop(partition(device, 16)?);
        check(machine, 2, 0, 0);
        drop(partition(device, 16)?.close()?);
        check(machine, 3, 0, 0);
        assert_eq!((sim.live().green_contexts, machine.free()?), (0, 132));
        Ok(())
    })
}

//! Closing partitions: a refused close leaves the partition unchanged, and a successful one returns its SMs.

use std::time::Duration;

use green_ctx::{
    Error, Partition, StreamOptions, context::CloseReason, error::Refused, graph::CaptureMode,
    sim::Fault,
};

use crate::common::{Outcome, group, partition};
use crate::{Machine, each_composing_driver, each_driver, launch};

const WORK: Duration = Duration::from_millis(5);

fn make(machine: &Machine) -> green_ctx::Result<Partition> {
    Ok(machine.device.create_partition(group(&machine.device, 16)?)?)
}

/// Checks that a close is refused, and returns the partition with the reason.
#[track_caller]
fn refused(partition: Partition) -> (Partition, CloseReason) {
    let Refused { given: partition, reason } = partition.close().expect_err("in use");
    (partition, reason)
}

#[test]
fn a_refused_close_keeps_the_stream() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(WORK)?;
        let partition = make(machine)?;
        let (stream, context) = (partition.stream().as_raw(), partition.context().as_raw());
        let weak = partition.context().weak();
        launch(partition.stream(), &kernel)?;
        let further = partition.create_stream(StreamOptions::default())?;

        let (partition, reason) = refused(partition);
        assert!(matches!(reason, CloseReason::Shared { streams: Some(1) }), "{reason}");
        drop(further);
        let clone = partition.clone();
        let (partition, reason) = refused(partition);
        assert!(matches!(reason, CloseReason::Shared { streams: Some(0) }), "{reason}");
        drop(clone);
        // What other libraries hold, such as a stream of cudarc.
        let clone = partition.stream().clone();
        let (partition, reason) = refused(partition);
        assert!(
            reason.to_string().contains("a clone of it or of its partition's stream,"),
            "{reason}"
        );
        drop(clone);
        let current = partition.context().make_current()?;
        let (partition, _) = refused(partition);
        drop(current);
        machine.sim.fail(Fault::on("cuGreenCtxRecordEvent"))?;
        let (partition, reason) = refused(partition);
        assert!(matches!(reason, CloseReason::Driver(Error::Driver { .. })), "{reason}");

        // The stream is the same, and new work runs after the work submitted before.
        assert_eq!(partition.stream().as_raw(), stream);
        assert_eq!(partition.context().as_raw(), context);
        assert!(weak.is(partition.context()));
        launch(partition.stream(), &kernel)?;
        let launches = machine.sim.launches();
        assert!(launches[0].happens_before(&launches[1]), "{launches:?}");
        let found = machine.driver().find_stream(stream);
        assert_eq!(found.as_ref(), Some(partition.stream()));
        drop(found);
        assert!(machine.driver().find_context(context).is_some_and(|found| weak.is(&found)));
        assert_eq!(partition.close()?.sm_count(), 16);
        Ok(())
    })
}

/// A context stays the same object after a failed close.
#[test]
fn a_context_that_was_not_closed_is_recognised() -> Outcome {
    each_driver(|machine| {
        let context = partition(&machine.device, 16)?;
        let weak = context.weak();
        machine.sim.fail(Fault::on("cuGreenCtxRecordEvent"))?;
        let context = context.close().expect_err("the driver fails").given;
        assert!(weak.is(&context));
        assert!(machine.driver().find_context(context.as_raw()).is_some_and(|it| weak.is(&it)));

        let primary = machine.device.primary_context()?;
        let weak_primary = primary.weak();
        drop(context);
        machine.device.release_idle();
        machine.sim.fail(Fault::on("cuDevicePrimaryCtxRelease"))?;
        let primary = primary.close().expect_err("the driver fails").given;
        assert!(weak_primary.is(&primary));
        assert_eq!(machine.device.primary_context()?, primary);
        primary.close()?;
        assert_eq!(machine.sim.live().primary_retains, 0);
        Ok(())
    })
}

/// A close waits for the partition's work, which would invalidate the capture. So it is refused, and the
/// capture continues.
#[test]
fn a_partition_whose_stream_is_captured_is_not_closed() -> Outcome {
    each_composing_driver(|machine| {
        let kernel = machine.kernel(WORK)?;
        let other = partition(&machine.device, 8)?;
        let origin = other.create_stream(StreamOptions::default())?;
        let mut partition = Some(make(machine)?);
        let graph = origin.capture(CaptureMode::Relaxed, || -> Outcome {
            let joined = partition.take().ok_or("no partition")?;
            joined.stream().wait_for(&origin)?;
            launch(joined.stream(), &kernel)?;
            let (joined, reason) = refused(joined);
            assert!(matches!(reason, CloseReason::Capturing), "{reason}");
            origin.wait_for(joined.stream())?;
            partition = Some(joined);
            Ok(())
        })?;
        assert_eq!(graph.node_count()?, 1);
        let partition = partition.ok_or("the capture did not return it")?;
        let (partition, reason) = refused(partition);
        assert!(
            matches!(reason, CloseReason::Shared { .. }),
            "the graph has its context: {reason}"
        );
        drop(graph);
        partition.close()?;
        Ok(())
    })
}

#[test]
fn a_partition_that_is_not_made_gives_its_group_back() -> Outcome {
    each_driver(|machine| {
        for call in ["cuGreenCtxCreate", "cuGreenCtxStreamCreate", "cuStreamCreateWithPriority"] {
            let group = group(&machine.device, 16)?;
            machine.sim.fail(Fault::on(call))?;
            let made = machine.device.create_partition(group);
            machine.sim.clear_faults();
            let Err(error) = made else { continue };
            assert!(error.to_string().starts_with(&format!("{call} failed: ")), "{error}");
            let provision = error.given.ok_or("the error has no group")?;
            assert_eq!((provision.group.sm_count(), machine.free()?), (16, 116));
            drop(machine.device.create_partition(provision)?);
        }
        Ok(())
    })
}

//! Fences that overlapping groups leave for the next owner of the SMs.

use green_ctx::sim::Fault;
use green_ctx::{PlanRequest, PlanSet, Share, SplitRequest, StreamOptions};

use crate::common::{Outcome, simulated};
use crate::work::{assert_no_conflict, conflict, launch, old_and_new};

/// A context that shared its SMs with others is reused for a group that owns them.
#[test]
fn what_an_overlapping_context_left_is_waited_for() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let [old, new] = old_and_new(&sim, &device)?;
    let request = || SplitRequest::new().group("a", 16).group("b", 16);
    let shared = device.resources().sm()?.split(request().overlapping(true))?;
    for group in shared.groups {
        launch(&device.create_context(group)?.create_stream(StreamOptions::default())?, &old)?;
    }
    let made = device.context_counts().created;
    // From here on the groups own their SMs.
    for group in device.resources().sm()?.split(request())?.groups {
        launch(&device.create_context(group)?.create_stream(StreamOptions::default())?, &new)?;
    }
    assert_eq!(device.context_counts().created, made, "the driver's contexts are not reused");
    let launches = sim.launches();
    assert_eq!(launches.len(), 4);
    let conflicts = conflict(&launches);
    assert!(conflicts.is_none(), "{conflicts:?}");
    Ok(())
}

/// If the last work of a sharer cannot be recorded, its SMs are quarantined: they can be shared, but no floor
/// may get them.
#[test]
fn what_sharers_left_in_quarantine_can_only_be_shared() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let _hook = device.driver().on_cleanup_failure(|_| {});
    let [old, new] = old_and_new(&sim, &device)?;
    let group = device.resources().sm()?.split([Share::from(..=32)])?.groups.remove(0);
    let parts = SplitRequest::new().group("x", ..=16).group("y", ..=16);
    let set = PlanSet::new(group, PlanRequest::new("one", parts))?;
    launch(set.active().partitions()[0].stream(), &old)?;
    // The first context's record succeeds. Every later record and every synchronisation fails, so the state of
    // the second context's work is unknown.
    for nth in 2..30 {
        sim.fail(Fault::on("cuGreenCtxRecordEvent").nth(nth))?;
    }
    for nth in 1..9 {
        sim.fail(Fault::on("cuCtxSynchronize").nth(nth))?;
    }
    drop(set);
    let sms = device.resources().sm()?;
    let error = sms.split([132]).expect_err("32 SMs are in quarantine").to_string();
    assert!(error.contains("32 SMs wait for work that could not be recorded"), "{error}");
    assert_eq!(device.partition([Share::from(..)])?[0].sm_count(), 132);
    sim.clear_faults();
    // A new floor waits for everything that can be recorded now.
    launch(device.partition([132])?[0].stream(), &new)?;
    assert_no_conflict(&sim, 2);
    Ok(())
}

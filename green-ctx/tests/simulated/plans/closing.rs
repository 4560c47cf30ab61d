//! Plan sets that cannot be created, outlive their handles, or are closed.

use std::sync::Arc;

use green_ctx::sim::{Fault, Live};
use green_ctx::{
    PlanSet, StreamOptions,
    graph::{CaptureMode, GraphCache},
    plan::SwitchOptions,
    resource::SmGroup,
};

use super::{set, stream, work};
use crate::common::plans::plan;
use crate::common::{Outcome, simulated};
use crate::work::launch;

#[test]
fn a_set_that_is_not_made_gives_its_group_back() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let group = |count| -> Result<SmGroup, Box<dyn std::error::Error>> {
        Ok(device.resources().sm()?.split([count])?.groups.remove(0))
    };
    let error = PlanSet::new(group(64)?, plan("much", 100)).expect_err("too many SMs");
    assert!(error.reason.to_string().contains("does not fit"), "{}", error.reason);
    let group = error.given.ok_or("nothing ran")?;
    // Creating the second context fails after the first one was created.
    sim.fail(Fault::on("cuGreenCtxCreate").nth(2))?;
    let error = PlanSet::new(group, plan("day", 16)).expect_err("the driver fails");
    let group = error.given.ok_or("nothing ran")?;
    assert_eq!((group.sm_count(), device.resources().sm()?.free_sm_count()), (64, 68));
    sim.clear_faults();
    let set = PlanSet::new(group, plan("day", 16))?;
    assert_eq!(set.sm_count(), 64);
    drop(set);
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    Ok(())
}

/// The SMs of a set are not returned while one of its partitions is in use.
#[test]
fn a_partition_outlives_its_set() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let stream = stream(&set, "decode")?;
    drop(set);
    assert_eq!(device.resources().sm()?.free_sm_count(), 0);
    assert_eq!(stream.resources().sm()?.sm_count(), 16);
    drop(stream);
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    Ok(())
}

#[test]
fn a_set_that_is_closed_gives_its_group_back() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let kernel = work(&sim, &device, "old")?;
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    launch(set.active()["decode"].stream(), &kernel)?;
    set.switch(&night, SwitchOptions::default().fence(false))?;
    launch(night["decode"].stream(), &kernel)?;
    set.prepare(plan("dusk", 32))?;
    drop(night);
    let group = set.close()?;
    assert_eq!((group.name(), group.sm_count(), group.floor()), ("all", 132, 132));
    assert_eq!(sim.live().streams, 0);
    // The work is done, so the SMs can be used immediately.
    let (now, group) = (sim.launches(), PlanSet::new(group, plan("again", 48))?);
    launch(group.active()["decode"].stream(), &kernel)?;
    let next = sim.launches().pop().ok_or("a launch")?;
    assert!(now.iter().all(|former| former.end_ns <= next.start_ns));
    drop(group);
    drop((kernel, device));
    Ok(())
}

#[test]
fn a_set_that_is_used_is_not_closed_and_goes_on() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let kernel = work(&sim, &device, "old")?;
    let mut set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    set.prepare(plan("night", 64))?;
    let stream = set.active()["decode"].stream().as_raw();
    let primary = device.primary_context()?.create_stream(StreamOptions::default())?;
    let moved = primary.capture(CaptureMode::default(), || launch(&primary, &kernel))?;
    let cache = GraphCache::new();
    type Keeper = Box<dyn std::any::Any>;
    type Keep<'a> = Box<dyn Fn(&PlanSet) -> Result<Keeper, Box<dyn std::error::Error>> + 'a>;
    let keepers: [(&str, Keep<'_>); 7] = [
        ("another handle of the set is alive", Box::new(|set| Ok(Box::new(set.clone())))),
        ("a handle of plan night is alive", Box::new(|set| Ok(Box::new(set.plan("night")?)))),
        ("a handle of plan day is alive", Box::new(|set| Ok(Box::new(Arc::clone(&set.active()))))),
        ("a handle of plan day is alive", Box::new(|set| Ok(Box::new(set.active())))),
        (
            "a handle of partition decode of plan day is alive",
            Box::new(|set| Ok(Box::new(set.active()["decode"].clone()))),
        ),
        (
            "partition decode cannot be closed",
            Box::new(|set| Ok(Box::new(set.active()["decode"].stream().clone()))),
        ),
        (
            "partition decode cannot be closed",
            Box::new(|set| {
                let night = set.plan("night")?;
                cache.get(&moved, night["decode"].context())?;
                Ok(Box::new(()))
            }),
        ),
    ];
    for (expected, keep) in keepers {
        let kept = keep(&set)?;
        let error = set.close().expect_err(expected);
        assert_eq!(error.reason.to_string(), expected);
        set = error.given;
        drop(kept);
        cache.clear();
        assert_eq!(set.active()["decode"].stream().as_raw(), stream);
        assert!(set.device().driver().find_stream(stream).is_some());
        let (day, night) = (set.plan("day")?, set.plan("night")?);
        set.switch(&night, SwitchOptions::default())?;
        set.switch(&day, SwitchOptions::default())?;
    }
    // A cache holds a context of a retired plan.
    let night = set.plan("night")?;
    cache.get(&moved, night["decode"].context())?;
    drop(night);
    set.retire("night")?;
    let error = set.close().expect_err("the cache holds a context");
    assert!(error.reason.to_string().contains("a context of an earlier plan"), "{}", error.reason);
    cache.clear();
    assert_eq!(error.given.close()?.sm_count(), 132);
    Ok(())
}

/// A retired plan's partition has the context of another plan, which is therefore in use.
#[test]
fn a_set_is_not_closed_while_a_partition_of_a_retired_plan_is_held() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
    let other = set.prepare(plan("other", 16))?;
    let held = set.active()["decode"].clone();
    set.switch(&other, SwitchOptions::default())?;
    set.retire("day")?;
    drop(other);
    let error = set.close().expect_err("a partition is held");
    let text = error.reason.to_string();
    assert_eq!(text, "a partition of a retired plan uses the context of decode");
    assert_eq!(
        device.driver().find_context(held.context().as_raw()).as_ref(),
        Some(held.context())
    );
    drop(held);
    assert_eq!(error.given.close()?.sm_count(), 132);
    Ok(())
}

#[test]
fn a_set_is_not_closed_where_the_driver_fails() -> Outcome {
    let calls = ["cuCtxSynchronize", "cuCtxGetCurrent", "cuStreamIsCapturing"];
    for call in calls {
        for nth in 1..=5 {
            let (sim, device) = simulated("h200")?;
            let set = PlanSet::new(device.rest("all")?, plan("day", 16))?;
            set.prepare(plan("night", 64))?;
            sim.fail(Fault::on(call).nth(nth))?;
            let closed = set.close();
            sim.clear_faults();
            let group = match closed {
                Ok(group) => group,
                Err(error) => {
                    let set = error.given;
                    set.switch(&set.plan("night")?, SwitchOptions::default())?;
                    set.close()?
                }
            };
            assert_eq!(group.sm_count(), 132, "{call} {nth}");
            drop(group);
            device.release_idle();
            assert_eq!(
                (device.resources().sm()?.free_sm_count(), sim.live()),
                (132, Live::default())
            );
        }
    }
    Ok(())
}

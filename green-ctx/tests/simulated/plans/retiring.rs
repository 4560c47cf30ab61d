//! Plans that are retired, and what the set remembers of them.

use std::sync::Arc;

use green_ctx::{
    Kernel, PlanSet,
    graph::{CaptureMode, GraphCache},
    plan::SwitchOptions,
};

use super::{set, work};
use crate::common::plans::plan;
use crate::common::{Outcome, simulated};
use crate::work::launch;

/// Plans that are prepared, left without a fence and retired, again and again.
fn churn(set: &PlanSet, kernel: &Kernel, rounds: usize) -> Outcome {
    let day = set.plan("day")?;
    for _ in 0..rounds {
        let night = set.prepare(plan("night", 64))?;
        set.switch(&night, SwitchOptions::default().fence(false))?;
        launch(night["decode"].stream(), kernel)?;
        set.switch(&day, SwitchOptions::default().fence(false))?;
        set.retire("night")?;
    }
    Ok(())
}

/// What a switch without a fence leaves is remembered until it is done, not until the next fence.
#[test]
fn retired_plans_are_forgotten_without_a_fence() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let kernel = work(&sim, &device, "short")?;
    let night = set.prepare(plan("night", 64))?;
    let retired = Arc::downgrade(&night);
    let day = set.plan("day")?;
    set.switch(&night, SwitchOptions::default().fence(false))?;
    set.switch(&day, SwitchOptions::default().fence(false))?;
    drop(night);
    set.retire("night")?;
    assert!(retired.upgrade().is_none(), "the set has the plan that it has forgotten");

    // However often: a round makes as many calls, and so does the switch that fences in the end.
    let calls_of = |work: &dyn Fn() -> Outcome| -> Result<u64, Box<dyn std::error::Error>> {
        sim.clear_calls();
        work()?;
        Ok(sim.calls().values().sum())
    };
    churn(&set, &kernel, 50)?;
    let few = calls_of(&|| churn(&set, &kernel, 1))?;
    churn(&set, &kernel, 200)?;
    let many = calls_of(&|| churn(&set, &kernel, 1))?;
    assert!(many <= few + few / 4, "{few} calls a round, then {many}");
    let dusk = set.prepare(plan("dusk", 32))?;
    let fenced = calls_of(&|| Ok(set.switch(&dusk, SwitchOptions::default())?))?;
    assert!(fenced < 40, "the next switch with a fence made {fenced} calls");
    Ok(())
}

/// Work that goes on in a retired plan is waited for by whoever gets its floor, fence or not.
#[test]
fn work_of_a_plan_that_was_left_unfenced_and_retired_is_fenced() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let kernel = work(&sim, &device, "old")?;
    let (night, day) = (set.prepare(plan("night", 64))?, set.plan("day")?);
    set.switch(&night, SwitchOptions::default().fence(false))?;
    launch(night["decode"].stream(), &kernel)?;
    set.switch(&day, SwitchOptions::default().fence(false))?;
    drop(night);
    set.retire("night")?;
    let dusk = set.prepare(plan("dusk", 32))?;
    set.switch(&dusk, SwitchOptions::default())?;
    launch(dusk["decode"].stream(), &kernel)?;
    let launches = sim.launches();
    assert!(launches[0].happens_before(&launches[1]), "the floor of dusk was night's");
    Ok(())
}

/// A cache keeps the contexts of retired plans: the next plan of the same SMs has the same one.
#[test]
fn a_graph_cache_and_retired_plans_need_few_contexts() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let kernel = work(&sim, &device, "step")?;
    let day = set.plan("day")?;
    let stream = day["decode"].stream();
    let graph = stream.capture(CaptureMode::default(), || launch(stream, &kernel))?;
    let cache = GraphCache::new();
    for _ in 0..50 {
        let night = set.prepare(plan("night", 64))?;
        set.switch(&night, SwitchOptions::default())?;
        let exec = cache.get(&graph, night["decode"].context())?;
        // SAFETY: the kernel reaches no memory.
        unsafe { night["decode"].stream().launch_graph(&exec) }?;
        assert_eq!(night["decode"].context().partition_name().as_deref(), Some("decode"));
        set.switch(&day, SwitchOptions::default())?;
        set.retire("night")?;
    }
    assert_eq!(device.context_counts().created, 4);
    assert_eq!(cache.len(), 1);
    Ok(())
}

//! Retired plans, and what the set remembers about them.

use std::sync::Arc;

use green_ctx::{
    Kernel, PlanRequest, PlanSet, SplitRequest,
    graph::{CaptureMode, GraphCache},
    plan::SwitchOptions,
};

use super::{set, work};
use crate::common::plans::plan;
use crate::common::{Outcome, simulated};
use crate::work::launch;

/// Prepares a plan, leaves it without a fence, and retires it, `rounds` times.
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

/// A switch without a fence leaves work to wait for. It is remembered until it is done, even if no fenced
/// switch follows.
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
    assert!(retired.upgrade().is_none(), "the set still holds the retired plan");

    // The number of calls does not grow with the number of rounds, for a round and for the fenced switch at the end.
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

/// The next owner of a floor waits for the running work of a retired plan, even if no switch fenced it.
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
    assert!(launches[0].happens_before(&launches[1]), "dusk did not wait for night's work");
    Ok(())
}

/// A cache holds contexts of retired plans. The next plan on the same SMs gets the same context.
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
        // SAFETY: the graph's kernel touches no memory.
        unsafe { night["decode"].stream().launch_graph(&exec) }?;
        assert_eq!(night["decode"].context().partition_name().as_deref(), Some("decode"));
        set.switch(&day, SwitchOptions::default())?;
        set.retire("night")?;
    }
    assert_eq!(device.context_counts().created, 4);
    assert_eq!(cache.len(), 1);
    Ok(())
}

/// A program still has the context of two retired plans, which had given it different names.
#[test]
fn a_context_of_retired_plans_gets_the_name_of_the_next_plan() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let request = |plan, name| PlanRequest::new(plan, SplitRequest::new().group(name, 16));
    let set = set(&device, plan("other", 64))?;
    let day = set.prepare(request("day", "train"))?;
    let night = set.prepare(request("night", "chat"))?;
    set.switch(&day, SwitchOptions::default())?;
    set.switch(&night, SwitchOptions::default())?;
    let context = night["chat"].context().clone();
    set.switch(&set.plan("other")?, SwitchOptions::default())?;
    set.retire("day")?;
    set.retire("night")?;
    drop((day, night));
    assert_eq!(context.partition_name().as_deref(), Some("chat"));
    let dawn = set.prepare(request("dawn", "train"))?;
    assert_eq!(dawn["train"].context(), &context);
    set.switch(&dawn, SwitchOptions::default())?;
    assert_eq!(context.partition_name().as_deref(), Some("train"));
    Ok(())
}

//! Fences of switches between plans with shares: the waits that a switch adds, and no more.

use green_ctx::sim::Sim;
use green_ctx::{Plan, PlanSet, Share, plan::SwitchOptions};

use std::sync::Arc;

use crate::LONG;
use crate::common::plans::{request, set};
use crate::common::{Outcome, simulated};
use crate::work::{SHORT, kernel, launch};

/// Returns the number of event records and of waits that a switch makes.
fn cost(
    sim: &Sim,
    set: &PlanSet,
    to: &Arc<Plan>,
) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    sim.clear_calls();
    set.switch(to, SwitchOptions::default())?;
    let calls = sim.calls();
    let count = |names: [&str; 2]| names.iter().filter_map(|name| calls.get(*name)).sum();
    let records = count(["cuEventRecord", "cuGreenCtxRecordEvent"]);
    Ok((records, count(["cuStreamWaitEvent", "cuGreenCtxWaitEvent"])))
}

#[test]
fn a_switch_fences_floors_and_names_and_nothing_else() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (decode, prefill, other) = ("decode", "prefill", "other");
    let (set, plans) = set(
        &device,
        [
            ("day", request(&[(decode, Share::from(32..)), (prefill, Share::from(..=100))])),
            ("night", request(&[(decode, Share::from(64..)), (prefill, Share::from(..=68))])),
            ("alone", request(&[(other, Share::from(..=100))])),
        ],
    )?;
    let long = kernel(&sim, &device, "long", LONG)?;
    let busy = |plan: &Arc<Plan>| -> Outcome {
        for part in plan.partitions() {
            launch(part.stream(), &long)?;
        }
        Ok(())
    };
    // Decode's ceiling is all units in both plans. Its floor grows over SMs that prefill used, and prefill
    // waits for its own earlier work.
    busy(&plans[0])?;
    assert_eq!(cost(&sim, &set, &plans[1])?, (1, 2));
    // In the other direction no floor grows over used SMs. Only prefill waits, for its own earlier work.
    busy(&plans[1])?;
    assert_eq!(cost(&sim, &set, &plans[0])?, (1, 1));
    // A partition without a floor waits for nothing. The previous owner's work is recorded once.
    assert_eq!(cost(&sim, &set, &plans[2])?, (1, 0));
    Ok(())
}

#[test]
fn a_name_that_moves_waits_for_itself() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (x, y) = ("x", "y");
    let (set, plans) =
        set(&device, [("a", request(&[(x, 16), (y, 16)])), ("b", request(&[(y, 16), (x, 16)]))])?;
    assert_eq!(plans[0].partitions()[x].context(), plans[1].partitions()[y].context());
    let long = kernel(&sim, &device, "long", LONG)?;
    let short = kernel(&sim, &device, "short", SHORT)?;
    launch(plans[0].partitions()[x].stream(), &long)?;
    assert_eq!(cost(&sim, &set, &plans[1])?, (2, 2));
    launch(plans[1].partitions()[x].stream(), &short)?;
    let launches = sim.launches();
    assert!(launches[0].happens_before(&launches[1]), "x ran in two contexts at the same time");
    Ok(())
}

/// Partitions of one plan on the same SMs have different contexts, and keep them in the next plan.
#[test]
fn equal_shares_of_one_plan_have_contexts_of_their_own() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let pair = || request(&[("a", Share::from(..)), ("b", Share::from(..))]);
    let (_set, plans) = set(&device, [("one", pair()), ("other", pair())])?;
    let contexts = |plan: &Arc<Plan>| -> Vec<_> {
        plan.partitions().iter().map(|part| part.context().clone()).collect()
    };
    let (first, second) = (contexts(&plans[0]), contexts(&plans[1]));
    assert_ne!(first[0], first[1]);
    assert_eq!(first, second);
    assert_eq!(plans[0].partitions()["a"].shared_with()[0].to_string(), "b (132 SMs)");
    Ok(())
}

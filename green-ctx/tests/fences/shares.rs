//! What switches between plans with shares fence, and what they leave alone.

use green_ctx::sim_0_1::Sim;
use green_ctx::{Device, Plan, PlanRequest, PlanSet, Share, SplitRequest, plan::SwitchOptions};

use std::sync::Arc;

use crate::common::{Outcome, simulated};
use crate::{LONG, SHORT, launch, work};

fn request(shares: &[(&'static str, Share)]) -> SplitRequest {
    shares.iter().fold(SplitRequest::new(), |request, (name, share)| request.group(*name, *share))
}

/// A set of these plans, named by their number.
fn set(
    device: &Device,
    plans: &[&[(&'static str, Share)]],
) -> Result<(PlanSet, Vec<Arc<Plan>>), Box<dyn std::error::Error>> {
    let all = device.resources().sm()?.split(SplitRequest::new().rest("all"))?;
    let plan = |index: usize| PlanRequest::new(index.to_string(), request(plans[index]));
    let set = PlanSet::new(all.remainder.ok_or("all SMs are free")?, plan(0))?;
    for index in 1..plans.len() {
        set.prepare(plan(index))?;
    }
    let plans = set.plans();
    Ok((set, plans))
}

/// Records and waits of a switch.
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
        &[
            &[(decode, Share::from(32..)), (prefill, Share::from(..=100))],
            &[(decode, Share::from(64..)), (prefill, Share::from(..=68))],
            &[(other, Share::from(..=100))],
        ],
    )?;
    let long = work(&sim, &device, "long", LONG)?;
    let busy = |plan: &Arc<Plan>| -> Outcome {
        for part in plan.partitions() {
            launch(part.stream(), &long)?;
        }
        Ok(())
    };
    // Decode has all units in both plans: its floor grows over what prefill leaves, and prefill follows
    // its own name.
    busy(&plans[0])?;
    assert_eq!(cost(&sim, &set, &plans[1])?, (1, 2));
    // Back, nobody's floor comes to where anybody was. Only the name does.
    busy(&plans[1])?;
    assert_eq!(cost(&sim, &set, &plans[0])?, (1, 1));
    // Who shares waits for nobody; whoever leaves is recorded once.
    assert_eq!(cost(&sim, &set, &plans[2])?, (1, 0));
    Ok(())
}

#[test]
fn a_name_that_moves_waits_for_itself() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (x, y) = ("x", "y");
    let (set, plans) = set(
        &device,
        &[
            &[(x, Share::from(16)), (y, Share::from(16))],
            &[(y, Share::from(16)), (x, Share::from(16))],
        ],
    )?;
    assert_eq!(plans[0].partitions()[x].context(), plans[1].partitions()[y].context());
    let (long, short) = (work(&sim, &device, "long", LONG)?, work(&sim, &device, "short", SHORT)?);
    launch(plans[0].partitions()[x].stream(), &long)?;
    assert_eq!(cost(&sim, &set, &plans[1])?, (2, 2));
    launch(plans[1].partitions()[x].stream(), &short)?;
    let launches = sim.launches();
    assert!(launches[0].happens_before(&launches[1]), "x ran in two contexts at once");
    Ok(())
}

/// Partitions of one plan that have the same SMs have a context each, and go on in the next plan.
#[test]
fn equal_shares_of_one_plan_have_contexts_of_their_own() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let pair: &[(&'static str, Share)] = &[("a", Share::from(..)), ("b", Share::from(..))];
    let (_set, plans) = set(&device, &[pair, pair])?;
    let contexts = |plan: &Arc<Plan>| -> Vec<_> {
        plan.partitions().iter().map(|part| part.context().clone()).collect()
    };
    let (first, second) = (contexts(&plans[0]), contexts(&plans[1]));
    assert_ne!(first[0], first[1]);
    assert_eq!(first, second);
    assert_eq!(plans[0].partitions()["a"].shared_with()[0].to_string(), "b (132 SMs)");
    Ok(())
}

//! Plans: preparing, switching and retiring them, the order of work, and the state after failures.

mod closing;
mod draining;
mod retiring;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use green_ctx::sim::{Live, Sim};
use green_ctx::{
    Device, Error, Kernel, Plan, PlanRequest, PlanSet, SplitRequest, Stream, StreamOptions,
    error::ErrorKind,
    graph::CaptureMode,
    plan::{PlanError, SwitchOptions},
    resource::Granularity,
};

use crate::common::plans::plan;
use crate::common::{Outcome, raw, simulated};
use crate::work::{self, launch};

/// Loads a kernel that runs for a millisecond.
fn work(sim: &Sim, device: &Device, name: &str) -> green_ctx::Result<Kernel> {
    work::kernel(sim, device, name, Duration::from_millis(1))
}

/// Creates a set of all SMs of a device with its first plan.
fn set(device: &Device, first: PlanRequest) -> Result<PlanSet, Box<dyn std::error::Error>> {
    Ok(PlanSet::new(device.rest("all")?, first)?)
}

fn counts(plan: &Plan) -> Vec<(&str, u32)> {
    plan.partitions().iter().map(|part| (part.name(), part.sm_count())).collect()
}

/// Returns the stream of a partition of the active plan.
fn stream(set: &PlanSet, name: &str) -> Result<Stream, Box<dyn std::error::Error>> {
    Ok(set.active().partition(name).ok_or("there is no such partition")?.stream().clone())
}

#[test]
fn plans_divide_the_same_sms_in_their_own_ways() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    assert_eq!(counts(&set.active()), [("decode", 16), ("prefill", 116)]);
    assert_eq!(counts(&night), [("decode", 64), ("prefill", 68)]);
    // The set holds all SMs, so no other request gets any.
    assert_eq!((set.sm_count(), device.resources().sm()?.free_sm_count()), (132, 0));
    let error = device.resources().sm()?.split([8]).expect_err("the set holds them");
    assert!(error.to_string().ends_with("held by all (132 SMs)"), "{error}");

    set.switch(&night, SwitchOptions::default())?;
    assert_eq!(set.active().name(), "night");
    let names: Vec<_> = set.plans().iter().map(|plan| plan.name().to_owned()).collect();
    assert_eq!(names, ["day", "night"]);
    drop((night, set));
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    drop(device);
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn a_switch_makes_nothing_and_waits_for_nothing_on_the_host() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let plans = [set.plan("day")?, set.prepare(plan("night", 64))?];
    sim.clear_calls();
    for round in 0..100 {
        set.switch(&plans[(round + 1) % 2], SwitchOptions::default())?;
    }
    let calls = sim.calls();
    let made =
        ["cuGreenCtxCreate", "cuEventCreate", "cuGreenCtxStreamCreate", "cuEventSynchronize"];
    for function in made {
        assert_eq!(calls.get(function), None, "{function}");
    }
    // One record per partition and switch: each partition both gives up and takes over SMs.
    assert_eq!(calls.get("cuEventRecord"), Some(&200));
    sim.clear_calls();
    set.switch(&plans[1], SwitchOptions::default().fence(false))?;
    set.switch(&plans[1], SwitchOptions::default())?;
    assert_eq!(sim.calls().values().sum::<u64>(), 0, "{:?}", sim.calls());
    Ok(())
}

#[test]
fn new_work_waits_for_the_old_work_on_its_sms() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    let (old, new, late) =
        (work(&sim, &device, "old")?, work(&sim, &device, "new")?, work(&sim, &device, "late")?);
    launch(&stream(&set, "prefill")?, &old)?;
    set.switch(&night, SwitchOptions::default())?;
    launch(&stream(&set, "decode")?, &new)?;
    // A stream that is created after the switch waits too.
    let decode = night.partition("decode").ok_or("decode")?.clone();
    launch(&decode.create_stream(StreamOptions::default())?, &late)?;
    let launches = sim.launches();
    assert_eq!(launches.len(), 3);
    assert!(launches[0].happens_before(&launches[1]) && launches[0].happens_before(&launches[2]));
    assert!(!launches[0].overlaps(&launches[1]) && !launches[0].overlaps(&launches[2]));

    // Without fences, no order exists.
    launch(&decode.stream().clone(), &old)?;
    set.switch(&set.plan("day")?, SwitchOptions::default().fence(false))?;
    launch(&stream(&set, "prefill")?, &new)?;
    let launches = sim.launches();
    assert!(!launches[3].happens_before(&launches[4]));
    assert!(launches[4].start_ns < launches[3].end_ns, "the launch waited without a fence");
    Ok(())
}

/// Old work is still fenced after a plan in between that does not use its SMs.
#[test]
fn work_on_sms_that_a_plan_left_alone_is_waited_for() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("wide", 16))?;
    let narrow =
        set.prepare(PlanRequest::new("narrow", SplitRequest::new().group("decode", 16)))?;
    let other = set.prepare(plan("other", 64))?;
    let (old, new) = (work(&sim, &device, "old")?, work(&sim, &device, "new")?);
    launch(&stream(&set, "prefill")?, &old)?;
    set.switch(&narrow, SwitchOptions::default())?;
    set.switch(&other, SwitchOptions::default())?;
    launch(&stream(&set, "prefill")?, &new)?;
    let launches = sim.launches();
    assert!(launches[0].happens_before(&launches[1]), "the old work was forgotten");
    // All SMs are in use again, so only the previous plan's work is left to wait for.
    sim.clear_calls();
    set.switch(&set.plan("wide")?, SwitchOptions::default())?;
    assert_eq!(sim.calls().get("cuEventRecord"), Some(&2));
    Ok(())
}

/// A switch waits for the work of every stream: of the library, of foreign code, and of streams already dropped.
#[test]
fn every_stream_of_a_partition_takes_part() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let plans = [set.plan("day")?, set.prepare(plan("night", 64))?];
    let (old, new) = (work(&sim, &device, "old")?, work(&sim, &device, "new")?);
    for (round, who) in ["the context", "foreign code", "a dropped stream"].iter().enumerate() {
        set.switch(&plans[round % 2], SwitchOptions::default())?;
        let prefill = set.active().partition("prefill").ok_or("prefill")?.clone();
        let stream = match *who {
            "foreign code" => {
                let raw = raw::stream(prefill.context())?;
                // SAFETY: the stream was created above, and no other code uses it.
                unsafe { Stream::from_raw_owned(prefill.context(), raw) }?
            }
            _ => prefill.context().create_stream(StreamOptions::default())?,
        };
        launch(&stream, &old)?;
        let kept = (*who != "a dropped stream").then_some(stream);
        set.switch(&plans[(round + 1) % 2], SwitchOptions::default())?;
        launch(&self::stream(&set, "prefill")?, &new)?;
        let launches = sim.launches();
        let [.., before, after] = &launches[..] else { return Err("two launches".into()) };
        assert!(before.happens_before(after), "the work of {who} was not waited for");
        drop(kept);
        device.primary_context()?.synchronize()?;
    }
    Ok(())
}

#[test]
fn a_partition_that_stays_is_the_same_and_is_not_stalled() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let request = |rest: [u32; 2]| {
        SplitRequest::new().group("decode", 32).group("draft", rest[0]).group("prefill", rest[1])
    };
    let set = set(&device, PlanRequest::new("a", request([16, 72])))?;
    let before = set.active().partition("decode").ok_or("decode")?.clone();
    let next = set.prepare(PlanRequest::new("b", request([40, 48])))?;
    let after = next.partition("decode").ok_or("decode")?;
    assert_eq!(before.context(), after.context());
    assert_eq!(before.stream(), after.stream());

    let (old, new) = (work(&sim, &device, "old")?, work(&sim, &device, "new")?);
    launch(&stream(&set, "prefill")?, &old)?;
    set.switch(&next, SwitchOptions::default())?;
    launch(after.stream(), &new)?;
    launch(&stream(&set, "draft")?, &new)?;
    let launches = sim.launches();
    assert!(!launches[0].happens_before(&launches[1]), "decode waited, although it kept its SMs");
    assert!(launches[0].happens_before(&launches[2]), "draft did not wait for prefill's work");
    Ok(())
}

/// An idle context must not prevent two plans from sharing a partition.
#[test]
fn plans_share_partitions_whatever_contexts_wait() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    {
        // Leaves an idle context on the second and third unit, which the first plan reuses.
        let mut groups = device.resources().sm()?.split([8, 16])?.groups.into_iter();
        let _first = groups.next();
        drop(device.create_context(groups.next().ok_or("two groups")?)?);
    }
    let set = set(&device, plan("day", 16))?;
    let reused = device.context_counts().reused;
    assert_eq!(reused, 1, "the first plan did not reuse the context");
    let request = SplitRequest::new().group("decode", 16).group("draft", 32).rest("prefill");
    let next = set.prepare(PlanRequest::new("next", request))?;
    let active = set.active();
    let [before, after] = [&active, &next].map(|plan| plan.partition("decode"));
    assert_eq!(before.ok_or("decode")?.context(), after.ok_or("decode")?.context());
    Ok(())
}

#[test]
fn a_context_of_several_plans_has_the_active_ones_name() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let train = PlanRequest::new("day", SplitRequest::new().group("train", 16));
    let set = set(&device, train)?;
    let night = PlanRequest::new("night", SplitRequest::new().group("chat", 16));
    let night = set.prepare(night)?;
    let context = night.partitions()[0].context().clone();
    assert_eq!(set.active().partitions()[0].context(), &context);
    assert_eq!(context.partition_name().as_deref(), Some("train"));
    set.switch(&night, SwitchOptions::default())?;
    assert_eq!(context.partition_name().as_deref(), Some("chat"));
    set.switch(&set.plan("day")?, SwitchOptions::default())?;
    assert_eq!(context.partition_name().as_deref(), Some("train"));
    assert_eq!(device.primary_context()?.partition_name(), None);
    Ok(())
}

#[test]
fn bad_plans_are_refused_and_change_nothing() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let live = sim.live();
    let refused = |plan: PlanRequest| set.prepare(plan).expect_err("a bad plan").to_string();
    assert_eq!(refused(plan("day", 8)), "plan day already exists; retire it first");
    let twice = SplitRequest::new().group("decode", 8).group("decode", 16);
    assert_eq!(
        refused(PlanRequest::new("twice", twice)),
        "plan twice has two partitions named decode"
    );
    let much = SplitRequest::new().group("decode", 100).group("prefill", 64);
    assert!(
        refused(PlanRequest::new("much", much)).starts_with("groups of 100, 64 SMs do not fit")
    );
    assert!(refused(PlanRequest::new("empty", SplitRequest::new())).contains("at least one group"));
    assert!(refused(PlanRequest::new("none", [0])).contains("asks for 0 SMs"));
    let structured = PlanRequest::new("structured", SplitRequest::from([16]).coscheduled(8));
    assert!(refused(structured).contains("by count"));
    let fine = PlanRequest::new("fine", SplitRequest::from([16]).granularity(Granularity::Fine));
    let error = set.prepare(fine).expect_err("the set's group is coarse");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert!(error.to_string().ends_with("is cut into coarse units; ask for the same"), "{error}");
    assert_eq!(sim.live(), live);
    assert_eq!(set.plans().len(), 1);

    let unknown = "there is no plan dusk; the only plan is day";
    assert_eq!(set.plan("dusk").expect_err("there is none").to_string(), unknown);
    assert_eq!(set.retire("dusk").expect_err("there is none").to_string(), unknown);
    let error = set.retire("day").expect_err("it is active");
    assert!(matches!(&error, PlanError::Active { name } if name == "day"), "{error}");

    // A retired plan that the caller still has.
    let dusk = set.prepare(plan("dusk", 8))?;
    set.retire("dusk")?;
    let error = set.switch(&dusk, SwitchOptions::default()).expect_err("it was retired");
    assert!(matches!(&error, PlanError::NotOfThisSet { name } if name == "dusk"), "{error}");
    // A new plan with the same name does not make the old handle valid.
    set.prepare(plan("dusk", 8))?;
    let error = set.switch(&dusk, SwitchOptions::default()).expect_err("it was retired");
    let retired = "plan dusk belongs to another set or was retired; use one of `PlanSet::plans`";
    assert_eq!(error.to_string(), retired);
    Ok(())
}

#[test]
fn a_capture_is_not_invalidated() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    let first = stream(&set, "prefill")?;
    let mut streams = vec![first.clone()];
    for _ in 0..3 {
        streams.push(first.context().create_stream(StreamOptions::default())?);
    }
    // The others are still queried.
    drop(streams.remove(1));
    for capturing in &streams {
        let graph = capturing.capture(CaptureMode::Relaxed, || {
            let error = set.switch(&night, SwitchOptions::default()).expect_err("it is captured");
            let is_named = |partition: &str| partition == "prefill";
            assert!(
                matches!(&error, PlanError::Capturing { partition: Some(name) } if is_named(name))
            );
            assert_eq!(set.active().name(), "day");
            Ok::<(), Error>(())
        });
        graph.map_err(|error| format!("the switch invalidated the capture: {error}"))?;
    }
    set.switch(&night, SwitchOptions::default())?;
    Ok(())
}

#[test]
fn plans_are_prepared_and_read_while_others_run() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("p0", 8))?;
    let preparing: Vec<_> = (1..8)
        .map(|index| set.prepare_in_background(plan(&format!("p{index}"), 8 + index * 8)))
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let active = set.active();
                let sms: u32 = active.partitions().iter().map(|part| part.sm_count()).sum();
                assert_eq!(sms, 132);
            }
        });
        for preparing in preparing {
            let plan = preparing.join().map_err(|_| "a thread panicked")??;
            set.switch(&plan, SwitchOptions::default())?;
        }
        done.store(true, Ordering::Relaxed);
        reader.join().map_err(|_| "a reader panicked".into())
    })?;
    assert_eq!(set.plans().len(), 8);
    for index in 0..7 {
        // The plan of the last switch is active and cannot be retired.
        let name = format!("p{index}");
        if set.active().name() != name {
            set.retire(&name)?;
        }
    }
    drop((set, device));
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

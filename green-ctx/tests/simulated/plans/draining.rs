//! Switches that wait for the active plan's work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use green_ctx::sim::{Fault, Sim};
use green_ctx::{
    Error, Kernel, Plan, PlanSet,
    plan::{PlanError, SwitchOptions},
};

use super::{set, stream, work};
use crate::common::plans::plan;
use crate::common::{Outcome, simulated};
use crate::work::{kernel, launch};

#[test]
fn draining_waits_on_the_host_and_gives_up_in_time() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    let kernel = work(&sim, &device, "old")?;
    launch(&stream(&set, "decode")?, &kernel)?;
    let error = set.switch(&night, SwitchOptions::default().drain(Duration::ZERO));
    let error = error.expect_err("a millisecond is left");
    assert_eq!(error.to_string(), "work of partition decode did not finish within 0 ms");
    assert_eq!(set.active().name(), "day");
    // Each query advances the simulated time, so the work ends.
    set.switch(&night, SwitchOptions::default().drain(Duration::from_secs(10)))?;
    assert!(night.partitions()[0].stream().is_idle()?);
    assert_eq!(set.active().name(), "night");
    Ok(())
}

#[test]
fn a_drain_is_given_up_when_asked_and_changes_nothing() -> Outcome {
    let (_sim, _kernel, set, [night, _]) = endless_day()?;
    let mut asked = 0;
    let options = SwitchOptions::default().drain(Duration::from_secs(60));
    let given_up = set.switch_while(&night, options, || {
        asked += 1;
        asked < 3
    });
    assert!(matches!(given_up, Err(PlanError::GivenUp { name }) if name == "night"));
    assert_eq!((asked, set.active().name()), (3, "day"));
    set.switch(&night, SwitchOptions::default())?;
    Ok(())
}

type EndlessDay = (Sim, Kernel, PlanSet, [Arc<Plan>; 2]);

/// Creates a set with three plans. The work of `day`, which is active, never ends, and neither does the work of
/// `dusk`.
fn endless_day() -> Result<EndlessDay, Box<dyn std::error::Error>> {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let (night, dusk) = (set.prepare(plan("night", 64))?, set.prepare(plan("dusk", 32))?);
    let kernel = work(&sim, &device, "endless")?;
    sim.register_kernel("endless", |call| call.set_duration_ns(1 << 50));
    for plan in [&set.active(), &dusk] {
        launch(plan.partitions()[0].stream(), &kernel)?;
    }
    Ok((sim, kernel, set, [night, dusk]))
}

/// A draining switch does not block other switches.
#[test]
fn others_switch_while_one_drains() -> Outcome {
    let (sim, _kernel, set, [night, dusk]) = endless_day()?;
    let at_most = Duration::from_millis(500);
    thread::scope(|scope| -> Outcome {
        let drains = scope.spawn(|| set.switch(&night, SwitchOptions::default().drain(at_most)));
        until_draining(&sim);
        set.switch(&dusk, SwitchOptions::default())?;
        assert!(!drains.is_finished(), "the switch waited for the one that drains");
        let error = drains.join().expect("no panic").expect_err("the work does not end");
        assert!(matches!(error, PlanError::NotDrained { .. }), "{error}");
        assert_eq!(set.active().name(), "dusk");
        Ok(())
    })
}

/// Waits until another thread polls repeatedly for the end of work.
fn until_draining(sim: &Sim) {
    let asked = || sim.calls().get("cuEventQuery").copied().unwrap_or_default();
    let (before, begun) = (asked(), Instant::now());
    while asked() < before + 5 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no thread is draining");
        thread::yield_now();
    }
}

/// A plan that was retired during its drain is dropped without a lock held, so a hook may use the set.
#[test]
fn a_drained_plan_ends_outside_of_locks() -> Outcome {
    let (sim, _kernel, set, [night, dusk]) = endless_day()?;
    let used = Arc::new(AtomicBool::new(false));
    let hook = {
        let (set, used) = (set.clone(), Arc::clone(&used));
        move |_: &Error| {
            // On another thread, so that a deadlock fails the test instead of hanging it.
            let (answer, listen) = mpsc::channel();
            let set = set.clone();
            thread::spawn(move || answer.send(set.retire("unknown").is_err()));
            used.store(listen.recv_timeout(Duration::from_secs(5)).is_ok(), Ordering::Relaxed);
        }
    };
    let _hook = set.device().driver().on_cleanup_failure(hook);
    let at_most = Duration::from_millis(300);
    thread::scope(|scope| -> Outcome {
        let drains = scope.spawn(|| set.switch(&night, SwitchOptions::default().drain(at_most)));
        until_draining(&sim);
        // From here on the draining thread has the last handle of the first plan.
        set.switch(&dusk, SwitchOptions::default())?;
        set.retire("day")?;
        sim.fail(Fault::on("cuGreenCtxRecordEvent"))?;
        drains.join().expect("no panic").expect_err("the work does not end");
        Ok(())
    })?;
    assert!(used.load(Ordering::Relaxed), "the set's lock was held");
    Ok(())
}

/// On the simulator's default clock each query takes time. A drain with a timeout must succeed if the work is
/// shorter than the timeout.
#[test]
fn a_bounded_drain_waits_for_work_that_is_shorter() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    for milliseconds in [5, 400] {
        let some = kernel(&sim, &device, "some", Duration::from_millis(milliseconds))?;
        launch(set.active()["decode"].stream(), &some)?;
        let next = if set.active().name() == "day" { &night } else { &set.plan("day")? };
        set.switch(next, SwitchOptions::default().drain(Duration::from_secs(2)))?;
        assert_eq!(set.active().name(), next.name());
    }
    Ok(())
}

#[test]
fn a_drain_may_be_unbounded() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let set = set(&device, plan("day", 16))?;
    let night = set.prepare(plan("night", 64))?;
    let (kernel, old) = (work(&sim, &device, "old")?, stream(&set, "decode")?);
    launch(&old, &kernel)?;
    set.switch(&night, SwitchOptions::default().drain(Duration::MAX))?;
    assert!(old.is_idle()?);
    Ok(())
}

//! Hooks of the program that panic: the library continues as if they had not.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use green_ctx::{
    Graph, Stream, StreamOptions,
    context::Context,
    driver::CleanupHook,
    graph::{CaptureMode, RetargetError},
    sim::Fault,
};

use crate::common::{Outcome, partition};
use crate::{LONG, Machine, each_failing_driver, launch};

/// Installs a hook that counts its calls and panics.
fn panicking(machine: &Machine) -> (CleanupHook, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let of_hook = Arc::clone(&calls);
    let hook = machine.driver().on_cleanup_failure(move |_| {
        of_hook.fetch_add(1, Ordering::Relaxed);
        // Panics without a message on standard error.
        panic::resume_unwind(Box::new("the hook"));
    });
    (hook, calls)
}

/// Each clean-up call of a busy partition fails once, and the hook panics each time. The next owner of the SMs
/// must wait for the work nevertheless.
#[test]
fn a_hook_that_panics_breaks_no_floor() -> Outcome {
    let calls = [
        "cuCtxGetCurrent",
        "cuGreenCtxRecordEvent",
        "cuStreamDestroy",
        "cuEventCreate",
        "cuEventQuery",
        "cuDevicePrimaryCtxRetain",
        "cuThreadExchangeStreamCaptureMode",
    ];
    for call in calls {
        for nth in 1..=3 {
            each_failing_driver(|machine| {
                let kernel = machine.kernel(LONG)?;
                let (_hook, called) = panicking(machine);
                let context = partition(&machine.device, 16)?;
                let stream = context.create_stream(StreamOptions::default())?;
                launch(&stream, &kernel)?;
                machine.sim.fail(Fault::on(call).nth(nth))?;
                // A panic that leaves the library must be noticed.
                let dropped = catch_unwind(AssertUnwindSafe(|| drop((stream, context))));
                machine.sim.clear_faults();
                assert!(dropped.is_ok(), "{call}: the hook's panic left the library");
                if called.load(Ordering::Relaxed) == 0 {
                    return Ok(());
                }
                let next = partition(&machine.device, 132 - 8)?;
                let stream = next.create_stream(StreamOptions::default())?;
                launch(&stream, &kernel)?;
                let launches = machine.sim.launches();
                let (former, later) = (&launches[0], &launches[1]);
                assert!(!former.overlaps(later), "{call}: unordered work on common SMs");
                assert_eq!(machine.free()? + next.sm_count()?, 132, "{call}");
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_hook_that_panics_is_called_again() -> Outcome {
    each_failing_driver(|machine| {
        let (hook, called) = panicking(machine);
        for round in 1..=3 {
            let event = machine.device.create_event(Default::default())?;
            machine.sim.fail(Fault::on("cuEventDestroy"))?;
            drop(event);
            assert_eq!(called.load(Ordering::Relaxed), round);
        }
        drop(hook);
        Ok(())
    })
}

/// A hook is the program's code, so it may use the very graph whose clean-up failed.
#[test]
fn a_hook_may_use_the_graph_whose_lock_was_held() -> Outcome {
    type Use = fn(&Graph, &Context, &Stream) -> Result<(), RetargetError>;
    let uses: [Use; 3] = [
        |graph, _, _| graph.instantiate().map(drop).map_err(RetargetError::from),
        |graph, context, _| graph.retarget(context).map(drop),
        |graph, _, stream| Ok(graph.instantiate()?.upload(stream)?),
    ];
    let mut called = 0;
    for (run, call, nth) in uses.iter().flat_map(|run| {
        let calls = ["cuThreadExchangeStreamCaptureMode", "cuCtxPopCurrent"];
        calls.into_iter().flat_map(move |call| (1..=6).map(move |nth| (run, call, nth)))
    }) {
        let machine = Machine::new("h200@13.0")?;
        let kernel = machine.kernel(LONG)?;
        let stream = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let graph = stream.capture(CaptureMode::Relaxed, || launch(&stream, &kernel))?;
        let context = partition(&machine.device, 16)?;
        let (send, receive) = mpsc::channel();
        let of_hook = graph.clone();
        let _hook = machine.driver().on_cleanup_failure(move |_| {
            // Another thread uses the graph while the hook waits for it, as a hook that logs may do.
            let graph = of_hook.clone();
            let (done, wait) = mpsc::channel();
            thread::spawn(move || done.send(graph.node_count().is_ok()));
            let answered = wait.recv_timeout(Duration::from_secs(5));
            send.send(answered == Ok(true)).expect("the test waits");
        });
        machine.sim.fail(Fault::on(call).nth(nth))?;
        let _result = run(&graph, &context, &stream);
        machine.sim.clear_faults();
        while let Ok(answered) = receive.try_recv() {
            assert!(answered, "{call} {nth}: the hook ran under the lock of the graph");
            called += 1;
        }
    }
    assert!(called >= 6, "only {called} failures were reported");
    Ok(())
}

/// A function set to run before a driver call, and cleared without running, may own a handle whose drop calls
/// the driver.
#[test]
fn functions_that_have_not_run_can_be_forgotten() -> Outcome {
    each_failing_driver(|machine| {
        let part = partition(&machine.device, 16)?;
        machine.sim.run_before("cuGraphClone", 1, move || drop(part))?;
        machine.sim.clear_faults();
        assert_eq!(machine.free()?, 132);
        Ok(())
    })
}

//! A driver context has one object from its creation to its destruction. Whatever other threads and libraries wrap,
//! look up or close in the meantime, a handle leads to that object, and a switch knows all of its streams.

use std::error::Error;
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use green_ctx::context::{CloseReason, Context, WeakContext};
use green_ctx::graph::CaptureMode;
use green_ctx::plan::{PlanError, SwitchOptions};
use green_ctx::sim::Fault;
use green_ctx::sys::CUstream;
use green_ctx::{Device, Driver, Graph, Partition, Stream, StreamOptions};

use crate::common::plans::day_and_night;
use crate::common::{Outcome, partition, raw, simulated};
use crate::work::{assert_no_conflict, launch, launch_on_current, old_and_new};
use crate::{LONG, Machine, each_driver, each_failing_driver};

/// A kept stream's handle, which any thread may use.
#[derive(Clone, Copy)]
struct Kept(usize);

impl Kept {
    /// Keeps a new stream of a context.
    fn of(context: &Context, priority: i32) -> green_ctx::Result<Kept> {
        let stream = context.create_stream(StreamOptions::default().priority(priority))?;
        stream.keep_alive()?;
        Ok(Kept(stream.as_raw().expose_provenance()))
    }

    fn raw(self) -> CUstream {
        ptr::with_exposed_provenance_mut(self.0)
    }

    /// Wraps the stream, as a library does that has only its handle.
    fn wrap(self, driver: &Driver) -> green_ctx::Result<Stream> {
        // SAFETY: kept streams and their contexts are never destroyed.
        unsafe { Stream::from_raw_borrowed(driver, self.raw(), ()) }
    }
}

/// A library wraps a kept stream while no partition has its context. A plan set then reuses the context, with a first
/// stream of another priority.
#[test]
fn a_switch_waits_for_a_kept_stream_that_was_wrapped_while_it_was_idle() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let [old, new] = old_and_new(&sim, &device)?;
    let (set, plans) = day_and_night(&device)?;
    let kept = Kept::of(plans[0]["decode"].context(), -2)?;
    drop((plans, set));

    let wrapped = kept.wrap(device.driver())?;
    let (set, plans) = day_and_night(&device)?;
    assert_eq!(wrapped.context(), plans[0]["decode"].context());
    launch(&wrapped, &old)?;
    set.switch(&plans[1], SwitchOptions::default())?;
    launch(plans[1]["decode"].stream(), &new)?;
    launch(plans[1]["prefill"].stream(), &new)?;
    assert_no_conflict(&sim, 3);
    Ok(())
}

/// Foreign code that has a kept stream can submit work to the default stream of its context, at any time.
#[test]
fn a_switch_waits_for_the_default_stream_of_a_kept_context() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let [old, new] = old_and_new(&sim, &device)?;
    let (set, plans) = day_and_night(&device)?;
    let raw = plans[0]["decode"].context().as_raw().expose_provenance();
    Kept::of(plans[0]["decode"].context(), -2)?;
    drop((plans, set));

    let (set, plans) = day_and_night(&device)?;
    raw::push(&device, ptr::with_exposed_provenance_mut(raw))?;
    launch_on_current(&device, &old)?;
    raw::pop(&device)?;
    set.switch(&plans[1], SwitchOptions::default())?;
    launch(plans[1]["decode"].stream(), &new)?;
    launch(plans[1]["prefill"].stream(), &new)?;
    assert_no_conflict(&sim, 3);
    Ok(())
}

/// A kept context is reused while an earlier owner's work still runs on its SMs. A stream that was wrapped before waits
/// for that work too, and so does the default stream.
#[test]
fn all_streams_of_a_kept_context_wait_for_earlier_work() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let context = partition(device, 16)?;
        let raw = context.as_raw();
        let kept = Kept::of(&context, 0)?;
        drop(context);
        let wrapped = kept.wrap(machine.driver())?;
        let wide = partition(device, 32)?;
        launch(&wide.create_stream(StreamOptions::default())?, &kernel)?;
        drop(wide);

        let again = partition(device, 16)?;
        assert_eq!(again.as_raw(), raw);
        launch(&wrapped, &kernel)?;
        raw::push(device, raw)?;
        launch_on_current(device, &kernel)?;
        raw::pop(device)?;
        let launches = sim.launches();
        let [wide, wrapped, default] = &launches[..] else { panic!("three launches") };
        assert!(wide.happens_before(wrapped) && wide.happens_before(default));
        Ok(())
    })
}

/// Foreign code captures a kept stream while its context is reused. A wait on the whole context would invalidate the
/// capture.
#[test]
fn a_foreign_capture_survives_the_reuse_of_its_context() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let context = partition(device, 16)?;
        let (kept, other) = (Kept::of(&context, 0)?, Kept::of(&context, -1)?);
        drop(context);
        let wide = partition(device, 32)?;
        launch(&wide.create_stream(StreamOptions::default())?, &kernel)?;
        drop(wide);
        raw::begin_capture(device, kept.raw())?;
        let again = partition(device, 16)?;
        launch(&other.wrap(machine.driver())?, &kernel)?;
        let launches = sim.launches();
        assert!(launches[0].happens_before(&launches[1]), "the host waited for the former owner");
        let graph = raw::end_capture(device, kept.raw())?;
        // SAFETY: the graph was captured above, and no other code uses it.
        drop(unsafe { Graph::from_raw_owned(device, graph) }?);
        drop(again);
        Ok(())
    })
}

#[test]
fn a_handle_leads_to_one_object_before_and_after_a_reuse() -> Outcome {
    each_failing_driver(|machine| {
        let (driver, device) = (machine.driver(), &machine.device);
        let context = partition(device, 16)?;
        let raw_context = context.as_raw();
        let kept = Kept::of(&context, -2)?;
        drop(context);

        // An idle context has no partition, and its stream one object, however often it is wrapped.
        let wrapped = kept.wrap(driver)?;
        let idle = wrapped.context().clone();
        assert_eq!((idle.group().is_none(), idle.label()), (true, "borrowed"));
        assert_eq!(driver.find_context(raw_context).as_ref(), Some(&idle));
        assert_eq!(
            (driver.find_stream(kept.raw()), kept.wrap(driver)?),
            (Some(wrapped.clone()), wrapped.clone())
        );
        assert_eq!(machine.free()?, 132);

        // The next partition on the same SMs has this object.
        let again = partition(device, 16)?;
        assert_eq!((&again, again.as_raw()), (&idle, raw_context));
        assert!(wrapped.context().group().is_some());
        let second = again.create_stream(StreamOptions::default().priority(-2))?;
        assert_ne!(second, wrapped, "the kept stream already has an object");
        drop(second);
        assert_eq!(driver.find_stream(kept.raw()).as_ref(), Some(&wrapped));
        // The wrapped stream is a handle of the partition like any other stream.
        drop(idle);
        let refused = again.close().expect_err("the wrapped stream is alive");
        assert!(
            matches!(refused.reason, CloseReason::Shared { streams: Some(1) }),
            "{}",
            refused.reason
        );
        drop(wrapped);
        let group = refused.given.close()?.ok_or("it has a group")?;
        assert_eq!((group.sm_count(), driver.find_stream(kept.raw())), (16, None));
        assert_eq!(driver.find_context(raw_context), None);
        Ok(())
    })
}

/// A foreign graph runs in a kept context, and is wrapped while the context is idle. The graph is a handle of the next
/// partition that has the context, which waits for it.
#[test]
fn a_graph_that_was_wrapped_early_belongs_to_the_next_partition() -> Outcome {
    let (sim, device) = simulated("h200@13.0")?;
    let [old, new] = old_and_new(&sim, &device)?;
    // The context of the later partition exists already, since the driver waits for all work when it creates one.
    drop(partition(&device, 32)?);
    let part = partition(&device, 16)?;
    let kept = Kept::of(&part, 0)?;
    raw::begin_capture(&device, kept.raw())?;
    launch(&kept.wrap(device.driver())?, &old)?;
    let graph = raw::end_capture(&device, kept.raw())?;
    drop(part);

    // SAFETY: no other code uses the graph, and its node's context is never destroyed.
    let graph = unsafe { Graph::from_raw_owned(&device, graph) }?;
    let exec = graph.instantiate()?;
    let part = partition(&device, 16)?;
    assert_eq!(graph.contexts(), std::slice::from_ref(&part));
    let primary = device.primary_context()?.create_stream(StreamOptions::default())?;
    // SAFETY: the kernel has no parameters and touches no memory, and `old` keeps it loaded.
    unsafe { primary.launch_graph(&exec) }?;
    let part = part.close().expect_err("the graph has its context").given;
    drop((graph, exec, part));
    launch(&partition(&device, 32)?.create_stream(StreamOptions::default())?, &new)?;
    assert_no_conflict(&sim, 2);
    Ok(())
}

/// Two threads ask for streams of one driver context. Each call waits its turn, although one thread has only a wrapped
/// stream.
#[test]
fn threads_with_a_wrapped_stream_take_turns_too() -> Outcome {
    let (sim, device) = simulated("h200@13.0")?;
    let context = partition(&device, 16)?;
    let kept = Kept::of(&context, -2)?;
    drop(context);
    let wrapped = kept.wrap(device.driver())?;
    let context = partition(&device, 16)?;
    let (other, (entered, enters)) = (wrapped.context().clone(), mpsc::channel());
    let (again, second) = (entered.clone(), mpsc::channel());
    let (started, starts) = second;
    sim.run_before("cuGreenCtxStreamCreate", 1, move || {
        thread::spawn(move || {
            started.send(()).expect("the test waits");
            drop(other.create_stream(StreamOptions::default()));
            again.send("the other thread").expect("the test waits");
        });
        starts.recv().expect("it starts");
        thread::sleep(Duration::from_millis(50));
        entered.send("this thread").expect("the test waits");
    })?;
    let _stream = context.create_stream(StreamOptions::default())?;
    assert_eq!([enters.recv()?, enters.recv()?], ["this thread", "the other thread"]);
    Ok(())
}

/// The driver calls of a close that can fail, each with the number of such calls.
const CALLS: [(&str, u64); 4] = [
    ("cuGreenCtxRecordEvent", 1),
    ("cuCtxGetCurrent", 3),
    ("cuStreamIsCapturing", 3),
    ("cuEventQuery", 1),
];

/// A partition with a kept stream, and what identifies its context.
fn with_kept(device: &Device) -> Result<(Partition, WeakContext, Kept), Box<dyn Error>> {
    let part = device.partition([16])?.into_iter().next().ok_or("one partition")?;
    let (weak, kept) = (part.context().weak(), Kept::of(part.context(), -2)?);
    Ok((part, weak, kept))
}

/// Checks that a partition that was not closed is the same as before.
fn check_refused(part: Partition, weak: &WeakContext, wrapped: Option<Stream>) -> Outcome {
    let (device, raw) = (part.device().clone(), part.context().as_raw());
    assert!(weak.is(part.context()) && part.context().group().is_some(), "another object");
    assert_eq!(part.context().label(), part.name());
    assert_eq!(device.driver().find_context(raw).as_ref(), Some(part.context()));
    assert!(wrapped.as_ref().is_none_or(|wrapped| wrapped.context() == part.context()));
    assert_eq!(device.resources().sm()?.free_sm_count(), 116, "the SMs were given away");
    drop(wrapped);
    assert_eq!(part.close()?.sm_count(), 16);
    Ok(())
}

/// A kept stream of the context is wrapped before one of the driver calls of a close. The close is then
/// refused, whether or not the driver call fails too, and the partition is the same as before.
#[test]
fn a_close_beside_a_wrap_keeps_the_partition() -> Outcome {
    let mut refused = 0;
    for (function, most) in CALLS {
        for (nth, fails) in (1..=most).flat_map(|nth| [(nth, false), (nth, true)]) {
            let (sim, device) = simulated("h200@13.0")?;
            let (part, weak, kept) = with_kept(&device)?;
            let (driver, (send, wrapped)) = (device.driver().clone(), mpsc::channel());
            sim.run_before(function, nth, move || {
                send.send(kept.wrap(&driver)).expect("the test waits");
            })?;
            if fails {
                sim.fail(Fault::on(function).nth(nth))?;
            }
            let closed = part.close();
            sim.clear_faults();
            let wrapped = wrapped.try_recv().ok().transpose()?;
            match closed {
                Ok(_group) => {
                    assert!(wrapped.is_none(), "{function} {nth}: closed despite a handle")
                }
                Err(error) => {
                    check_refused(error.given, &weak, wrapped)?;
                    refused += 1;
                }
            }
        }
    }
    assert!(refused >= 8, "only {refused} closes were refused");
    Ok(())
}

/// The driver does not say whether the partition's stream is being captured, while a capture is open elsewhere and
/// another thread wraps a kept stream.
#[test]
fn a_close_beside_a_capture_and_a_wrap_does_not_panic() -> Outcome {
    for nth in 1..=4 {
        let (sim, device) = simulated("h200@13.0")?;
        let origin = device.primary_context()?.create_stream(StreamOptions::default())?;
        origin.capture(CaptureMode::Relaxed, || -> Outcome {
            let (part, weak, kept) = with_kept(&device)?;
            let (driver, (send, wrapped)) = (device.driver().clone(), mpsc::channel());
            sim.run_before("cuEventQuery", 1, move || {
                send.send(kept.wrap(&driver)).expect("the test waits");
            })?;
            sim.fail(Fault::on("cuStreamGetCaptureInfo").nth(nth))?;
            let closed = part.close();
            sim.clear_faults();
            let error = closed.expect_err("the stream was wrapped");
            check_refused(error.given, &weak, Some(wrapped.try_recv()??))
        })?;
    }
    Ok(())
}

/// While a close waits for work, another thread finds the partition's objects, and a graph that it wraps keeps them.
#[test]
fn what_a_waiting_close_would_end_can_be_found() -> Outcome {
    let (sim, device) = simulated("h200@13.0")?;
    let kernel = crate::work::kernel(&sim, &device, "work", LONG)?;
    let part = device.partition([16])?.into_iter().next().ok_or("one partition")?;
    let (weak, stream) = (part.context().weak(), part.stream().clone());
    let context = part.context().as_raw().expose_provenance();
    let handle = stream.as_raw().expose_provenance();
    raw::begin_capture(&device, stream.as_raw())?;
    launch(&stream, &kernel)?;
    let graph = raw::end_capture(&device, stream.as_raw())?.expose_provenance();
    launch(&stream, &kernel)?;
    drop(stream);
    let (device_there, (send, found)) = (device.clone(), mpsc::channel());
    sim.run_before("cuEventSynchronize", 1, move || {
        let there = thread::spawn(move || {
            let (driver, at) = (device_there.driver(), ptr::with_exposed_provenance_mut);
            let raw = ptr::with_exposed_provenance_mut(graph);
            // SAFETY: the test destroys the graph after its last use.
            let graph = unsafe { Graph::from_raw_borrowed(&device_there, raw, ()) };
            let stream = driver.find_stream(ptr::with_exposed_provenance_mut(handle));
            (driver.find_context(at(context)), stream.is_some(), graph)
        });
        send.send(there.join().expect("no panic")).expect("the test waits");
    })?;
    let error = part.close().expect_err("a graph has its context");
    let (context, is_stream_found, graph) = found.try_recv()?;
    assert!(context.is_some_and(|context| weak.is(&context)) && is_stream_found);
    let graph = graph?;
    assert_eq!(graph.contexts(), [error.given.context().clone()]);
    let raw = graph.as_raw();
    drop(graph);
    // SAFETY: no other code uses the graph.
    drop(unsafe { Graph::from_raw_owned(&device, raw) }?);
    check_refused(error.given, &weak, None)
}

/// A thread that only looks a partition up may have used it, so the close waits again.
#[test]
fn a_close_waits_for_work_that_was_submitted_while_it_waited() -> Outcome {
    let (sim, device) = simulated("h200@13.0")?;
    let [old, new] = old_and_new(&sim, &device)?;
    let part = device.partition([16])?.into_iter().next().ok_or("one partition")?;
    let handle = part.stream().as_raw().expose_provenance();
    let (driver, work) = (device.driver().clone(), old.clone());
    sim.run_before("cuEventQuery", 1, move || {
        let stream = driver.find_stream(ptr::with_exposed_provenance_mut(handle));
        launch(&stream.expect("it is open"), &work).expect("the driver works");
    })?;
    let group = part.close()?;
    let next = device.create_context(group)?;
    launch(&next.create_stream(StreamOptions::default())?, &new)?;
    assert_no_conflict(&sim, 2);
    let launches = sim.launches();
    assert!(launches[0].end_ns <= launches[1].start_ns, "the group was returned while work ran");
    Ok(())
}

/// A kept stream is about to be given out again. Foreign code captures it, and a switch of plans must see that.
#[test]
fn a_switch_sees_the_capture_of_a_stream_that_is_being_given_out() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = day_and_night(&device)?;
    let context = plans[0]["decode"].context().clone();
    let kept = Kept::of(&context, -2)?;
    let (send, switched) = mpsc::channel();
    let (there, night, device_there) = (set.clone(), plans[1].clone(), device.clone());
    sim.run_before("cuStreamIsCapturing", 1, move || {
        raw::begin_capture(&device_there, kept.raw()).expect("the driver works");
        let result = there.switch(&night, SwitchOptions::default());
        send.send(result.map(drop)).expect("the test waits");
    })?;
    let stream = context.create_stream(StreamOptions::default().priority(-2))?;
    let error = switched.try_recv()?.expect_err("a stream of the partition is captured");
    assert!(matches!(error, PlanError::Capturing { .. }), "{error}");
    assert_ne!(stream.as_raw(), kept.raw());
    let graph = raw::end_capture(&device, kept.raw())?;
    // SAFETY: the graph was captured above, and no other code uses it.
    drop(unsafe { Graph::from_raw_owned(&device, graph) }?);
    Ok(())
}

/// Several threads may use one green context, but only one at a time, so none may hold it while work runs.
#[test]
fn a_thread_that_waits_for_a_partition_has_no_green_context_current() -> Outcome {
    each_driver(|machine| {
        let context = partition(&machine.device, 16)?;
        let kernel = machine.kernel(LONG)?;
        launch(&context.create_stream(StreamOptions::default())?, &kernel)?;
        let (raw, (send, current)) = (context.as_raw().addr(), mpsc::channel());
        let device = machine.device.clone();
        for call in ["cuCtxSynchronize", "cuEventSynchronize"] {
            let (device, send) = (device.clone(), send.clone());
            machine.sim.run_before(call, 1, move || {
                let current = Context::current(device.driver());
                let current = current.map(|found| found.map(|it| it.as_raw().addr()));
                send.send(current).expect("the test waits");
            })?;
        }
        context.synchronize()?;
        assert_ne!(
            current.try_recv()??,
            Some(raw),
            "the context is current while the thread waits"
        );
        Ok(())
    })
}

//! Contexts: their properties, streams and events, and closing them.

use std::collections::HashSet;

use green_ctx::sim::Fault;
use green_ctx::{
    Error, Share, StreamOptions, call,
    context::{CloseReason, Context},
    event::EventOptions,
};

use crate::common::{Outcome, partition, raw, simulated, stream};
use crate::{COMPOSITION, LONG, Machine, each_driver, launch};

#[test]
fn a_context_knows_what_it_is() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let (primary, green) = (device.primary_context()?, partition(device, 16)?);
        assert!(
            !primary.is_green() && primary.as_raw_green().is_none() && primary.group().is_none()
        );
        assert!(green.is_green() && green.as_raw_green().is_some());
        assert_eq!(green.group().map(|group| (group.name(), group.sm_count())), Some(("p0", 16)));
        assert_eq!((primary.device(), green.device()), (device, device));
        // All handles share one primary context, which is retained once while any of them is alive.
        assert_eq!((&device.primary_context()?, sim.live().primary_retains), (&primary, 1));
        assert_eq!((primary.sm_count()?, green.sm_count()?), (132, 16));
        Ok(())
    })
}

#[test]
fn ids_are_unique_and_stay() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let contexts = [device.primary_context()?, partition(device, 16)?, partition(device, 16)?];
        let ids = contexts.iter().map(Context::id).collect::<green_ctx::Result<HashSet<_>>>()?;
        assert_eq!(ids.len(), 3);
        let kernel = machine.kernel(LONG)?;
        launch(&stream(&contexts[2])?, &kernel)?;
        assert_eq!(machine.sim.launches()[0].context, contexts[2].id()?);
        let again = contexts.iter().map(Context::id).collect::<green_ctx::Result<HashSet<_>>>()?;
        assert_eq!(again, ids);
        Ok(())
    })
}

/// A reused driver context has the same id. A weak handle distinguishes the old context from the new one.
#[test]
fn a_recycled_context_has_its_number_and_is_another() -> Outcome {
    each_driver(|machine| {
        let first = partition(&machine.device, 16)?;
        let (id, weak) = (first.id()?, first.weak());
        drop(first);
        let second = partition(&machine.device, 16)?;
        assert_eq!(machine.device.context_counts().created, 1);
        assert_eq!(second.id()?, id);
        assert!(!weak.is(&second));
        Ok(())
    })
}

/// Streams do not synchronise with the default stream, and their priority is clamped to the device's range.
#[test]
fn streams_are_made_on_every_context() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        assert_eq!(device.stream_priorities()?, -5..=0);
        for context in [device.primary_context()?, partition(device, 8)?] {
            for (asked, given) in [(0, 0), (-1, -1), (-5, -5), (-100, -5), (100, 0)] {
                let options = StreamOptions::default().priority(asked);
                let (stream, calls) = machine.calls(|| context.create_stream(options));
                let stream = stream?;
                assert_eq!((stream.priority()?, stream.context()), (given, &context), "{asked}");
                let direct = context.is_green() && machine.has(COMPOSITION);
                let call =
                    if direct { "cuGreenCtxStreamCreate" } else { "cuStreamCreateWithPriority" };
                assert_eq!(calls.get(call), Some(&1), "{calls:?}");
                let mut flags = 0;
                let api = machine.driver().api();
                // SAFETY: the stream is alive, and `flags` outlives the call.
                unsafe { call!(api, cuStreamGetFlags(stream.as_raw(), &raw mut flags)) }?;
                assert_eq!(flags, 1);
            }
        }
        assert_eq!(sim.live().streams, 0);
        Ok(())
    })
}

/// Some drivers create a stream in the current context. The previous context is current again afterwards, even
/// if one of the calls fails.
#[test]
fn making_a_stream_leaves_what_is_current() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let reported = machine.hook();
        let (primary, green) = (device.primary_context()?, partition(device, 8)?);
        let other = partition(device, 8)?;
        for (context, current) in [
            (&green, None),
            (&green, Some(&primary)),
            (&primary, Some(&green)),
            (&green, Some(&other)),
        ] {
            let _guard = current.map(Context::make_current).transpose()?;
            sim.clear_calls();
            sim.record_calls(true);
            let made = stream(context);
            sim.record_calls(false);
            let log = sim.call_log();
            drop(made?);
            let pushes = log.iter().any(|call| call.function == "cuCtxPushCurrent");
            assert_eq!(pushes, !machine.has(COMPOSITION) || !context.is_green());
            assert_eq!(Context::current(machine.driver())?.as_ref(), current);
            for call in log {
                reported.lock().expect("no panic").clear();
                let before = machine.state()?;
                sim.fail(Fault::on(call.function))?;
                let result = stream(context);
                assert_eq!(
                    Context::current(machine.driver())?.as_ref(),
                    current,
                    "{}",
                    call.function
                );
                let reported = reported.lock().expect("no panic").len();
                // Either no stream was created, or the stream exists and the hook was called.
                assert_eq!(result.is_err(), reported == 0, "{}: {result:?}", call.function);
                drop(result);
                assert_eq!(machine.state()?, before, "{}", call.function);
            }
        }
        sim.clear_faults();
        Ok(())
    })
}

/// An event of a context completes after the work of all its streams, including destroyed ones.
#[test]
fn events_cover_a_whole_context() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let (busy, waiting) = (partition(device, 16)?, partition(device, 16)?);
        let other = stream(&waiting)?;
        let done = device.create_event(EventOptions::default())?;
        let kept = stream(&busy)?;
        launch(&stream(&busy)?, &kernel)?;
        launch(&kept, &kernel)?;
        busy.record(&done)?;
        launch(&kept, &kernel)?;
        assert!(!done.is_complete()?);
        waiting.wait(&done)?;
        launch(&other, &kernel)?;
        let launches = sim.launches();
        let before: Vec<bool> =
            launches.iter().map(|launch| launch.happens_before(&launches[3])).collect();
        assert_eq!(before, [true, true, false, false]);
        waiting.synchronize()?;
        assert!(done.is_complete()? && other.is_idle()?);

        // Recording an event of a primary context needs CUDA 12.5.
        let primary = device.primary_context()?;
        launch(&kept, &kernel)?;
        if machine.has(COMPOSITION) {
            primary.record(&done)?;
            assert!(!done.is_complete()?, "the event does not cover the device's green contexts");
            primary.wait(&done)?;
            busy.synchronize()?;
            assert!(done.is_complete()?);
        } else {
            machine.unsupported("cuCtxRecordEvent", COMPOSITION, || primary.record(&done))?;
            machine.unsupported("cuCtxWaitEvent", COMPOSITION, || primary.wait(&done))?;
        }
        Ok(())
    })
}

#[test]
fn synchronize_waits_for_one_context() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        let (one, two) = (partition(device, 8)?, partition(device, 8)?);
        let (first, second) = (stream(&one)?, stream(&two)?);
        launch(&first, &kernel)?;
        one.synchronize()?;
        launch(&second, &kernel)?;
        assert!(first.is_idle()? && !second.is_idle()?);
        one.synchronize()?;
        assert!(!second.is_idle()?, "the call waited for another context");
        two.synchronize()?;
        assert!(second.is_idle()?);
        assert_eq!(Context::current(machine.driver())?, None);
        Ok(())
    })
}

#[test]
fn a_context_in_use_is_not_closed() -> Outcome {
    const KEPT: &str = "a clone of it or of its partition's stream, a guard, a graph, a capture or a context that \
                        shares its workqueues is alive; drop that first";
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        // This crate does not count the streams of a primary context.
        let (primary, again) = (device.primary_context()?, device.primary_context()?);
        let error = primary.close().expect_err("another handle exists");
        assert!(matches!(error.reason, CloseReason::Shared { streams: None }), "{}", error.reason);
        drop((error, again));
        let mut context = partition(device, 24)?;
        let raw = context.as_raw();
        // Each of these prevents the close, and the error's reason names it.
        let (clone, guard) = (context.clone(), context.make_current()?);
        let (user, other) = (stream(&context)?, stream(&context)?);
        let mut keepers: Vec<(Box<dyn std::any::Any>, &str)> = vec![
            (Box::new(clone), KEPT),
            (Box::new(guard), KEPT),
            (Box::new((user.clone(), user)), "one of its streams is alive; drop the stream first"),
            (Box::new(other), "2 of its streams are alive; drop the streams first"),
        ];
        while let Some((keeper, who)) = keepers.pop() {
            let error = context.close().expect_err("another owner exists");
            assert!(matches!(error.reason, CloseReason::Shared { .. }), "{}", error.reason);
            assert!(error.reason.to_string().ends_with(who), "{}", error.reason);
            context = error.given;
            assert_eq!(machine.driver().find_context(raw).as_ref(), Some(&context));
            assert_eq!((context.sm_count()?, machine.free()?), (24, 108));
            drop(keeper);
        }

        // The context is made current by a raw driver call.
        raw::push(device, raw)?;
        let error = context.close().expect_err("it is current");
        assert!(matches!(error.reason, CloseReason::Current), "{}", error.reason);
        context = error.given;
        assert_eq!(raw::pop(device)?, raw);

        // A driver failure leaves the context usable too.
        for function in ["cuCtxGetCurrent", "cuGreenCtxRecordEvent", "cuEventQuery"] {
            sim.fail(Fault::on(function))?;
            let error = context.close().expect_err("the driver fails");
            assert!(
                matches!(&error.reason, CloseReason::Driver(Error::Driver { call, .. }) if *call == function)
            );
            context = error.given;
            assert_eq!(machine.driver().find_context(raw).as_ref(), Some(&context));
            stream(&context)?.synchronize()?;
        }
        let group = context.close()?.ok_or("it has a group")?;
        assert_eq!((group.sm_count(), machine.free()?), (24, 108));
        assert_eq!(machine.driver().find_context(raw), None);
        Ok(())
    })
}

/// A partition is dropped while raw calls have its context current. The next partition of the same SMs reuses
/// the driver context, but is not current.
#[test]
fn what_ends_is_current_no_more() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let context = partition(device, 24)?;
        let raw = context.as_raw();
        raw::push(device, raw)?;
        drop(context);
        let next = partition(device, 24)?;
        assert_eq!(device.context_counts().reused, 1, "it is the same context for the driver");
        assert_eq!(Context::current(machine.driver())?, Some(device.primary_context()?));
        assert_ne!(Context::current(machine.driver())?.as_ref(), Some(&next));
        // The thread's stack still has the same number of contexts.
        raw::pop(device)?;
        assert_eq!(Context::current(machine.driver())?, None);
        Ok(())
    })
}

#[test]
fn closing_waits_and_gives_the_group() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let context = partition(device, 24)?;
        let done = device.create_event(EventOptions::default())?;
        launch(&stream(&context)?, &kernel)?;
        context.record(&done)?;
        assert!(!done.is_complete()?);
        let group = context.close()?.ok_or("it has a group")?;
        assert!(done.is_complete()?, "the close did not wait for the work");
        assert_eq!((group.name(), group.share(), group.sm_count()), ("p0", Share::from(24), 24));
        drop(group);
        // A primary context has no group; closing it releases it.
        drop((kernel, done));
        assert_eq!(device.primary_context()?.close()?.map(|group| group.sm_count()), None);
        assert_eq!(sim.live().primary_retains, 0);
        Ok(())
    })
}

#[test]
fn guards_nest_and_restore() -> Outcome {
    each_driver(|machine| {
        let (primary, green) = (machine.device.primary_context()?, partition(&machine.device, 8)?);
        let current = || Context::current(machine.driver());
        assert_eq!(current()?, None);
        let outer = primary.make_current()?;
        for _ in 0..2 {
            let _inner = green.make_current()?;
            assert_eq!(current()?.as_ref(), Some(&green));
        }
        assert_eq!(current()?, Some(primary.clone()));
        drop(outer);
        assert_eq!(current()?, None);
        Ok(())
    })
}

#[test]
fn a_guard_out_of_order_is_reported_and_harms_nothing() -> Outcome {
    let machine = Machine::new("h200@13.0")?;
    let reported = machine.hook();
    let current = || Context::current(machine.driver());
    let (primary, green) = (machine.device.primary_context()?, partition(&machine.device, 8)?);
    let outer = primary.make_current()?;
    let inner = green.make_current()?;
    drop(outer);
    assert_eq!(current()?, Some(green));
    drop(inner);
    assert_eq!(current()?, Some(primary));
    let expected = [
        "a guard was dropped out of order: another context is current; drop the newest guard first",
    ];
    assert_eq!(*reported.lock().expect("no panic"), expected);
    Ok(())
}

/// The context stays current on its thread, so it is never destroyed.
#[test]
fn a_leaked_guard_leaks_its_context_and_nothing_worse() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let context = partition(&device, 8)?;
    std::mem::forget(context.make_current()?);
    drop(context);
    assert_eq!(sim.live().green_contexts, 1);
    assert!(Context::current(device.driver())?.is_some());
    Ok(())
}

//! Streams that foreign code may use after their last handle is dropped. Neither they nor their contexts are
//! destroyed.

use std::ptr;
use std::sync::mpsc;

use green_ctx::graph::CaptureMode;
use green_ctx::plan::{PlanError, SwitchOptions};
use green_ctx::{Graph, Stream, StreamOptions, resource::ContextCounts, sim::Fault};

use crate::common::plans::{day_and_night, stream_of};
use crate::common::{Outcome, group, partition, simulated};
use crate::raw;
use crate::{LONG, Machine, each_failing_driver, launch};

/// Creates a partition with a stream that is kept alive. Returns the stream and the address of its context.
fn kept(machine: &Machine, sm_count: u32) -> Result<(Stream, usize), green_ctx::Error> {
    let context = partition(&machine.device, sm_count)?;
    let stream = context.create_stream(StreamOptions::default().priority(-2))?;
    stream.keep_alive()?;
    stream.keep_alive()?;
    Ok((stream, context.as_raw().addr()))
}

#[test]
fn a_kept_stream_serves_the_next_partition_of_its_sms() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        let (stream, context) = kept(machine, 16)?;
        let raw = stream.as_raw();
        drop(stream);
        assert_eq!(machine.free()?, 132, "the SMs are not free");
        assert_eq!((sim.live().streams, sim.live().green_contexts), (1, 1));
        assert!(machine.driver().find_stream(raw).is_none());

        let again = partition(device, 16)?;
        assert_eq!(again.as_raw().addr(), context);
        let other = again.create_stream(StreamOptions::default())?;
        assert_ne!(other.as_raw(), raw, "of another priority");
        let second = again.create_stream(StreamOptions::default().priority(-2))?;
        // Foreign code may still use the same raw handle.
        assert_eq!(machine.driver().find_stream(raw).as_ref(), Some(&second));
        assert_eq!((second.as_raw(), second.priority()?), (raw, -2));
        // The kept stream is in use, so the next stream is a new one.
        let third = again.create_stream(StreamOptions::default().priority(-2))?;
        assert_ne!(third.as_raw(), raw);
        assert_eq!(machine.driver().find_stream(raw).as_ref(), Some(&second));
        drop((other, second, third, again));
        assert_eq!((sim.live().streams, sim.live().green_contexts), (1, 1));
        Ok(())
    })
}

/// The queues of a context may end with the context that owns them, so a kept stream keeps both contexts.
#[test]
fn a_kept_stream_keeps_the_queues_that_it_uses() -> Outcome {
    let (sim, device) = simulated("h200@13.4")?;
    let queues = device.resources().workqueue()?.divide(2)?;
    let owner = device.create_context(group(&device, 16)?.with_workqueue(queues))?;
    let shared = owner.shared_workqueue()?;
    let context = device.create_context(group(&device, 24)?.with_workqueue(shared))?;
    context.create_stream(StreamOptions::default())?.keep_alive()?;
    drop(context);
    assert_eq!(owner.close()?.map(|group| group.sm_count()), Some(16));
    device.release_idle();
    assert_eq!(sim.live().green_contexts, 2, "the queues were destroyed");
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    Ok(())
}

#[test]
fn a_priority_out_of_the_range_finds_the_nearest() -> Outcome {
    each_failing_driver(|machine| {
        let context = partition(&machine.device, 16)?;
        for priority in [i32::MIN, i32::MAX] {
            let options = StreamOptions::default().priority(priority);
            let stream = context.create_stream(options)?;
            stream.keep_alive()?;
            let raw = stream.as_raw();
            drop(stream);
            for _ in 0..3 {
                assert_eq!(context.create_stream(options)?.as_raw(), raw);
            }
        }
        assert_eq!(machine.sim.live().streams, 2);
        Ok(())
    })
}

#[test]
fn contexts_of_kept_streams_are_never_destroyed() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        device.set_idle_limit(1);
        for sm_count in [16, 32, 48] {
            drop(kept(machine, sm_count)?);
        }
        // Contexts without kept streams are destroyed as usual.
        for sm_count in [64, 72, 80] {
            drop(partition(device, sm_count)?);
        }
        assert_eq!(sim.live().green_contexts, 4);
        assert_eq!(device.release_idle(), 1);
        device.set_idle_limit(0);
        let ContextCounts { created, idle, .. } = device.context_counts();
        assert_eq!((created, idle, sim.live().green_contexts), (6, 3, 3));
        // However often the same partitions are created, kept streams and their contexts do not accumulate.
        for _ in 0..20 {
            for sm_count in [16, 32, 48] {
                drop(kept(machine, sm_count)?);
            }
        }
        assert_eq!((sim.live().green_contexts, sim.live().streams), (3, 3));
        assert_eq!(device.context_counts().created, 6);
        Ok(())
    })
}

#[test]
fn the_next_user_of_a_kept_stream_waits_for_others_work() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { device, .. } = machine;
        let kernel = machine.kernel(LONG)?;
        drop(kept(machine, 16)?);
        // An overlapping partition is dropped while its work runs.
        let wide = partition(device, 32)?;
        let busy = wide.create_stream(StreamOptions::default())?;
        launch(&busy, &kernel)?;
        drop((busy, wide));
        let (stream, _) = kept(machine, 16)?;
        assert!(!stream.is_idle()?, "the stream does not wait for the work on its SMs");
        stream.synchronize()?;
        Ok(())
    })
}

#[test]
fn a_kept_stream_that_foreign_code_captures_is_not_given_out() -> Outcome {
    each_failing_driver(|machine| {
        let context = partition(&machine.device, 16)?;
        let stream = context.create_stream(StreamOptions::default())?;
        stream.keep_alive()?;
        let raw = stream.as_raw();
        raw::begin_capture(&machine.device, raw)?;
        drop(stream);
        let other = context.create_stream(StreamOptions::default())?;
        assert_ne!(other.as_raw(), raw);
        let graph = raw::end_capture(&machine.device, raw)?;
        // SAFETY: the graph was captured above, and no other code uses it.
        drop(unsafe { Graph::from_raw_owned(&machine.device, graph) }?);
        assert_eq!(context.create_stream(StreamOptions::default())?.as_raw(), raw);
        Ok(())
    })
}

#[test]
fn keeping_streams_of_others_does_nothing() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        let primary = device.primary_context()?;
        let stream = primary.create_stream(StreamOptions::default())?;
        stream.keep_alive()?;
        drop((stream, primary));
        assert_eq!((sim.live().streams, sim.live().green_contexts), (0, 0));
        Ok(())
    })
}

#[test]
fn a_failing_call_does_not_destroy_a_kept_stream() -> Outcome {
    each_failing_driver(|machine| {
        let Machine { sim, device } = machine;
        let (stream, _) = kept(machine, 16)?;
        let raw = stream.as_raw();
        drop(stream);
        let take = || partition(device, 16)?.create_stream(StreamOptions::default().priority(-2));
        sim.clear_calls();
        sim.record_calls(true);
        drop(take()?);
        sim.record_calls(false);
        let calls: Vec<_> = sim.call_log().iter().map(|call| call.function).collect();
        for (index, &function) in calls.iter().enumerate() {
            let nth = calls[..=index].iter().filter(|other| **other == function).count() as u64;
            sim.fail(Fault::on(function).nth(nth))?;
            let taken = take();
            sim.clear_faults();
            drop(taken);
            let again = take()?;
            assert_eq!(again.as_raw(), raw, "{function}, call {nth}");
        }
        Ok(())
    })
}

/// Foreign code borrows the kept stream while another set takes it into use. It then has two objects for a while.
#[test]
fn a_kept_stream_that_was_borrowed_early_is_asked_for_captures() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = day_and_night(&device)?;
    let kept = stream_of(&plans[0], "decode")?;
    kept.keep_alive()?;
    let address = kept.as_raw().expose_provenance();
    drop((kept, plans, set));

    let (send, receive) = mpsc::channel();
    let driver = device.driver().clone();
    sim.run_before("cuStreamIsCapturing", 1, move || {
        let raw = ptr::with_exposed_provenance_mut(address);
        // SAFETY: kept streams are never destroyed.
        let borrowed = unsafe { Stream::from_raw_borrowed(&driver, raw, ()) };
        send.send(borrowed).expect("the test waits");
    })?;
    let (set, plans) = day_and_night(&device)?;
    let borrowed = receive.try_recv()??;
    let stream = stream_of(&plans[0], "decode")?;
    assert_eq!(stream, borrowed);
    drop(borrowed);
    let graph = stream.capture(CaptureMode::Relaxed, || {
        let error = set.switch(&plans[1], SwitchOptions::default()).expect_err("it is captured");
        assert!(matches!(error, PlanError::Capturing { .. }), "{error}");
        Ok::<(), green_ctx::Error>(())
    });
    graph?;
    Ok(())
}

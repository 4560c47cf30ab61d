//! The order of work when SMs change owners: when plans are switched, when partitions end, and when a graph
//! runs in several partitions.

mod overlapping;
mod shares;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use green_ctx::{
    Graph, Kernel, Plan, PlanRequest, Stream, StreamOptions, call,
    context::{CloseReason, Context},
    event::EventOptions,
    graph::{CaptureMode, GraphExec},
    plan::SwitchOptions,
};

use crate::LONG;
use crate::common::plans::{
    context_of, day_and_night, decode, overlapping, request, set, stream_of,
};
use crate::common::{Outcome, partition, raw, simulated};
use crate::work::{
    self, SHORT, assert_no_conflict, conflict, launch, launch_on_current, launch_on_default,
    old_and_new,
};

const FENCED: fn() -> SwitchOptions = SwitchOptions::default;

/// When partitions get a second stream. With one stream, a fence makes that stream wait; with more, the whole context.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Second {
    Never,
    BeforeTheWork,
    /// After the first stream has been made to wait.
    WhileTheyWait,
}

/// A fence holds across any number of switches, even if the plans in between run nothing.
#[test]
fn work_is_waited_for_until_it_is_done() -> Outcome {
    for second in [Second::Never, Second::BeforeTheWork, Second::WhileTheyWait] {
        let (sim, device) = simulated("h200")?;
        let (set, plans) = set(
            &device,
            [
                ("a", request(&[("wide", 64)])),
                ("b", request(&[("narrow", 16), ("other", 48)])),
                ("c", request(&[("middle", 32)])),
                ("d", request(&[("broad", 40)])),
            ],
        )?;
        let [old, new] = old_and_new(&sim, &device)?;
        let all = || plans.iter().flat_map(|plan| plan.partitions());
        let more = || -> green_ctx::Result<Vec<Stream>> {
            all().map(|part| part.create_stream(StreamOptions::default())).collect()
        };
        let mut kept = Vec::new();
        if second == Second::BeforeTheWork {
            kept = more()?;
        }
        launch(&stream_of(&plans[0], "wide")?, &old)?;
        set.switch(&plans[1], FENCED())?;
        if second == Second::WhileTheyWait {
            kept = more()?;
        }
        for plan in [3, 1, 2] {
            set.switch(&plans[plan], FENCED())?;
        }
        let middle = context_of(&plans[2], "middle")?;
        let late = middle.create_stream(StreamOptions::default())?;
        let first = stream_of(&plans[2], "middle")?;
        for stream in
            kept.iter().filter(|stream| stream.context() == &middle).chain([&first, &late])
        {
            launch(stream, &new)?;
        }
        let launches = sim.launches();
        assert_eq!(launches.len(), 3 + usize::from(second != Second::Never));
        assert!(conflict(&launches).is_none(), "{second:?}: {:?}", conflict(&launches));
    }
    Ok(())
}

/// A partition that keeps its SMs does not wait in a switch, so its stream may be captured.
#[test]
fn a_partition_that_stays_may_be_captured() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = overlapping(&device)?;
    let kernel = work::kernel(&sim, &device, "old", LONG)?;
    launch(&stream_of(&plans[0], "x")?, &kernel)?;
    set.switch(&plans[1], FENCED())?;
    let stream = stream_of(&plans[1], "y")?;
    let graph = stream.capture(CaptureMode::Relaxed, || {
        set.switch(&plans[2], FENCED()).expect("y waits for nothing new");
        launch(&stream, &kernel)
    })?;
    assert_eq!(graph.node_count()?, 1);
    Ok(())
}

/// A switch without fences leaves its waits to the next switch with fences.
#[test]
fn a_switch_without_fences_is_made_up_for() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = set(
        &device,
        [("a", request(&[("x", 64)])), ("b", request(&[("y", 32)])), ("c", request(&[("z", 48)]))],
    )?;
    let [old, new] = old_and_new(&sim, &device)?;
    launch(&stream_of(&plans[0], "x")?, &old)?;
    set.switch(&plans[1], FENCED().fence(false))?;
    set.switch(&plans[2], FENCED())?;
    launch(&stream_of(&plans[2], "z")?, &new)?;
    assert_no_conflict(&sim, 2);
    Ok(())
}

/// One thread drops streams and adopts foreign ones while another switches plans. The streams' owners use the
/// partition when they are dropped. This must not deadlock.
#[test]
fn owners_may_use_the_partition_while_plans_are_switched() -> Outcome {
    struct Owner {
        context: Context,
        raw: green_ctx::sys::CUstream,
    }
    // SAFETY: a stream's handle belongs to the process, not to a thread.
    unsafe impl Send for Owner {}
    // SAFETY: as above.
    unsafe impl Sync for Owner {}
    impl Drop for Owner {
        fn drop(&mut self) {
            drop(self.context.create_stream(StreamOptions::default()));
            raw::destroy_stream(self.context.device(), self.raw).expect("the owner destroys it");
        }
    }
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        let outcome = || -> Outcome {
            let (_sim, device) = simulated("h200")?;
            let (set, plans) = day_and_night(&device)?;
            let contexts = [context_of(&plans[0], "decode")?, context_of(&plans[1], "decode")?];
            thread::scope(|scope| {
                let adopting = scope.spawn(|| -> green_ctx::Result<()> {
                    for round in 0..4000 {
                        let context = &contexts[round % 2];
                        let green = context.as_raw_green().expect("a green context");
                        let adopt = |_| {
                            let raw = raw::stream_of(&device, green)?;
                            let owner = Owner { context: context.clone(), raw };
                            // SAFETY: the owner keeps the stream and its context alive.
                            unsafe { Stream::from_raw_borrowed(device.driver(), raw, owner) }
                        };
                        drop((0..16).map(adopt).collect::<Result<Vec<_>, _>>()?);
                    }
                    Ok(())
                });
                for round in 1.. {
                    set.switch(&plans[round % 2], FENCED()).expect("no capture");
                    if adopting.is_finished() {
                        break;
                    }
                }
                adopting.join().expect("no panic")
            })?;
            Ok(())
        };
        let _ = end.send(outcome().map_err(|error| error.to_string()));
    });
    Ok(ended.recv_timeout(Duration::from_secs(60)).map_err(|_| "a deadlock")??)
}

#[test]
fn streams_that_come_and_go_leave_nothing() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = day_and_night(&device)?;
    set.switch(&plans[1], FENCED())?;
    let decode = context_of(&plans[1], "decode")?;
    let before = sim.live();
    for _ in 0..10_000 {
        drop(decode.create_stream(StreamOptions::default())?);
    }
    set.switch(&plans[0], FENCED())?;
    assert_eq!(sim.live(), before);

    // A foreign stream that is adopted many times costs a switch no more calls than one that is adopted once.
    let decode = context_of(&plans[0], "decode")?;
    let raw = raw::stream(&decode)?;
    for _ in 0..10_000 {
        // SAFETY: the stream is destroyed below, and `decode` keeps its context alive.
        drop(unsafe { Stream::from_raw_borrowed(device.driver(), raw, ()) }?);
    }
    sim.clear_calls();
    set.switch(&plans[1], FENCED())?;
    assert!(sim.calls().values().sum::<u64>() < 20, "{:?}", sim.calls());
    raw::destroy_stream(&device, raw)?;
    assert_eq!(sim.live(), before);
    Ok(())
}

#[test]
fn many_streams_are_fenced_at_once() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = day_and_night(&device)?;
    let mut streams = Vec::new();
    for partition in plans.iter().flat_map(|plan| plan.partitions()) {
        for _ in 1..128 {
            streams.push(partition.create_stream(StreamOptions::default())?);
        }
    }
    sim.clear_calls();
    set.switch(&plans[1], FENCED())?;
    let mut calls = sim.calls();
    calls.remove("cuStreamIsCapturing");
    assert!(calls.values().sum::<u64>() <= 8, "{calls:?}");
    Ok(())
}

#[test]
fn plans_that_come_and_go_leave_nothing() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = set(&device, [("day", decode(16))])?;
    let kernel = work::kernel(&sim, &device, "old", LONG)?;
    let before = sim.live();
    let rounds = |count| -> Outcome {
        for round in 0..count {
            let next = set.prepare(PlanRequest::new("next", decode(24 + 8 * (round % 5))))?;
            set.switch(&next, FENCED())?;
            launch(&stream_of(&next, "decode")?, &kernel)?;
            set.switch(&plans[0], FENCED())?;
            drop(next);
            set.retire("next")?;
        }
        Ok(())
    };
    rounds(200)?;
    device.primary_context()?.synchronize()?;
    rounds(1)?;
    device.release_idle();
    let live = sim.live();
    assert!(live.events <= before.events + 4, "{live:?} after {before:?}");
    assert!(live.primary_retains <= before.primary_retains + 4, "{live:?} after {before:?}");
    Ok(())
}

/// A context can outlive its plan. Its SMs still belong to the set, so closing it must not return them as a group.
#[test]
fn the_sms_of_a_set_are_not_handed_out() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, mut plans) = day_and_night(&device)?;
    let context = context_of(&plans[1], "decode")?;
    drop(plans.pop());
    set.retire("night")?;
    let live = sim.live();
    let error = context.close().expect_err("the SMs belong to the set");
    assert!(matches!(error.reason, CloseReason::InPlans), "{}", error.reason);
    assert_eq!(sim.live(), live);
    // The refused context works as before, and ends with its last handle.
    drop(error.given.create_stream(StreamOptions::default())?);
    Ok(())
}

/// Captures a graph with one kernel in each of two partitions, by a fork from the first stream.
fn forked(
    first: &Stream,
    second: &Stream,
    kernel: &Kernel,
) -> Result<Graph, Box<dyn std::error::Error>> {
    Ok(first.capture(CaptureMode::Relaxed, || {
        second.wait_for(first)?;
        launch(second, kernel)?;
        launch(first, kernel)?;
        first.wait_for(second)
    })?)
}

fn launch_graph(stream: &Stream, graph: &GraphExec) -> green_ctx::Result<()> {
    // SAFETY: the graph's kernels have no parameters and touch no memory.
    unsafe { stream.launch_graph(graph) }
}

#[test]
fn a_graph_is_waited_for_by_who_gets_its_sms() -> Outcome {
    for close in [true, false] {
        let (sim, device) = simulated("h200")?;
        let (here, there) = (partition(&device, 16)?, partition(&device, 32)?);
        let [old, new] = old_and_new(&sim, &device)?;
        let stream = here.create_stream(StreamOptions::default())?;
        let graph = {
            let other = there.create_stream(StreamOptions::default())?;
            forked(&stream, &other, &old)?
        };
        let exec = graph.instantiate()?;
        launch_graph(&stream, &exec)?;
        drop((graph, exec));
        let next = if close {
            device.create_context(there.close()?.ok_or("a group")?)?
        } else {
            drop(there);
            partition(&device, 32)?
        };
        launch(&next.create_stream(StreamOptions::default())?, &new)?;
        assert_no_conflict(&sim, 3);
    }
    Ok(())
}

#[test]
fn a_graph_of_another_partition_takes_part_in_switches() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (set, plans) = set(
        &device,
        [
            ("a", request(&[("stays", 16), ("goes", 32)])),
            ("b", request(&[("stays", 16), ("comes", 48)])),
        ],
    )?;
    let [old, new] = old_and_new(&sim, &device)?;
    let [stays, goes] = ["stays", "goes"].map(|name| stream_of(&plans[0], name));
    let (stays, goes) = (stays?, goes?);
    let exec = forked(&stays, &goes, &old)?.instantiate()?;
    launch_graph(&stays, &exec)?;
    set.switch(&plans[1], FENCED())?;
    launch(&stream_of(&plans[1], "comes")?, &new)?;
    assert_no_conflict(&sim, 3);

    // The other direction: the graph's nodes wait for the previous work in the partition that they run in.
    sim.take_launches();
    let comes = stream_of(&plans[1], "comes")?;
    launch(&comes, &old)?;
    set.switch(&plans[0], FENCED())?;
    launch_graph(&stays, &exec)?;
    assert_no_conflict(&sim, 3);
    Ok(())
}

#[test]
fn graphs_launched_elsewhere_leave_nothing() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (here, there) = (partition(&device, 16)?, partition(&device, 32)?);
    let kernel = work::kernel(&sim, &device, "old", SHORT)?;
    let stream = here.create_stream(StreamOptions::default())?;
    let other = there.create_stream(StreamOptions::default())?;
    let exec = forked(&stream, &other, &kernel)?.instantiate()?;
    launch_graph(&stream, &exec)?;
    let before = sim.live();
    for _ in 0..1000 {
        launch_graph(&stream, &exec)?;
    }
    assert_eq!(sim.live(), before);
    Ok(())
}

#[test]
fn default_streams_are_fenced_when_sms_change_hands() -> Outcome {
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let (sim, device) = simulated("h200")?;
        let [old, new] = old_and_new(&sim, &device)?;
        let run = |context: &Context, kernel: &Kernel, on_default: bool| match on_default {
            true => launch_on_default(context, kernel),
            false => launch(&context.create_stream(StreamOptions::default())?, kernel),
        };
        // A partition of 48 SMs, so that its context differs from the first one's. Created before the work
        // starts, since creating a context waits for all work of the device.
        drop(partition(&device, 48)?);
        let first = partition(&device, 32)?;
        run(&first, &old, before)?;
        drop(first);
        let second = partition(&device, 48)?;
        run(&second, &new, after)?;
        assert_no_conflict(&sim, 2);
    }
    Ok(())
}

#[test]
fn default_streams_take_part_in_switches() -> Outcome {
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let (sim, device) = simulated("h200")?;
        let (set, plans) = day_and_night(&device)?;
        let [old, new] = old_and_new(&sim, &device)?;
        let run = |plan: &Plan, name: &str, kernel: &Kernel, on_default: bool| -> Outcome {
            match on_default {
                true => Ok(launch_on_default(&context_of(plan, name)?, kernel)?),
                false => Ok(launch(&stream_of(plan, name)?, kernel)?),
            }
        };
        run(&plans[0], "prefill", &old, before)?;
        set.switch(&plans[1], FENCED())?;
        run(&plans[1], "decode", &new, after)?;
        // The same once more, now that the raw handles of the contexts were given out.
        run(&plans[1], "prefill", &old, before)?;
        set.switch(&plans[0], FENCED())?;
        run(&plans[0], "prefill", &new, after)?;
        assert_no_conflict(&sim, 4);
    }
    Ok(())
}

/// Adopting a stream that is being captured leaves the capture valid, and the stream is fenced nevertheless.
#[test]
fn adopting_a_captured_stream_leaves_the_capture() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let [old, new] = old_and_new(&sim, &device)?;
    let first = partition(&device, 32)?;
    launch(&first.create_stream(StreamOptions::default())?, &old)?;
    drop(first);
    let second = partition(&device, 32)?;
    let raw = raw::stream(&second)?;
    raw::begin_capture(&device, raw)?;
    // SAFETY: the stream was created above, and no other code uses it.
    let stream = unsafe { Stream::from_raw_owned(&second, raw) }?;
    let graph = raw::end_capture(&device, raw)?;
    // SAFETY: the graph was captured above, and no other code uses it.
    drop(unsafe { Graph::from_raw_owned(&device, graph) }?);
    launch(&stream, &new)?;
    assert_no_conflict(&sim, 2);
    let event = device.create_event(EventOptions::default())?;
    stream.record(&event)?;
    Ok(())
}

/// Two quarantined partitions share one fence when the driver ends. The fence's event must be destroyed once.
#[test]
fn a_fence_ends_once() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let old = work::kernel(&sim, &device, "old", LONG)?;
    let partitions = || -> green_ctx::Result<Vec<Context>> {
        let groups = device.resources().sm()?.split([16, 32])?.groups;
        groups.into_iter().map(|group| Ok(device.create_context(group)?)).collect()
    };
    // Created before the work starts, since creating a context waits for all work of the device.
    drop(partitions()?);
    let first = partition(&device, 48)?;
    launch(&first.create_stream(StreamOptions::default())?, &old)?;
    drop(first);
    for context in partitions()? {
        raw::begin_capture(&device, raw::stream(&context)?)?;
    }
    drop((old, device));
    let calls = sim.calls();
    assert!(calls["cuEventDestroy"] <= calls["cuEventCreate"], "{calls:?}");
    assert!(calls["cuDevicePrimaryCtxRelease"] <= calls["cuDevicePrimaryCtxRetain"], "{calls:?}");
    Ok(())
}

/// From a stream's raw handle, other code can get the context and launch on its default stream. A switch must
/// fence that work too.
#[test]
fn a_stream_s_handle_leads_to_its_context() -> Outcome {
    let (sim, device) = simulated("h200@13.0")?;
    let (set, plans) = day_and_night(&device)?;
    let [old, new] = old_and_new(&sim, &device)?;
    let api = device.driver().api();
    let theirs = stream_of(&plans[0], "prefill")?.as_raw();
    let (mut context, mut green) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the stream is alive, and both pointers outlive the call.
    unsafe { call!(api, cuStreamGetCtx(theirs, &raw mut context, &raw mut green)) }?;
    // SAFETY: the green context is alive, and `context` outlives the call.
    unsafe { call!(api, cuCtxFromGreenCtx(&raw mut context, green)) }?;
    raw::push(&device, context)?;
    launch_on_current(&device, &old)?;
    raw::pop(&device)?;
    set.switch(&plans[1], FENCED())?;
    launch(&stream_of(&plans[1], "decode")?, &new)?;
    assert_no_conflict(&sim, 2);
    Ok(())
}

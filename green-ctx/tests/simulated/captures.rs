//! A capture on one thread while another thread works.

use std::ptr;
use std::sync::mpsc;
use std::thread;

use green_ctx::{
    DeviceBuffer, Error, Graph, PlanRequest, PlanSet, SplitRequest, Stream, StreamOptions, call,
    graph::CaptureMode, memory::PinnedBuffer, plan::SwitchOptions, verify,
};

use crate::common::{Outcome, partition};
use crate::{LONG, Machine, each_composing_driver, each_driver, launch};

/// Calls `work` while another thread captures a stream in global mode.
fn while_captured(
    stream: &Stream,
    work: impl FnOnce() -> Outcome,
) -> Result<Graph, Box<dyn std::error::Error>> {
    let (begun, begins) = mpsc::channel();
    let (over, ends) = mpsc::channel::<()>();
    let captured = thread::scope(|scope| {
        let capturing = scope.spawn(move || {
            stream.capture(CaptureMode::Global, || {
                begun.send(()).expect("the test waits");
                // Returns when `over` is dropped, even if `work` fails.
                let _ = ends.recv();
                Ok::<(), Error>(())
            })
        });
        begins.recv()?;
        let done = work();
        drop(over);
        let captured = capturing.join().map_err(|_| "the capture panicked")?;
        done?;
        Ok::<_, Box<dyn std::error::Error>>(captured)
    })?;
    captured.map_err(|error| format!("the capture was invalidated: {error}").into())
}

/// Creates a stream of the primary context that synchronises with the default stream.
fn blocking_stream(machine: &Machine) -> green_ctx::Result<Stream> {
    let primary = machine.device.primary_context()?;
    let _current = primary.make_current()?;
    let mut made = ptr::null_mut();
    // SAFETY: the context is current, and `made` outlives the call.
    unsafe { call!(machine.driver().api(), cuStreamCreate(&raw mut made, 0)) }?;
    // SAFETY: the stream was created above in this context, and no other code has its handle.
    unsafe { Stream::from_raw_owned(&primary, made) }
}

type Work = fn(&Machine) -> Outcome;

/// Work on one thread that must not affect a capture on another.
const WORK: [(&str, Work); 9] = [
    ("a zeroed buffer", |machine| {
        drop(DeviceBuffer::<u32>::zeroed(&machine.device, 8)?);
        Ok(())
    }),
    ("a buffer of values", |machine| {
        let stream = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let buffer = DeviceBuffer::from_slice(&machine.device, &[1_u32, 2, 3])?;
        assert_eq!(buffer.read(&stream)?, [1, 2, 3]);
        Ok(())
    }),
    ("memory in stream order, and pinned", |machine| {
        let stream = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let mut values = PinnedBuffer::<u32>::zeroed(&machine.device, 8)?;
        let buffer = stream.allocate(8)?;
        buffer.copy_from(&mut values, &stream)?;
        assert_eq!(values.as_slice()?, [0; 8]);
        Ok(())
    }),
    ("a library", |machine| {
        let kernel = machine.kernel(LONG)?;
        launch(
            &machine.device.primary_context()?.create_stream(StreamOptions::default())?,
            &kernel,
        )?;
        Ok(())
    }),
    ("partitions", |machine| {
        let kernel = machine.kernel(LONG)?;
        let busy = partition(&machine.device, 16)?;
        launch(&busy.create_stream(StreamOptions::default())?, &kernel)?;
        drop(busy);
        let again = partition(&machine.device, 16)?;
        launch(&again.create_stream(StreamOptions::default())?, &kernel)?;
        again.close()?;
        machine.device.release_idle();
        Ok(())
    }),
    ("plans", |machine| {
        let request = |count| SplitRequest::new().group("one", count).rest("other");
        let set = PlanSet::new(machine.device.rest("all")?, PlanRequest::new("a", request(16)))?;
        let next = set.prepare(PlanRequest::new("b", request(32)))?;
        let kernel = machine.kernel(LONG)?;
        let active = set.active();
        launch(active.partition("one").ok_or("one")?.stream(), &kernel)?;
        set.switch(&next, SwitchOptions::default())?;
        Ok(())
    }),
    ("graphs", |machine| {
        let kernel = machine.kernel(LONG)?;
        let partition = partition(&machine.device, 16)?;
        let stream = partition.create_stream(StreamOptions::default())?;
        let graph = stream.capture(CaptureMode::ThreadLocal, || launch(&stream, &kernel))?;
        let exec = graph.retarget(&machine.device.primary_context()?)?.instantiate()?;
        exec.upload(&stream)?;
        // SAFETY: the graph's kernel touches no memory.
        unsafe { stream.launch_graph(&exec) }?;
        Ok(())
    }),
    ("verification", |machine| {
        let partitions = [partition(&machine.device, 16)?];
        assert!(verify::contexts(&partitions, LONG / 1000)?.ok());
        Ok(())
    }),
    ("what fits", |machine| {
        let kernel = machine.kernel(LONG)?;
        let config = green_ctx::LaunchConfig::new(1, 32);
        kernel.fit(&partition(&machine.device, 16)?, config)?;
        Ok(())
    }),
];

/// Waits for graphs that ran in a partition of 16 SMs. The next partition on the same SMs waits for them
/// through its fences; waits of the primary context do not cover them.
fn wait_for_graphs(machine: &Machine) -> Outcome {
    partition(&machine.device, 16)?.create_stream(StreamOptions::default())?.synchronize()?;
    Ok(())
}

/// The last handle of an object may be dropped on any thread at any time.
#[test]
fn what_ends_on_one_thread_invalidates_no_capture_of_another() -> Outcome {
    each_driver(|machine| {
        let reported = machine.hook();
        let captured = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let buffer = DeviceBuffer::<u32>::zeroed(&machine.device, 8)?;
        let kernel = machine.kernel(LONG)?;
        let partition = partition(&machine.device, 16)?;
        let stream = partition.create_stream(StreamOptions::default())?;
        let graph = stream.capture(CaptureMode::default(), || launch(&stream, &kernel))?;
        let exec = graph.instantiate()?;
        // SAFETY: the graph's kernel touches no memory.
        unsafe { stream.launch_graph(&exec) }?;
        let live = machine.sim.live();
        while_captured(&captured, || {
            drop(buffer);
            assert_eq!(machine.sim.live().allocations, live.allocations - 1);
            drop((kernel, stream, graph, exec, partition));
            machine.device.release_idle();
            Ok(())
        })?;
        assert_eq!(*reported.lock().expect("no panic"), [""; 0]);
        wait_for_graphs(machine)
    })
}

#[test]
fn no_work_of_one_thread_invalidates_a_capture_of_another() -> Outcome {
    each_composing_driver(|machine| {
        let reported = machine.hook();
        let primary = machine.device.primary_context()?;
        for captured in
            [primary.create_stream(StreamOptions::default())?, blocking_stream(machine)?]
        {
            for (name, work) in WORK {
                let live = machine.sim.live();
                while_captured(&captured, || work(machine))
                    .map_err(|error| format!("{name}: {error}"))?;
                assert_eq!(*reported.lock().expect("no panic"), [""; 0], "{name}");
                primary.synchronize()?;
                wait_for_graphs(machine)?;
                machine.device.release_idle();
                assert_eq!(machine.sim.live(), live, "{name} left something");
            }
        }
        Ok(())
    })
}

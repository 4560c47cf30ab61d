//! What waits for what when SMs change hands, shown by events: a stream whose work may not begin
//! yet is not idle, and idle right after what it waits for.

use std::time::Duration;

use green_ctx::{
    Device, DeviceBuffer, Event, Kernel, Stream, StreamOptions, context::Context,
    event::EventOptions, graph::CaptureMode, plan::SwitchOptions, stream::DefaultStream,
};

use crate::busy::keep_busy;
use crate::common::plans::{context_of, overlapping};
use crate::common::{Outcome, device, kernels, partition};

const LONG: Duration = Duration::from_millis(50);

/// What keeps an SM busy.
struct Work {
    device: Device,
    kernel: Kernel,
    results: DeviceBuffer<u64>,
}

impl Work {
    fn new(device: &Device) -> green_ctx::Result<Work> {
        let (kernel, results) = (kernels::probe(device)?, DeviceBuffer::zeroed(device, 3)?);
        Ok(Work { device: device.clone(), kernel, results })
    }

    /// Loads the kernel into a context: what follows is about time.
    fn load(&self, context: &Context) -> green_ctx::Result<()> {
        let stream = context.create_stream(StreamOptions::default())?;
        keep_busy(&stream, &self.kernel, &self.results, Duration::ZERO)?;
        stream.synchronize()
    }

    /// Keeps a stream busy; the event says when that is over.
    fn start(&self, stream: &Stream) -> green_ctx::Result<Event> {
        keep_busy(stream, &self.kernel, &self.results, LONG)?;
        let done = self.device.create_event(EventOptions::default())?;
        stream.record(&done)?;
        Ok(done)
    }
}

/// Asserts that an event comes after another, whose work takes long.
fn assert_waits(later: &Event, work: &Event) -> Outcome {
    let (done, over) = (later.is_complete()?, work.is_complete()?);
    assert!(!done || over, "it did not wait");
    later.synchronize()?;
    assert!(work.is_complete()?, "it did not wait long enough");
    Ok(())
}

fn recorded(stream: &Stream) -> green_ctx::Result<Event> {
    let event = stream.context().device().create_event(EventOptions::default())?;
    stream.record(&event)?;
    Ok(event)
}

/// Two switches later, streams of every kind still wait: one that there was, one that is made then, the
/// default stream.
#[test]
fn a_fence_is_kept_over_switches() -> Outcome {
    let device = device()?;
    let (set, plans) = overlapping(&device)?;
    let work = Work::new(&device)?;
    for several in [false, true] {
        let (x, y) = (context_of(&plans[0], "x")?, context_of(&plans[2], "y")?);
        set.switch(&plans[0], SwitchOptions::default())?;
        work.load(&x)?;
        let more = if several { Some(y.create_stream(StreamOptions::default())?) } else { None };
        let first = plans[0].partition("x").ok_or("x")?.stream().clone();
        let done = work.start(&first)?;
        set.switch(&plans[1], SwitchOptions::default())?;
        set.switch(&plans[2], SwitchOptions::default())?;
        let late = y.create_stream(StreamOptions::default())?;
        let there = plans[2].partition("y").ok_or("y")?.stream().clone();
        let on_default = device.create_event(EventOptions::default())?;
        {
            let _current = y.make_current()?;
            DefaultStream::Legacy.record(&on_default)?;
        }
        for event in [recorded(&late)?, recorded(&there)?, on_default] {
            assert_waits(&event, &done)?;
        }
        drop(more);
    }
    Ok(())
}

/// The default stream of a partition waits for the former owner's work before anybody has used it.
#[test]
fn a_default_stream_waits_for_the_former_owner() -> Outcome {
    let device = device()?;
    device.release_idle();
    // Made before, since making a context waits for all work of the device.
    drop(partition(&device, 16)?);
    let work = Work::new(&device)?;
    let first = partition(&device, 8)?;
    work.load(&first)?;
    let done = work.start(&first.create_stream(StreamOptions::default())?)?;
    drop(first);
    let second = partition(&device, 16)?;
    let on_default = device.create_event(EventOptions::default())?;
    {
        let _current = second.make_current()?;
        DefaultStream::Legacy.record(&on_default)?;
    }
    assert_waits(&on_default, &done)
}

/// A graph with a node in another partition: closing that waits for it, and so does who gets its SMs.
#[test]
fn a_graph_launched_elsewhere_is_waited_for() -> Outcome {
    let device = device()?;
    device.release_idle();
    let work = Work::new(&device)?;
    for close in [true, false] {
        let (here, there) = (partition(&device, 8)?, partition(&device, 16)?);
        work.load(&there)?;
        let stream = here.create_stream(StreamOptions::default())?;
        let graph = {
            let other = there.create_stream(StreamOptions::default())?;
            stream.capture(CaptureMode::Relaxed, || {
                other.wait_for(&stream)?;
                keep_busy(&other, &work.kernel, &work.results, LONG)?;
                stream.wait_for(&other)
            })?
        };
        let exec = graph.instantiate()?;
        // SAFETY: the kernel writes three words, which the buffer has, and the buffer is kept.
        unsafe { stream.launch_graph(&exec) }?;
        let done = recorded(&stream)?;
        drop((graph, exec));
        if close {
            drop(there.close()?);
            assert!(done.is_complete()?, "it was closed before the graph was over");
        } else {
            drop(there);
            let next = partition(&device, 16)?;
            let late = next.create_stream(StreamOptions::default())?;
            assert_waits(&recorded(&late)?, &done)?;
        }
    }
    Ok(())
}

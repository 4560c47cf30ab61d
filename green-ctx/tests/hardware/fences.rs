//! The order of work when SMs change owners, observed through events.
//!
//! A stream whose work must wait is not idle. It becomes idle soon after the work that it waits for.

use std::time::Duration;

use green_ctx::{
    Device, DeviceBuffer, Event, Kernel, Stream, StreamOptions, context::Context,
    event::EventOptions, graph::CaptureMode, plan::SwitchOptions, stream::DefaultStream,
};

use crate::busy::keep_busy;
use crate::common::plans::{context_of, overlapping};
use crate::common::{Outcome, device, kernels, partition};

const LONG: Duration = Duration::from_millis(50);

/// A kernel that keeps an SM busy.
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

    /// Loads the kernel into a context, since loading would disturb the timing later.
    fn load(&self, context: &Context) -> green_ctx::Result<()> {
        let stream = context.create_stream(StreamOptions::default())?;
        keep_busy(&stream, &self.kernel, &self.results, Duration::ZERO)?;
        stream.synchronize()
    }

    /// Keeps a stream busy for [`LONG`]. Returns an event at the end of the work.
    fn start(&self, stream: &Stream) -> green_ctx::Result<Event> {
        keep_busy(stream, &self.kernel, &self.results, LONG)?;
        let done = self.device.create_event(EventOptions::default())?;
        stream.record(&done)?;
        Ok(done)
    }
}

/// Asserts that `later` completes after `work`, which takes long.
fn assert_waits(later: &Event, work: &Event) -> Outcome {
    let (done, over) = (later.is_complete()?, work.is_complete()?);
    assert!(!done || over, "the later work did not wait");
    later.synchronize()?;
    assert!(work.is_complete()?, "the later work did not wait until the end");
    Ok(())
}

fn recorded(stream: &Stream) -> green_ctx::Result<Event> {
    let event = stream.context().device().create_event(EventOptions::default())?;
    stream.record(&event)?;
    Ok(event)
}

/// After two switches, every kind of stream still waits: a stream that existed before, a stream created
/// afterwards, and the default stream.
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

/// The default stream of a new partition waits for the previous owner's work, even if it is the first stream to
/// be used.
#[test]
fn a_default_stream_waits_for_the_former_owner() -> Outcome {
    let device = device()?;
    device.release_idle();
    // Created before the work starts, since creating a context waits for all work of the device.
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

/// A graph with a node in another partition: closing that partition waits for the graph, and so does the next
/// owner of its SMs.
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
        // SAFETY: the kernel writes three words, `work.results` has space for them, and `work` is kept until the end.
        unsafe { stream.launch_graph(&exec) }?;
        let done = recorded(&stream)?;
        drop((graph, exec));
        if close {
            drop(there.close()?);
            assert!(done.is_complete()?, "the close did not wait for the graph");
        } else {
            drop(there);
            let next = partition(&device, 16)?;
            let late = next.create_stream(StreamOptions::default())?;
            assert_waits(&recorded(&late)?, &done)?;
        }
    }
    Ok(())
}

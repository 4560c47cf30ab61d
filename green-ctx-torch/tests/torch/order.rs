//! Work submitted before entering runs before the work inside, which runs before the work submitted after leaving.
#![allow(unsafe_code, reason = "sets PyTorch's streams")]

use std::ptr;
use std::thread;

use green_ctx::{
    DeviceBuffer, Stream, StreamOptions, context::Context, event::EventOptions, graph::CaptureMode,
    stream::DefaultStream,
};
use green_ctx_torch::raw_stream;
use green_ctx_torch::scope::{self, Mode};

use crate::common::{Machine, Outcome};
use crate::fake;

const MODES: [Mode; 2] = [Mode::Stream, Mode::Context];

/// Writes the tensor, reads and writes it in a partition, then reads and writes it again outside.
fn there_and_back(machine: &Machine, stream: &Stream, mode: Mode) -> Outcome {
    let before = (fake::current(0), machine.current());
    machine.produce()?;
    scope::enter_as(&machine.torch, stream, mode)?;
    assert_eq!(machine.torch.current_stream(0)?, raw_stream(stream));
    let context = if mode == Mode::Context { stream.context().as_raw() } else { before.1 };
    assert_eq!(machine.current(), context);
    machine.consume()?;
    machine.produce()?;
    scope::leave(stream.context())?;
    assert_eq!((fake::current(0), machine.current()), before);
    machine.consume()?;
    machine.produce()
}

#[test]
fn from_every_stream_that_can_be_current() -> Outcome {
    type Start = fn(&Machine) -> Result<Vec<Stream>, Box<dyn std::error::Error>>;
    let starts: [(&str, Start); 4] = [
        ("the default stream", |_| Ok(Vec::new())),
        ("a stream of PyTorch's pool", |machine| {
            let stream = machine.pool_stream()?;
            fake::set_own(raw_stream(&stream), 0);
            Ok(vec![stream])
        }),
        ("a stream from outside", |machine| {
            let stream = machine.pool_stream()?;
            // SAFETY: the stream lives until the test ends.
            unsafe { machine.torch.set_current_stream(raw_stream(&stream), 0) }?;
            Ok(vec![stream])
        }),
        ("a stream of a partition", |machine| {
            let stream = machine.stream(1)?;
            fake::set_own(raw_stream(&stream), 0);
            Ok(vec![stream])
        }),
    ];
    for ((name, start), mode) in
        starts.into_iter().flat_map(|start| MODES.map(|mode| (start, mode)))
    {
        let machine = Machine::new()?;
        fake::set_own(ptr::null_mut(), 0);
        let _primary = machine.primary.make_current()?;
        let _streams = start(&machine)?;
        there_and_back(&machine, &machine.stream(0)?, mode)
            .map_err(|error| format!("{name}: {error}"))?;
        let launches = machine.ordered(5);
        assert_eq!(launches[1].sms.len(), 16, "{name}");
        assert_eq!(launches[2].sms.len(), 16, "{name}");
        assert_eq!(launches[0].sms, launches[3].sms, "{name}");
    }
    Ok(())
}

/// A guard orders no work, as the simulated driver's race detector shows.
#[test]
fn a_guard_alone_races() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let stream = machine.stream(0)?;
    machine.produce()?;
    {
        let _guard = machine.torch.guard(&stream)?;
        machine.consume()?;
    }
    assert_eq!(machine.sim.races().len(), 1);
    Ok(())
}

/// If no context of the device is current, PyTorch's default stream is that of the primary context.
#[test]
fn the_default_stream_without_a_context_of_the_device() -> Outcome {
    for (other, mode) in MODES.into_iter().flat_map(|mode| [(false, mode), (true, mode)]) {
        let machine = Machine::new()?;
        let second = machine.device.driver().device(1)?.primary_context()?;
        let _current = if other { Some(second.make_current()?) } else { None };
        let (before, stream) = (machine.current(), machine.stream(0)?);
        let as_torch = |work: &dyn Fn() -> Outcome| -> Outcome {
            let _device = machine.primary.make_current()?;
            work()
        };
        as_torch(&|| machine.produce())?;
        scope::enter_as(&machine.torch, &stream, mode)?;
        machine.consume()?;
        scope::leave(stream.context())?;
        assert_eq!(machine.current(), before);
        as_torch(&|| machine.produce())?;
        machine.ordered(3);
    }
    Ok(())
}

/// PyTorch's default stream is the same inside and outside: a value written on it inside is read on it afterwards.
#[test]
fn the_default_stream_inside() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let stream = machine.stream(0)?;
    scope::enter(&machine.torch, &stream)?;
    // Like `with torch.cuda.stream(torch.cuda.default_stream())`, which a program ends before it leaves.
    // SAFETY: the default stream always exists.
    unsafe { machine.torch.set_current_stream(ptr::null_mut(), 0) }?;
    machine.produce()?;
    // SAFETY: the stream lives until the test ends.
    unsafe { machine.torch.set_current_stream(raw_stream(&stream), 0) }?;
    scope::leave(stream.context())?;
    machine.consume()?;
    machine.produce()?;
    machine.ordered(3);
    assert_eq!(machine.sms(), [132, 132, 132]);
    Ok(())
}

/// A default stream is remembered with its context. If another context is current on leaving, the original stream
/// waits.
#[test]
fn the_default_stream_waits_when_another_context_is_current() -> Outcome {
    for mode in MODES {
        let machine = Machine::new()?;
        let second = machine.device.driver().device(1)?.primary_context()?;
        let _primary = machine.primary.make_current()?;
        let stream = machine.stream(0)?;
        machine.produce()?;
        scope::enter_as(&machine.torch, &stream, mode)?;
        machine.consume()?;
        // The CUDA runtime does this when PyTorch changes its device.
        machine.replace_current(&second)?;
        scope::leave(stream.context())?;
        machine.replace_current(&machine.primary)?;
        machine.produce()?;
        machine.ordered(3);
    }
    Ok(())
}

/// The default stream of a partition's context differs from the device's.
#[test]
fn the_contexts_default_stream_inside() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let stream = machine.stream(0)?;
    machine.produce()?;
    scope::enter_as(&machine.torch, &stream, Mode::Context)?;
    let entered = stream.context();
    // A partition is entered from this stream, as inside `with torch.cuda.stream(torch.cuda.default_stream())`.
    // SAFETY: the default stream always exists.
    unsafe { machine.torch.set_current_stream(ptr::null_mut(), 0) }?;
    wait_inside(&machine, entered, &stream)?;
    machine.produce()?;
    let inner = machine.stream(1)?;
    scope::enter(&machine.torch, &inner)?;
    machine.consume()?;
    scope::leave(inner.context())?;
    machine.produce()?;
    scope::leave(entered)?;
    machine.consume()?;
    machine.ordered(5);
    assert_eq!(machine.sms(), [132, 16, 24, 16, 132]);
    Ok(())
}

/// Makes the partition's default stream wait for the partition's stream, as a program has to.
fn wait_inside(machine: &Machine, context: &Context, stream: &Stream) -> Outcome {
    let done = machine.device.create_event(EventOptions::default())?;
    stream.record(&done)?;
    let _current = context.make_current()?;
    Ok(DefaultStream::Legacy.wait(&done)?)
}

/// Leaving also waits for another stream that was made current inside.
#[test]
fn another_stream_is_current_when_the_partition_is_left() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let stream = machine.stream(0)?;
    let side = stream.context().create_stream(StreamOptions::default())?;
    machine.produce()?;
    scope::enter(&machine.torch, &stream)?;
    machine.consume()?;
    side.wait_for(&stream)?;
    // SAFETY: the stream lives until the test ends.
    unsafe { machine.torch.set_current_stream(raw_stream(&side), 0) }?;
    machine.produce()?;
    scope::leave(stream.context())?;
    assert_eq!(fake::current(0), fake::DEFAULT);
    machine.consume()?;
    machine.ordered(4);
    Ok(())
}

/// A partition that is entered during a capture takes part in that capture only.
#[test]
fn inside_a_capture() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let (capturing, stream) = (machine.pool_stream()?, machine.stream(0)?);
    let inner = machine.stream(1)?;
    // Used before the capture, so that the thread's event was not recorded in it.
    there_and_back(&machine, &stream, Mode::Stream)?;
    machine.primary.synchronize()?;
    machine.sim.take_launches();
    fake::set_own(raw_stream(&capturing), 0);
    let graph = capturing.capture(CaptureMode::Global, || -> Outcome {
        machine.produce()?;
        scope::enter(&machine.torch, &stream)?;
        machine.consume()?;
        scope::enter(&machine.torch, &inner)?;
        machine.produce()?;
        scope::leave(inner.context())?;
        machine.consume()?;
        scope::leave(stream.context())?;
        machine.produce()
    })?;
    assert_eq!(machine.sim.launches().len(), 0, "nothing of a capture runs");
    assert!(!stream.is_capturing()? && !inner.is_capturing()?);
    let exec = graph.instantiate()?;
    // SAFETY: `machine` keeps the kernels' memory alive until the test ends.
    unsafe { capturing.launch_graph(&exec) }?;
    capturing.synchronize()?;
    machine.ordered(5);
    assert_eq!(machine.sms(), [132, 16, 24, 16, 132]);
    // After the capture, outside any capture.
    machine.sim.take_launches();
    machine.sim.clear_races();
    there_and_back(&machine, &stream, Mode::Stream)?;
    machine.ordered(5);
    Ok(())
}

/// Threads that enter the same partition at the same time do not disturb each other's order.
#[test]
fn threads_share_a_partition() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream(0)?;
    let run = || -> Outcome {
        let tensor = DeviceBuffer::zeroed(&machine.device, 8)?;
        for _ in 0..20 {
            let own = machine.pool_stream()?;
            // The tensor belongs to the thread. Each round uses another stream.
            let last = machine.device.create_event(EventOptions::default())?;
            fake::set_own(raw_stream(&own), 0);
            machine.consume_and_produce(&tensor)?;
            scope::enter(&machine.torch, &stream)?;
            assert_eq!(scope::depth(), 1);
            machine.consume_and_produce(&tensor)?;
            scope::leave(stream.context())?;
            machine.consume_and_produce(&tensor)?;
            own.record(&last)?;
            last.synchronize()?;
            fake::set_own(ptr::null_mut(), 0);
        }
        Ok(())
    };
    std::thread::scope(|threads| -> Outcome {
        let running: Vec<_> =
            (0..4).map(|_| threads.spawn(|| run().map_err(|error| error.to_string()))).collect();
        for thread in running {
            thread.join().expect("no panic")?;
        }
        Ok(())
    })?;
    assert_eq!(machine.sim.races(), []);
    Ok(())
}

/// The block of the first device ends first: its work is ordered at once, and the other device's block stays.
#[test]
fn blocks_of_two_devices_end_in_any_order() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let second = machine.device.driver().device(1)?.primary_context()?;
    let (stream, other) = (machine.stream(0)?, second.create_stream(StreamOptions::default())?);
    let current = || (fake::current(0).raw, fake::current(1).raw, scope::depth());
    scope::enter(&machine.torch, &stream)?;
    machine.produce()?;
    scope::enter(&machine.torch, &other)?;
    scope::leave_when_innermost(|entered| *entered == stream)?;
    assert_eq!(current(), (0, raw_stream(&other).addr(), 2));
    machine.consume()?;
    scope::leave(other.context())?;
    assert_eq!(current(), (0, 0, 0));
    machine.produce()?;
    machine.ordered(3);
    Ok(())
}

/// The thread that entered a block leaves it at its next block, although an outer block ends before.
#[test]
fn another_thread_ends_a_block() -> Outcome {
    let machine = Machine::new()?;
    let _primary = machine.primary.make_current()?;
    let (outer, inner) = (machine.stream(0)?, machine.stream(1)?);
    scope::enter(&machine.torch, &outer)?;
    scope::enter(&machine.torch, &inner)?;
    scope::note_owner(7);
    machine.produce()?;
    let ended = thread::spawn(|| [8, 7, 7].map(scope::end_of_owner)).join();
    assert_eq!(ended.expect("the thread does not panic"), [false, true, false]);
    assert_eq!(fake::current(0).raw, raw_stream(&inner).addr());
    scope::leave_when_innermost(|entered| *entered == outer)?;
    assert_eq!((fake::current(0).raw, scope::depth()), (0, 0));
    machine.consume()?;
    machine.ordered(2);
    Ok(())
}

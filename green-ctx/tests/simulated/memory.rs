//! Stream-ordered memory, pinned memory, and asynchronous copies.

use std::mem;
use std::time::Duration;

use green_ctx::{
    CUresult, DeviceBuffer, Error, Kernel, LaunchConfig, Library, Stream, StreamOptions,
    graph::CaptureMode, memory::PinnedBuffer, sim::Fault,
};

use crate::common::{Outcome, partition, simulated};
use crate::{LONG, Machine, each_driver, each_failing_driver, kernels};

const LEN: usize = 64;

/// Loads a kernel that fills a buffer of [`LEN`] numbers and runs for `duration`.
fn filling(machine: &Machine, duration: Duration) -> green_ctx::Result<Kernel> {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    machine.sim.register_kernel("fill", move |call| {
        let (address, value) = (call.param_u64(0), call.param_u32(1));
        call.set_duration_ns(nanoseconds);
        let bytes = value.expect("a number").to_ne_bytes().repeat(LEN);
        // If the memory is not allocated, the numbers show it.
        let _ = call.write(address.expect("an address"), &bytes);
    });
    Library::from_ptx(&machine.device, kernels::WITH_PARAMETERS)?.kernel("fill")
}

fn fill(
    stream: &Stream,
    kernel: &Kernel,
    buffer: &DeviceBuffer<u32>,
    value: u32,
) -> green_ctx::Result<()> {
    let arguments = (buffer.as_argument(), value);
    // SAFETY: the arguments match the kernel's parameters. The tests keep the buffer until the work is done,
    // and no other work uses it.
    unsafe { stream.launch(kernel, LaunchConfig::new(1, 32), arguments) }
}

/// Creates two streams, each in its own partition.
fn streams(machine: &Machine) -> green_ctx::Result<[Stream; 2]> {
    let stream = || partition(&machine.device, 16)?.create_stream(StreamOptions::default());
    Ok([stream()?, stream()?])
}

fn pinned(machine: &Machine) -> green_ctx::Result<PinnedBuffer<u32>> {
    PinnedBuffer::zeroed(&machine.device, LEN)
}

#[test]
fn nothing_waits_for_memory_in_stream_order() -> Outcome {
    each_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [stream, _] = streams(machine)?;
        let mut result = pinned(machine)?;
        for value in [7, 8] {
            let buffer = stream.allocate(LEN)?;
            fill(&stream, &kernel, &buffer, value)?;
            buffer.copy_to(&mut result, &stream)?;
            drop(buffer);
            assert!(!stream.is_idle()?, "dropping the buffer waited for the kernel");
        }
        assert_eq!(result.as_slice()?, [8; LEN]);
        stream.synchronize()?;
        assert_eq!((machine.sim.races().len(), machine.sim.live().allocations), (0, 0));
        Ok(())
    })
}

#[test]
fn copies_on_another_stream_come_between_allocation_and_end() -> Outcome {
    each_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [home, other] = streams(machine)?;
        let buffer = home.allocate(LEN)?;
        fill(&home, &kernel, &buffer, 5)?;
        let mut result = pinned(machine)?;
        buffer.copy_to(&mut result, &other)?;
        assert_eq!(buffer.read(&other)?, [5; LEN]);
        let mut values = pinned(machine)?;
        values.as_mut_slice()?.fill(6);
        buffer.copy_from(&mut values, &other)?;
        buffer.copy_to(&mut values, &other)?;
        drop(buffer);
        // The memory is reused immediately. Later work on its stream must not disturb the copy.
        let next = home.allocate(LEN)?;
        fill(&home, &kernel, &next, 9)?;
        assert_eq!((result.as_slice()?, values.as_slice()?), (&[5; LEN][..], &[6; LEN][..]));
        home.synchronize()?;
        assert_eq!(machine.sim.races(), []);
        Ok(())
    })
}

/// The copying stream belongs to neither buffer.
#[test]
fn a_copy_between_buffers_comes_between_their_allocations_and_ends() -> Outcome {
    each_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [home, other] = streams(machine)?;
        let third = machine.device.primary_context()?.create_stream(StreamOptions::default())?;
        let (source, target) = (home.allocate(LEN)?, other.allocate(LEN)?);
        fill(&home, &kernel, &source, 5)?;
        target.copy_from_buffer(&target, &third)?;
        target.copy_from_buffer(&source, &third)?;
        drop(source);
        let next = home.allocate(LEN)?;
        fill(&home, &kernel, &next, 6)?;
        let mut result = pinned(machine)?;
        target.copy_to(&mut result, &other)?;
        drop(target);
        fill(&other, &kernel, &other.allocate(LEN)?, 7)?;
        assert_eq!(result.as_slice()?, [5; LEN]);
        home.synchronize()?;
        other.synchronize()?;
        assert_eq!(machine.sim.races(), []);
        Ok(())
    })
}

/// Two streams copy with one pinned buffer. The second copy waits for the first.
#[test]
fn a_pinned_buffer_is_in_one_copy_at_a_time() -> Outcome {
    each_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [first, second] = streams(machine)?;
        let source = DeviceBuffer::<u32>::zeroed(&machine.device, LEN)?;
        let target = DeviceBuffer::<u32>::zeroed(&machine.device, LEN)?;
        fill(&first, &kernel, &source, 3)?;
        let mut values = pinned(machine)?;
        source.copy_to(&mut values, &first)?;
        target.copy_from(&mut values, &second)?;
        assert_eq!(target.read(&second)?, [3; LEN]);
        assert_eq!(machine.sim.races(), []);
        Ok(())
    })
}

#[test]
fn a_pinned_buffer_goes_when_its_copy_is_done() -> Outcome {
    each_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [stream, _] = streams(machine)?;
        let buffer = stream.allocate(LEN)?;
        fill(&stream, &kernel, &buffer, 1)?;
        let mut result = pinned(machine)?;
        buffer.copy_to(&mut result, &stream)?;
        assert!(!stream.is_idle()?);
        drop(result);
        assert!(stream.is_idle()?, "the drop did not wait for the copy");
        assert_eq!(machine.sim.live().host_allocations, 0);
        Ok(())
    })
}

/// A leaked buffer is never freed, so a pending copy cannot write to other memory.
#[test]
fn a_leaked_pinned_buffer_is_never_freed() -> Outcome {
    each_failing_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [stream, _] = streams(machine)?;
        let buffer = stream.allocate(LEN)?;
        fill(&stream, &kernel, &buffer, 1)?;
        let mut result = pinned(machine)?;
        buffer.copy_to(&mut result, &stream)?;
        mem::forget(result);
        stream.synchronize()?;
        assert_eq!(machine.sim.live().host_allocations, 1);
        Ok(())
    })
}

#[test]
fn a_captured_stream_takes_none_of_it() -> Outcome {
    each_driver(|machine| {
        let [stream, _] = streams(machine)?;
        let (buffer, mut values) = (stream.allocate::<u32>(LEN)?, pinned(machine)?);
        let other = stream.allocate(LEN)?;
        // These calls do not reach the driver, apart from the query whether the stream is capturing; so the
        // capture stays valid.
        stream.capture(CaptureMode::Global, || {
            let refused = [
                stream.allocate::<u32>(LEN).map(drop),
                buffer.copy_from(&mut values, &stream),
                buffer.copy_to(&mut values, &stream),
                buffer.copy_from_buffer(&other, &stream),
                buffer.read(&stream).map(drop),
            ];
            for refused in refused {
                assert!(matches!(refused, Err(Error::Capturing)), "{refused:?}");
            }
            let id = stream.id();
            assert!(matches!(id, Err(Error::Capturing)), "{id:?}");
            Ok::<(), Error>(())
        })?;
        Ok(())
    })
}

/// Memory cannot be freed in the order of a stream that is being captured. It leaks, and the hook is called.
#[test]
fn memory_dropped_in_a_capture_of_its_stream_is_reported() -> Outcome {
    each_failing_driver(|machine| {
        let [stream, _] = streams(machine)?;
        let reported = machine.hook();
        let buffer = stream.allocate::<u32>(LEN)?;
        stream.capture(CaptureMode::Global, move || {
            drop(buffer);
            Ok::<(), Error>(())
        })?;
        assert_eq!(*reported.lock().expect("no panic"), [Error::Capturing.to_string()]);
        assert_eq!(machine.sim.live().allocations, 1);
        Ok(())
    })
}

#[test]
fn what_does_not_belong_together_is_refused() -> Outcome {
    each_driver(|machine| {
        let (_sim, stranger) = simulated("h200")?;
        let [stream, _] = streams(machine)?;
        let buffer = stream.allocate::<u32>(LEN)?;
        let mut shorter = PinnedBuffer::zeroed(&machine.device, LEN - 1)?;
        let mut theirs = PinnedBuffer::zeroed(&stranger, LEN)?;
        let elsewhere = stranger.primary_context()?.create_stream(StreamOptions::default())?;
        let mut ours = pinned(machine)?;
        machine.without_calls(|| {
            let error = buffer.copy_to(&mut shorter, &stream).expect_err("63 values");
            let expected = "64 values cannot be copied between buffers of 64 and 63 values; use \
                            buffers of equal length";
            assert!(error.to_string() == expected && error.is_misuse(), "{error}");
            for mixed in
                [buffer.copy_from(&mut theirs, &stream), buffer.copy_from(&mut ours, &elsewhere)]
            {
                assert!(matches!(mixed, Err(Error::DeviceMismatch { .. })), "{mixed:?}");
            }
            for len in [0, usize::MAX] {
                let nothing = stream.allocate::<u32>(len).map(drop);
                assert!(matches!(nothing, Err(Error::InvalidRequest(_))), "{nothing:?}");
                let nothing = PinnedBuffer::<u32>::zeroed(&machine.device, len).map(drop);
                assert!(matches!(nothing, Err(Error::InvalidRequest(_))), "{nothing:?}");
            }
        });
        Ok(())
    })
}

/// A buffer holds a reference to its stream, and so to the partition.
#[test]
fn memory_keeps_its_stream() -> Outcome {
    each_driver(|machine| {
        let [stream, _] = streams(machine)?;
        let buffer = stream.allocate::<u32>(LEN)?;
        drop(stream);
        assert_eq!(machine.free()?, 132 - 16);
        drop(buffer);
        assert_eq!(machine.free()?, 132);
        Ok(())
    })
}

/// Makes the next event record fail.
fn fail_record(machine: &Machine) -> Outcome {
    let fault = Fault::on("cuEventRecord").with(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    Ok(machine.sim.fail(fault)?)
}

/// Access to a pinned buffer's values waits for all its copies, including those on several streams whose end
/// could not be recorded. Such a copy is also ordered before the next one.
#[test]
fn copies_whose_end_is_not_recorded_are_waited_for() -> Outcome {
    each_driver(|machine| {
        let kernel = filling(machine, LONG)?;
        let [a, b] = streams(machine)?;
        let [slow, quick] = [
            DeviceBuffer::zeroed(&machine.device, LEN)?,
            DeviceBuffer::zeroed(&machine.device, LEN)?,
        ];
        fill(&a, &kernel, &slow, 4)?;
        let mut values = pinned(machine)?;
        for (buffer, stream) in [(&slow, &a), (&quick, &b)] {
            fail_record(machine)?;
            let error = buffer.copy_to(&mut values, stream).expect_err("its end is not recorded");
            assert!(matches!(error, Error::Driver { .. }), "{error}");
        }
        values.as_slice()?;
        assert!(a.is_idle()? && b.is_idle()?, "a copy is still running");

        fill(&a, &kernel, &slow, 5)?;
        fail_record(machine)?;
        slow.copy_to(&mut values, &a).expect_err("its end is not recorded");
        quick.copy_from(&mut values, &b)?;
        assert_eq!(quick.read(&b)?, [5; LEN]);
        assert!(machine.sim.races().is_empty(), "{:?}", machine.sim.races());
        drop((a, b));
        assert_eq!(machine.free()?, 132, "a buffer keeps a partition alive");
        Ok(())
    })
}

/// A copy of memory whose own stream is being captured would become part of the graph.
#[test]
fn memory_is_not_copied_while_its_stream_is_captured() -> Outcome {
    each_driver(|machine| {
        let [home, other] = streams(machine)?;
        let buffer = home.allocate::<u32>(LEN)?;
        let plain = DeviceBuffer::zeroed(&machine.device, LEN)?;
        let mut values = pinned(machine)?;
        let graph = home.capture(CaptureMode::Global, || {
            let copies = [
                buffer.copy_to(&mut values, &other),
                buffer.copy_from(&mut values, &other),
                plain.copy_from_buffer(&buffer, &other),
                buffer.copy_from_buffer(&plain, &other),
                buffer.read(&other).map(drop),
            ];
            for copy in copies {
                assert!(matches!(copy, Err(Error::Capturing)), "{copy:?}");
            }
            assert!(!other.is_capturing()?);
            Ok::<(), Error>(())
        })?;
        assert_eq!(graph.node_count()?, 0);
        assert_eq!(values.as_slice()?, [0; LEN]);
        buffer.copy_to(&mut values, &other)?;
        values.as_slice()?;
        Ok(())
    })
}

/// Memory is leaked if a copy of it may still run, and its free cannot be ordered after the copy.
#[test]
fn memory_of_a_copy_that_cannot_be_waited_for_stays() -> Outcome {
    each_failing_driver(|machine| {
        let reported = machine.hook();
        let [home, other] = streams(machine)?;
        let (target, source) = (home.allocate::<u32>(LEN)?, other.allocate::<u32>(LEN)?);
        for call in ["cuMemcpyDtoDAsync", "cuStreamSynchronize"] {
            let fault = Fault::on(call).with(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            machine.sim.fail(fault)?;
        }
        target.copy_from_buffer(&source, &other).expect_err("it fails");
        assert_eq!(reported.lock().expect("no panic").len(), 1);
        drop((target, source));
        assert_eq!(machine.sim.live().allocations, 2, "memory was freed during a copy");
        Ok(())
    })
}

#[test]
fn values_of_any_type_come_back() -> Outcome {
    each_driver(|machine| {
        let [stream, _] = streams(machine)?;
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(DeviceBuffer::from_slice(&machine.device, &values)?.read(&stream)?, values);
        assert_eq!(DeviceBuffer::<u16>::zeroed(&machine.device, 3)?.read(&stream)?, [0; 3]);
        for len in [0, usize::MAX] {
            let nothing = DeviceBuffer::<u64>::zeroed(&machine.device, len);
            assert!(matches!(nothing, Err(Error::InvalidRequest(_))), "{nothing:?}");
        }
        Ok(())
    })
}

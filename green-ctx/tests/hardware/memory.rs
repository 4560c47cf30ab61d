//! Stream-ordered memory, asynchronous copies, and structures as kernel arguments.

use green_ctx::{
    DeviceBuffer, Error, LaunchConfig, Library, SplitRequest, StreamOptions, graph::CaptureMode,
    launch::Argument, memory::PinnedBuffer,
};

use crate::common::{Outcome, device, is_real, kernels, partition};

const LEN: usize = 1 << 20;

fn numbers(start: u32) -> Vec<u32> {
    (start..).take(LEN).collect()
}

#[test]
fn copies_of_several_streams_see_what_was_copied_before() -> Outcome {
    let device = device()?;
    let parts = device.partition(SplitRequest::from([16, 32]))?;
    let [home, other] = [parts[0].stream(), parts[1].stream()];
    let mut values = PinnedBuffer::zeroed(&device, LEN)?;
    let mut found = PinnedBuffer::zeroed(&device, LEN)?;
    let kept = DeviceBuffer::<u32>::zeroed(&device, LEN)?;
    for round in 0..8 {
        values.as_mut_slice()?.copy_from_slice(&numbers(round));
        let buffer = home.allocate(LEN)?;
        buffer.copy_from(&mut values, home)?;
        kept.copy_from_buffer(&buffer, other)?;
        drop(buffer);
        // This allocation reuses the memory immediately.
        let next = home.allocate(LEN)?;
        next.copy_from(&mut found, home)?;
        kept.copy_to(&mut found, other)?;
        assert_eq!(found.as_slice()?, numbers(round));
        assert_eq!(kept.read(other)?, numbers(round));
    }
    Ok(())
}

/// A global capture forbids calls that may be unsafe on every thread. The calls that this crate makes do not
/// invalidate it.
#[test]
fn allocations_and_questions_leave_captures_alone() -> Outcome {
    let device = device()?;
    let parts = device.partition(SplitRequest::from([16, 32]))?;
    let [captured, other] = [parts[0].stream(), parts[1].stream()];
    let graph = captured.capture(CaptureMode::Global, || {
        assert!(matches!(captured.id(), Err(Error::Capturing)));
        std::thread::scope(|scope| {
            let allocated = scope.spawn(|| other.allocate::<u32>(LEN).map(drop)).join();
            allocated.expect("no panic")
        })?;
        other.allocate::<u32>(LEN).map(drop)
    })?;
    assert_eq!(graph.node_count()?, 0);
    assert_ne!(captured.id()?, other.id()?);
    Ok(())
}

/// A structure with the size and alignment of a tensor map (`CUtensorMap`).
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Map([u64; 16]);

// SAFETY: the kernel's parameter has the same 128 bytes.
unsafe impl Argument for Map {}

/// The kernel's output is checked on a GPU only, since simulated kernels do nothing.
#[test]
fn a_kernel_gets_an_aligned_structure() -> Outcome {
    let device = device()?;
    let kernel = Library::from_ptx(&device, kernels::LAST_OF_MAP)?.kernel("last_of_map")?;
    assert_eq!(kernel.parameter_sizes(), [128, 8]);
    let stream = partition(&device, 16)?.create_stream(StreamOptions::default())?;
    let out = DeviceBuffer::<u64>::zeroed(&device, 1)?;
    let map = Map(std::array::from_fn(|index| 100 + index as u64));
    let config = LaunchConfig::new(1, 1);
    for config in [config, config.programmatic_dependent_launch(true)] {
        // SAFETY: `Map` and the pointer match the kernel's parameters. Both launches write the same value, and
        // no other work reads it.
        unsafe { stream.launch(&kernel, config, (map, out.as_argument())) }?;
    }
    let found = out.read(&stream)?;
    assert!(found == [115] || !is_real(), "{found:?}");
    Ok(())
}

//! Functions of the CUDA runtime, implemented with the driver.
#![allow(unsafe_code, reason = "passes raw pointers")]

use green_ctx::{CUresult, Stream, StreamOptions, graph::CaptureMode};
use green_ctx_torch::runtime::{self, ErrorCode};
use green_ctx_torch::{TorchError, raw_stream};

use crate::common::{Machine, Outcome};

/// Returns the driver's error as the runtime's code.
fn code(result: green_ctx_torch::Result<()>) -> Option<&'static str> {
    match result {
        Err(TorchError::Driver(error)) => ErrorCode::from(error.status()?).name(),
        _ => None,
    }
}

#[test]
fn memory() -> Outcome {
    let machine = Machine::new()?;
    let before = runtime::memory_info(&machine.device)?;
    assert_eq!(before.total, machine.device.total_memory()? as u64);
    let _buffer = green_ctx::DeviceBuffer::<u64>::zeroed(&machine.device, 1 << 20)?;
    let after = runtime::memory_info(&machine.device)?;
    assert!(before.free >= after.free + (8 << 20), "{before:?} {after:?}");
    assert_eq!(machine.current(), std::ptr::null_mut());
    Ok(())
}

#[test]
fn host_memory() -> Outcome {
    let Machine { sim, device, .. } = &Machine::new()?;
    let mut memory = vec![0u8; 1 << 16];
    let address = memory.as_mut_ptr().cast();
    // SAFETY: `memory` lives until the test ends, and no work uses it.
    unsafe { runtime::host_register(device, address, memory.len(), 0) }?;
    assert_eq!(sim.live().host_allocations, 1);
    // SAFETY: `memory` lives until the test ends, and no work uses it.
    let again = unsafe { runtime::host_register(device, address, memory.len(), 0) };
    assert_eq!(code(again), Some("cudaErrorHostMemoryAlreadyRegistered"));
    // SAFETY: `memory` lives until the test ends, and no work uses it.
    unsafe { runtime::host_unregister(device, address) }?;
    assert_eq!(sim.live().host_allocations, 0);
    // SAFETY: `memory` lives until the test ends, and no work uses it.
    let again = unsafe { runtime::host_unregister(device, address) };
    assert_eq!(code(again), Some("cudaErrorHostMemoryNotRegistered"));
    Ok(())
}

#[test]
fn host_memory_beside_a_capture() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.primary.create_stream(StreamOptions::default())?;
    let mut memory = vec![0u8; 1 << 16];
    let address = memory.as_mut_ptr().cast();
    let graph = stream.capture(CaptureMode::Global, || {
        // SAFETY: `memory` lives until the test ends, and no work uses it.
        unsafe { runtime::host_register(&machine.device, address, memory.len(), 0) }?;
        // SAFETY: `memory` lives until the test ends, and no work uses it.
        unsafe { runtime::host_unregister(&machine.device, address) }?;
        Ok::<(), TorchError>(())
    })?;
    assert_eq!(graph.node_count()?, 0);
    Ok(())
}

#[test]
fn streams() -> Outcome {
    let machine = Machine::new()?;
    let driver = machine.device.driver();
    let live = machine.sim.live().streams;
    for context in [&machine.primary, &machine.partitions[0]] {
        let raw = runtime::create_stream(context)?;
        assert_eq!(machine.sim.live().streams, live + 1);
        // SAFETY: this object is dropped before the stream is destroyed.
        let stream = unsafe { Stream::from_raw_borrowed(driver, raw.cast(), ()) }?;
        assert_eq!((stream.context(), raw_stream(&stream)), (context, raw));
        drop(stream);
        // SAFETY: the stream is alive, and it is not used afterwards.
        unsafe { runtime::destroy_stream(&machine.device, raw) }?;
        assert_eq!(machine.sim.live().streams, live);
    }
    Ok(())
}

#[test]
fn the_profiler() -> Outcome {
    let machine = Machine::new()?;
    runtime::profiler_start(&machine.device)?;
    runtime::profiler_stop(&machine.device)?;
    let calls = machine.sim.calls();
    assert_eq!((calls.get("cuProfilerStart"), calls.get("cuProfilerStop")), (Some(&1), Some(&1)));
    // Captures on other threads stay valid.
    machine.stream(0)?.capture(CaptureMode::Global, || {
        runtime::profiler_start(&machine.device)?;
        runtime::profiler_stop(&machine.device)
    })?;
    let fault = green_ctx::sim::Fault::on("cuProfilerStart");
    machine.sim.fail(fault.with(CUresult::CUDA_ERROR_PROFILER_DISABLED))?;
    let failed = runtime::profiler_start(&machine.device);
    assert_eq!(code(failed), Some("cudaErrorProfilerDisabled"));
    Ok(())
}

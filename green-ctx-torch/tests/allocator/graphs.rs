//! Blocks that graphs use.

use std::ffi::c_void;

use green_ctx::sim::{Fault, Live};
use green_ctx::sys::CUstreamCaptureMode;
use green_ctx::{CUresult, Graph, Kernel, LaunchConfig, Library, Stream, graph::CaptureMode};

use crate::machine::{Machine, Outcome, alloc, free, last_error, record};

const PTX: &str = "
    .version 5.0
    .target sm_52
    .address_size 64
    .visible .entry step(.param .u64 to) { ret; }
";

fn step(machine: &Machine) -> green_ctx::Result<Kernel> {
    machine.sim.register_kernel("step", |kernel| {
        let _ = kernel.write(kernel.param_u64(0).unwrap_or(0), &[7; 64]);
    });
    Library::from_ptx(&machine.device, PTX)?.kernel("step")
}

fn launch(stream: &Stream, kernel: &Kernel, block: *mut c_void) -> green_ctx::Result<()> {
    // SAFETY: the kernel writes 64 bytes, which the block has.
    unsafe { stream.launch(kernel, LaunchConfig::new(16, 128), (block.addr() as u64,)) }
}

/// Captures a graph that writes to a block allocated during the capture.
fn captured(stream: &Stream, kernel: &Kernel) -> green_ctx::Result<(Graph, *mut c_void)> {
    let mut block = std::ptr::null_mut();
    let graph = stream.capture(CaptureMode::Global, || {
        block = alloc(64, stream.as_raw());
        assert!(!block.is_null());
        launch(stream, kernel, block)
    })?;
    Ok((graph, block))
}

fn waiting(machine: &Machine) -> usize {
    machine.allocator.snapshot().waiting.len()
}

#[test]
fn a_graph_has_no_allocation_in_it() -> Outcome {
    let machine = Machine::new()?;
    let kernel = step(&machine)?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    let (graph, block) = captured(&decode, &kernel)?;
    assert_eq!(graph.node_count()?, 1, "the kernel alone");
    assert_eq!(machine.usage("decode").current_bytes, 64);
    let moved = graph.retarget(prefill.context())?.instantiate()?;
    // SAFETY: the graph writes to the block, which is still allocated.
    unsafe { prefill.launch_graph(&moved) }?;
    prefill.synchronize()?;
    assert_eq!(machine.sim.races(), []);
    drop((moved, graph));
    free(block, decode.as_raw());
    assert_eq!(machine.allocator.current_bytes(), 0);
    drop((decode, prefill, kernel));
    machine.end()
}

#[test]
fn a_block_outlives_its_graph() -> Outcome {
    let machine = Machine::new()?;
    let kernel = step(&machine)?;
    let decode = machine.stream("decode", 16)?;
    let (graph, block) = captured(&decode, &kernel)?;
    let exec = graph.instantiate()?;
    // PyTorch drops a tensor while the graph still exists.
    free(block, decode.as_raw());
    assert_eq!((waiting(&machine), machine.allocator.current_bytes()), (1, 64));
    drop(graph);
    machine.allocator.empty_cache()?;
    assert_eq!(waiting(&machine), 1, "the executable may be launched still");
    // SAFETY: the graph writes to the block, which is not freed before the graph is gone.
    unsafe { decode.launch_graph(&exec) }?;
    decode.synchronize()?;
    assert_eq!(machine.sim.races(), []);
    drop(exec);
    // Any later call returns the blocks that wait.
    free(alloc(8, decode.as_raw()), decode.as_raw());
    assert_eq!((waiting(&machine), machine.allocator.current_bytes()), (0, 0));
    drop((decode, kernel));
    machine.end()
}

#[test]
fn a_block_that_is_freed_in_a_capture_waits_for_the_graph() -> Outcome {
    let machine = Machine::new()?;
    let kernel = step(&machine)?;
    let decode = machine.stream("decode", 16)?;
    let block = alloc(64, decode.as_raw());
    let graph = decode.capture(CaptureMode::Global, || {
        launch(&decode, &kernel, block)?;
        free(block, decode.as_raw());
        assert_eq!(waiting(&machine), 1);
        Ok::<(), green_ctx::Error>(())
    })?;
    assert_eq!(graph.node_count()?, 1);
    machine.allocator.empty_cache()?;
    assert_eq!(waiting(&machine), 1);
    drop(graph);
    machine.allocator.empty_cache()?;
    assert_eq!(waiting(&machine), 0);
    drop((decode, kernel));
    machine.end()
}

#[test]
fn a_block_that_is_recorded_in_a_capture_waits_for_the_graph() -> Outcome {
    let machine = Machine::new()?;
    let kernel = step(&machine)?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    let block = alloc(64, decode.as_raw());
    decode.synchronize()?;
    let graph = prefill.capture(CaptureMode::Global, || {
        record(block, prefill.as_raw());
        launch(&prefill, &kernel, block)
    })?;
    free(block, decode.as_raw());
    assert_eq!(waiting(&machine), 1);
    drop(graph);
    machine.allocator.empty_cache()?;
    assert_eq!(waiting(&machine), 0);
    drop((decode, prefill, kernel));
    machine.end()
}

#[test]
fn other_threads_captures_are_not_invalidated() -> Outcome {
    let machine = Machine::new()?;
    let kernel = step(&machine)?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    let kept = alloc(64, prefill.as_raw());
    prefill.synchronize()?;
    for shareable in [false, true] {
        machine.allocator.set_shareable(shareable);
        let graph = prefill.capture(CaptureMode::Global, || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let block = alloc(64, decode.as_raw());
                    assert!(!block.is_null());
                    free(block, decode.as_raw());
                });
            });
            launch(&prefill, &kernel, kept)
        })?;
        drop(graph);
    }
    machine.allocator.empty_cache()?;
    free(kept, prefill.as_raw());
    drop((decode, prefill, kernel));
    machine.end()
}

#[test]
fn a_capture_that_fails_keeps_nothing() -> Outcome {
    let machine = Machine::new()?;
    let decode = machine.stream("decode", 16)?;
    let mut block = std::ptr::null_mut();
    let failed = decode.capture(CaptureMode::Global, || {
        block = alloc(64, decode.as_raw());
        Err::<(), _>(green_ctx::Error::Capturing)
    });
    assert!(failed.is_err());
    free(block, decode.as_raw());
    assert_eq!(machine.allocator.current_bytes(), 0);
    let Live { allocations, graphs, .. } = machine.sim.live();
    assert_eq!((allocations, graphs), (0, 0));
    drop(decode);
    machine.end()
}

#[test]
fn a_capture_that_was_invalidated_is_waited_for() -> Outcome {
    let machine = Machine::new()?;
    let decode = machine.stream("decode", 16)?;
    let block = alloc(64, decode.as_raw());
    let before = last_error();
    let failed = decode.capture(CaptureMode::Global, || {
        assert!(decode.synchronize().is_err(), "which invalidates the capture");
        free(block, decode.as_raw());
        assert_eq!(waiting(&machine), 1);
        let second = alloc(64, decode.as_raw());
        assert!(!second.is_null());
        free(second, decode.as_raw());
        Ok::<(), green_ctx::Error>(())
    });
    assert!(failed.is_err());
    assert_eq!(last_error(), before);
    machine.allocator.empty_cache()?;
    assert_eq!(waiting(&machine), 0);
    drop(decode);
    machine.end()
}

#[test]
fn the_thread_s_mode_is_as_before() -> Outcome {
    let machine = Machine::new()?;
    let decode = machine.stream("decode", 16)?;
    let block = alloc(64, decode.as_raw());
    record(block, machine.stream("prefill", 16)?.as_raw());
    free(block, decode.as_raw());
    machine.allocator.empty_cache()?;
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let exchange = machine.device.driver().api().cuThreadExchangeStreamCaptureMode()?;
    // SAFETY: `mode` is a live local.
    assert_eq!(unsafe { exchange(&raw mut mode) }, CUresult::CUDA_SUCCESS);
    assert_eq!(mode, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    // SAFETY: `mode` is a live local.
    assert_eq!(unsafe { exchange(&raw mut mode) }, CUresult::CUDA_SUCCESS);
    drop(decode);
    machine.end()
}

#[test]
fn a_graph_that_cannot_report_its_end_gets_nothing() -> Outcome {
    let machine = Machine::new()?;
    let decode = machine.stream("decode", 16)?;
    machine.sim.fail(Fault::on("cuGraphRetainUserObject").nth(1))?;
    let graph = decode.capture(CaptureMode::Global, || {
        assert!(alloc(64, decode.as_raw()).is_null());
        Ok::<(), green_ctx::Error>(())
    })?;
    assert!(last_error().contains("cuGraphRetainUserObject"), "{}", last_error());
    assert_eq!(machine.sim.calls().get("cuUserObjectRelease"), Some(&1));
    drop((graph, decode));
    machine.end()
}

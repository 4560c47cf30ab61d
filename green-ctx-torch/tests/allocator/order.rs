//! Memory is not reused too early, according to the simulator's race detector.

use std::ffi::c_void;

use green_ctx::sim::{Accessor, Race};
use green_ctx::{Kernel, LaunchConfig, Library, Stream};

use crate::machine::{Machine, Outcome, alloc, free, record};
use crate::raw;

const PTX: &str = "
    .version 5.0
    .target sm_52
    .address_size 64
    .visible .entry fill(.param .u64 to) { ret; }
";
/// Longer than the calls of a test.
const LONG_NS: u64 = 50_000_000;

/// Returns a long kernel that writes 64 bytes.
fn fill(machine: &Machine) -> green_ctx::Result<Kernel> {
    machine.sim.register_kernel("fill", |kernel| {
        kernel.set_duration_ns(LONG_NS);
        let _ = kernel.write(kernel.param_u64(0).unwrap_or(0), &[7; 64]);
    });
    Library::from_ptx(&machine.device, PTX)?.kernel("fill")
}

fn launch(stream: &Stream, kernel: &Kernel, block: *mut c_void) -> green_ctx::Result<()> {
    // SAFETY: the kernel writes 64 bytes, which the block has. A race with another use of the block is harmless in a
    // simulation, and the tests look for such races.
    unsafe { stream.launch(kernel, LaunchConfig::new(16, 128), (block.addr() as u64,)) }
}

/// Fills a block on the stream on which it was allocated, then on another stream, and frees it on the first.
fn on_two_partitions(recorded: bool) -> Result<Vec<Race>, Box<dyn std::error::Error>> {
    let machine = Machine::new()?;
    let kernel = fill(&machine)?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    let block = alloc(64, decode.as_raw());
    launch(&decode, &kernel, block)?;
    prefill.wait_for(&decode)?;
    if recorded {
        record(block, prefill.as_raw());
        // Recording the stream again, or the block's own stream, changes nothing.
        record(block, prefill.as_raw());
        record(block, decode.as_raw());
        let block = &machine.allocator.snapshot().blocks[0];
        assert_eq!(block.recorded, [prefill.as_raw().addr() as u64]);
    }
    launch(&prefill, &kernel, block)?;
    free(block, decode.as_raw());
    let races = machine.sim.races();
    drop((decode, prefill, kernel));
    machine.end()?;
    Ok(races)
}

#[test]
fn a_recorded_stream_is_waited_for() -> Outcome {
    assert_eq!(on_two_partitions(true)?, []);
    Ok(())
}

#[test]
fn a_stream_that_nobody_recorded_is_a_race() -> Outcome {
    let races = on_two_partitions(false)?;
    let [race] = &races[..] else { panic!("one race, not {races:?}") };
    assert!(matches!(race.first.what, Accessor::Kernel { .. }), "{race}");
    assert!(matches!(race.second.what, Accessor::Free), "{race}");
    Ok(())
}

#[test]
fn a_free_elsewhere_waits_for_the_stream_of_the_allocation() -> Outcome {
    let machine = Machine::new()?;
    let kernel = fill(&machine)?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    let block = alloc(64, decode.as_raw());
    launch(&decode, &kernel, block)?;
    free(block, prefill.as_raw());
    assert_eq!(machine.sim.races(), []);
    drop((decode, prefill, kernel));
    machine.end()
}

#[test]
fn a_stream_of_somebody_else_is_waited_for() -> Outcome {
    let machine = Machine::new()?;
    let kernel = fill(&machine)?;
    let decode = machine.stream("decode", 16)?;
    let prefill = machine.partition("prefill", 64)?;
    let foreign = raw::stream(&prefill)?;
    let block = alloc(64, decode.as_raw());
    record(block, foreign);
    {
        // SAFETY: the stream outlives this object, because the stream is destroyed below.
        let foreign = unsafe { Stream::from_raw_borrowed(machine.device.driver(), foreign, ()) }?;
        foreign.wait_for(&decode)?;
        launch(&foreign, &kernel, block)?;
    }
    free(block, decode.as_raw());
    assert_eq!(machine.sim.races(), []);
    raw::destroy_stream(&machine.device, foreign)?;
    drop((decode, prefill, kernel));
    machine.end()
}

#[test]
fn memory_comes_back_in_the_stream_s_order() -> Outcome {
    let machine = Machine::new()?;
    let kernel = fill(&machine)?;
    let decode = machine.stream("decode", 16)?;
    for _ in 0..4 {
        let block = alloc(64, decode.as_raw());
        launch(&decode, &kernel, block)?;
        free(block, decode.as_raw());
    }
    assert!(!decode.is_idle()?, "the host waited for nothing");
    assert_eq!(machine.sim.races(), []);
    drop((decode, kernel));
    machine.end()
}

/// The host waits for the work that uses the memory, because `cuMemFree` follows no stream.
#[test]
fn shareable_memory_is_free_when_its_work_is_done() -> Outcome {
    let machine = Machine::new()?;
    let kernel = fill(&machine)?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    machine.allocator.set_shareable(true);
    let block = alloc(64, decode.as_raw());
    launch(&decode, &kernel, block)?;
    record(block, prefill.as_raw());
    prefill.wait_for(&decode)?;
    launch(&prefill, &kernel, block)?;
    free(block, decode.as_raw());
    assert!(decode.is_idle()? && prefill.is_idle()?);
    // `cuMemFree` itself also waits, which is recorded but not documented.
    assert_eq!(machine.sim.calls().get("cuEventSynchronize"), Some(&2));
    assert_eq!(machine.sim.races(), []);
    drop((decode, prefill, kernel));
    machine.end()
}

//! Each driver call fails in turn. The failure is reported, nothing leaks, and the accounts are correct.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::Fault;
use green_ctx::{CUresult, Stream, call, graph::CaptureMode};
use green_ctx_torch::allocator::c;

use crate::machine::{Machine, Outcome, alloc, alloc_on, free, last_error, record};

const STATUSES: [CUresult; 3] = [
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_UNKNOWN,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
];

/// The work during which one call fails.
type Work = fn(&Machine, &Stream, &Stream) -> Result<(), green_ctx::Error>;

/// Two blocks: one used on its own stream, one used on two streams.
fn plain(_: &Machine, decode: &Stream, prefill: &Stream) -> Result<(), green_ctx::Error> {
    let first = alloc(100, decode.as_raw());
    let second = alloc(200, std::ptr::null_mut());
    if !second.is_null() {
        record(second, prefill.as_raw());
    }
    free(first, decode.as_raw());
    free(second, std::ptr::null_mut());
    Ok(())
}

fn shareable(machine: &Machine, decode: &Stream, _: &Stream) -> Result<(), green_ctx::Error> {
    machine.allocator.set_shareable(true);
    free(alloc(100, decode.as_raw()), decode.as_raw());
    machine.allocator.set_shareable(false);
    Ok(())
}

fn captured(_: &Machine, decode: &Stream, _: &Stream) -> Result<(), green_ctx::Error> {
    let mut block = std::ptr::null_mut();
    let graph = decode.capture(CaptureMode::Global, || {
        block = alloc(100, decode.as_raw());
        Ok::<(), green_ctx::Error>(())
    });
    free(block, decode.as_raw());
    let graph = graph.map(drop);
    c::green_ctx_torch_empty_cache(0);
    graph
}

/// A stream that cannot be found by its handle later, so that each free records an event.
fn recorded(_: &Machine, decode: &Stream, _: &Stream) -> Result<(), green_ctx::Error> {
    let per_thread = || std::ptr::without_provenance_mut(2);
    for _ in 0..2 {
        let block = alloc(100, per_thread());
        free(block, if block.is_null() { decode.as_raw() } else { per_thread() });
    }
    Ok(())
}

/// An allocation that waits for memory that another partition frees.
fn scarce(machine: &Machine, decode: &Stream, prefill: &Stream) -> Result<(), green_ctx::Error> {
    // `MOST` is more than half of the memory. Setting `SET` bytes takes longer than the calls below.
    const MOST: usize = 9 << 30;
    const SET: usize = 16 << 20;
    let first = alloc(MOST, decode.as_raw());
    if first.is_null() {
        return Ok(());
    }
    let (api, address) = (machine.device.driver().api(), first.addr() as u64);
    // SAFETY: the block has at least `SET` bytes.
    let set = unsafe { call!(api, cuMemsetD8Async(address, 1, SET, decode.as_raw())) };
    free(first, decode.as_raw());
    free(alloc(MOST, prefill.as_raw()), prefill.as_raw());
    set
}

#[test]
fn plain_blocks() -> Outcome {
    exhaust("h200@13.0", plain, 20)
}

#[test]
fn recorded_frees() -> Outcome {
    exhaust("h200@13.0", recorded, 20)
}

#[test]
fn shareable_blocks() -> Outcome {
    exhaust("h200@13.0", shareable, 15)
}

#[test]
fn captured_blocks() -> Outcome {
    exhaust("h200@13.0", captured, 15)
}

#[test]
fn blocks_that_are_waited_for() -> Outcome {
    exhaust("rtx5080@13.0", scarce, 30)
}

/// The call that precedes the second attempt to allocate.
const AGAIN: &str = "cuMemPoolTrimTo";

fn exhaust(spec: &'static str, work: Work, at_least: usize) -> Outcome {
    let calls = {
        let machine = Machine::of(spec)?;
        let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
        machine.sim.record_calls(true);
        work(&machine, &decode, &prefill)?;
        let calls = machine.sim.call_log();
        assert_eq!(machine.allocator.current_bytes(), 0);
        drop((decode, prefill));
        machine.end()?;
        calls
    };
    assert!(calls.len() >= at_least, "only {} calls: {calls:?}", calls.len());
    let again = calls.iter().filter(|call| call.function == AGAIN).count() as u64;
    let case = Case { spec, work, again };
    for (index, call) in calls.iter().enumerate() {
        let nth = calls[..=index].iter().filter(|c| c.function == call.function).count();
        for status in STATUSES {
            case.fail(call.function, nth as u64, status)?;
        }
    }
    Ok(())
}

/// The work on a device, and its number of second attempts without a failure.
struct Case {
    spec: &'static str,
    work: Work,
    again: u64,
}

impl Case {
    fn fail(&self, function: &str, nth: u64, status: CUresult) -> Outcome {
        let &Case { spec, work, again } = self;
        let what = format!("{function}, call {nth}, {status}");
        let machine = Machine::of(spec)?;
        let reported = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&reported);
        let _hook = machine.device.driver().on_cleanup_failure(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
        // An error that none of the calls below causes.
        assert!(alloc_on(-1, 1, decode.as_raw()).is_null());
        let before = last_error();
        machine.sim.fail(Fault::on(function).nth(nth).with(status))?;
        let result = work(&machine, &decode, &prefill);
        machine.sim.clear_faults();
        let reported = reported.load(Ordering::Relaxed);
        // A failed allocation is tried again and succeeds. The work of `scarce` does that without a failure too.
        let there = machine.sim.calls().get(AGAIN).is_some_and(|count| *count > again)
            || (again > 0 && function == "cuMemAllocFromPoolAsync");
        assert!(
            result.is_err() || reported > 0 || last_error() != before || there,
            "{what}: nothing was reported"
        );
        // Later calls return the blocks that could not be returned.
        work(&machine, &decode, &prefill)
            .map_err(|error| format!("{what}, afterwards: {error}"))?;
        // A graph that could not be destroyed still holds its block.
        let kept = u64::from(function == "cuGraphDestroy");
        let usage = machine.allocator.usage();
        assert_eq!((usage.current_bytes, usage.current_blocks), (100 * kept, kept), "{what}");
        assert_eq!(machine.sim.live().allocations, kept, "{what}");
        assert_eq!(machine.allocator.snapshot().waiting.len() as u64, kept, "{what}");
        assert_eq!(machine.sim.races(), [], "{what}");
        drop((decode, prefill));
        if reported == 0 {
            machine.end().map_err(|error| format!("{what}: {error}"))?;
        }
        Ok(())
    }
}

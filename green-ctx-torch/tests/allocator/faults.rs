//! Each driver call failing in turn: the failure is reported, nothing is leaked, and the accounts
//! are whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim_0_1::Fault;
use green_ctx::{CUresult, Stream, graph::CaptureMode};
use green_ctx_torch::allocator::c;

use crate::machine::{Machine, Outcome, alloc, alloc_on, free, last_error, record};

const STATUSES: [CUresult; 3] = [
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_UNKNOWN,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
];

/// What is done while one call fails.
type Work = fn(&Machine, &Stream, &Stream) -> Result<(), green_ctx::Error>;

/// Two blocks: one that stays on its stream, one used on two.
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

#[test]
fn plain_blocks() -> Outcome {
    exhaust(plain, 20)
}

#[test]
fn shareable_blocks() -> Outcome {
    exhaust(shareable, 15)
}

#[test]
fn captured_blocks() -> Outcome {
    exhaust(captured, 15)
}

fn exhaust(work: Work, at_least: usize) -> Outcome {
    let calls = {
        let machine = Machine::new()?;
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
    for (index, call) in calls.iter().enumerate() {
        let nth = calls[..=index].iter().filter(|c| c.function == call.function).count();
        for status in STATUSES {
            fail(work, call.function, nth as u64, status)?;
        }
    }
    Ok(())
}

fn fail(work: Work, function: &str, nth: u64, status: CUresult) -> Outcome {
    let what = format!("{function}, call {nth}, {status}");
    let machine = Machine::new()?;
    let reported = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reported);
    let _hook = machine.device.driver().on_cleanup_failure(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    // Something that no call below says.
    assert!(alloc_on(-1, 1, decode.as_raw()).is_null());
    let before = last_error();
    machine.sim.fail(Fault::on(function).nth(nth).with(status))?;
    let result = work(&machine, &decode, &prefill);
    machine.sim.clear_faults();
    let reported = reported.load(Ordering::Relaxed);
    assert!(
        result.is_err() || reported > 0 || last_error() != before,
        "{what}: nothing was reported"
    );
    // Later calls give back what could not be.
    work(&machine, &decode, &prefill).map_err(|error| format!("{what}, afterwards: {error}"))?;
    // A graph that could not be destroyed keeps its block.
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

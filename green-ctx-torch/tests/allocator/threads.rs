//! Several threads use an allocator at the same time.

use std::thread;

use green_ctx_torch::allocator::c;

use crate::machine::{Machine, Outcome, alloc, free, record};

#[test]
fn threads_share_an_allocator() -> Outcome {
    const THREADS: usize = 8;
    const ROUNDS: usize = 50;
    let machine = Machine::new()?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    assert_eq!(c::green_ctx_torch_set_limit(0, 4000), 0);
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (own, other) =
                if index % 2 == 0 { (&decode, &prefill) } else { (&prefill, &decode) };
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let block = alloc(100 + round, own.as_raw());
                    assert!(c::green_ctx_torch_current_bytes(0) <= 4000);
                    if !block.is_null() {
                        record(block, other.as_raw());
                        free(block, if round % 3 == 0 { other } else { own }.as_raw());
                    }
                }
            });
        }
    });
    let usage = machine.allocator.usage();
    assert_eq!((usage.current_bytes, usage.current_blocks, usage.failures), (0, 0, 0));
    assert_eq!(usage.allocations + usage.refusals, (THREADS * ROUNDS) as u64);
    assert!(usage.peak_bytes <= 4000);
    assert_eq!(machine.sim.live().allocations, 0);
    assert_eq!(machine.sim.races(), []);
    drop((decode, prefill));
    machine.end()
}

/// Simultaneous first calls create one pool.
#[test]
fn the_first_use_comes_from_many_threads() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| free(alloc(64, stream.as_raw()), stream.as_raw()));
        }
    });
    assert_eq!(machine.sim.live().memory_pools, 1);
    assert_eq!(machine.allocator.usage().allocations, 8);
    drop(stream);
    machine.end()
}

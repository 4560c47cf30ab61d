//! Refused requests, and the state after them.

use std::ptr::null_mut;

use green_ctx_torch::allocator::{Allocator, AllocatorError, Owner, c};

use crate::machine::{Machine, Outcome, alloc, free, last_error, limit_partition, snapshot};

#[test]
fn a_limit_refuses_and_takes_nothing() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let raw = stream.as_raw();
    assert_eq!(c::green_ctx_torch_set_limit(0, 1000), 0);
    let first = alloc(600, raw);
    let before = machine.sim.live();
    assert!(alloc(401, raw).is_null());
    assert!(alloc(usize::MAX, raw).is_null());
    assert_eq!(machine.sim.live(), before);
    let usage = machine.allocator.usage();
    assert_eq!((usage.current_bytes, usage.peak_bytes, usage.refusals), (600, 600, 2));
    let error = last_error();
    assert!(error.contains("600 of the 1000 bytes of the allocator"), "{error}");
    assert_eq!(snapshot()["last_error"], error);
    let second = alloc(400, raw);
    assert!(!second.is_null(), "exactly the limit");
    free(first, raw);
    // Freed memory is available immediately: PyTorch tries again after it has freed its cache.
    let third = alloc(600, raw);
    assert!(!third.is_null());
    [second, third].into_iter().for_each(|block| free(block, raw));
    assert_eq!(c::green_ctx_torch_set_limit(0, u64::MAX), 0);
    assert_eq!(machine.allocator.limit(), None);
    drop(stream);
    machine.end()
}

#[test]
fn a_partition_has_a_limit_of_its_own() -> Outcome {
    let machine = Machine::new()?;
    let (decode, prefill) = (machine.stream("decode", 16)?, machine.stream("prefill", 64)?);
    assert_eq!(limit_partition("decode", 100), 0);
    assert!(alloc(101, decode.as_raw()).is_null());
    assert!(last_error().contains("partition decode"), "{}", last_error());
    let blocks = [(100, &decode), (5000, &prefill)]
        .map(|(bytes, stream)| (alloc(bytes, stream.as_raw()), stream));
    assert!(blocks.iter().all(|(block, _)| !block.is_null()));
    assert_eq!(machine.usage("decode").refusals, 1);
    assert_eq!(machine.usage("prefill").refusals, 0);
    blocks.iter().for_each(|(block, stream)| free(*block, stream.as_raw()));
    // SAFETY: the function rejects null.
    assert_eq!(unsafe { c::green_ctx_torch_set_partition_limit(0, std::ptr::null(), 1) }, -1);
    drop((decode, prefill));
    machine.end()
}

#[test]
fn a_fraction_of_the_memory() -> Outcome {
    let machine = Machine::new()?;
    c::green_ctx_torch_memory_fraction(0.25, 0);
    let total = machine.device.total_memory()? as u64;
    assert_eq!(machine.allocator.limit(), Some(total / 4));
    let _hook = machine.device.driver().on_cleanup_failure(|_| {});
    for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        c::green_ctx_torch_memory_fraction(wrong, 0);
        assert_eq!(machine.allocator.limit(), Some(total / 4), "{wrong}");
        assert!(last_error().contains("from 0 to 1"), "{}", last_error());
    }
    c::green_ctx_torch_memory_fraction(0.0, 0);
    assert!(alloc(1, null_mut()).is_null());
    machine.end()
}

#[test]
fn the_device_s_memory_is_a_limit_too() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let total = machine.device.total_memory()?;
    assert!(alloc(total, stream.as_raw()).is_null());
    assert!(last_error().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", last_error());
    let usage = machine.allocator.usage();
    assert_eq!((usage.failures, usage.refusals, usage.current_bytes), (1, 0, 0));
    drop(stream);
    machine.end()
}

#[test]
fn from_rust_the_reason_is_a_type() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let allocator = Allocator::of(&machine.device);
    allocator.set_partition_limit("decode", Some(10));
    // SAFETY: the stream is alive.
    let refused = unsafe { allocator.allocate(11, stream.as_raw()) };
    let Err(AllocatorError::Limit { owner, bytes: 11, used: 0, limit: 10 }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(owner, Some(Owner::Partition("decode".into())));
    drop((stream, allocator));
    machine.end()
}

//! Wrong calls and their errors. No panic reaches C.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use green_ctx::sim::{Fault, Sim};
use green_ctx::{CUresult, Driver};
use green_ctx_torch::allocator::{Allocator, AllocatorError, c};

use crate::machine::{Machine, Outcome, alloc, alloc_on, free, last_error, record};

/// Collects the errors that the clean-up hook receives.
fn heard(machine: &Machine) -> Arc<Mutex<Vec<String>>> {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&reported);
    machine
        .device
        .driver()
        .on_cleanup_failure(move |error| {
            hook.lock().expect("no panic under this lock").push(error.to_string());
        })
        .keep();
    reported
}

#[test]
fn blocks_that_are_not_there() -> Outcome {
    let machine = Machine::new()?;
    let reported = heard(&machine);
    let stream = machine.stream("decode", 16)?;
    let block = alloc(64, stream.as_raw());
    let inside = without_provenance_mut::<c_void>(block.addr() + 1);
    let behind = without_provenance_mut::<c_void>(block.addr() + 64);
    for unknown in [without_provenance_mut(0x1234), inside, behind] {
        free(unknown, stream.as_raw());
        assert!(last_error().contains("there is no block"), "{}", last_error());
    }
    record(behind, stream.as_raw());
    assert_eq!(reported.lock().map_err(|_| "poisoned")?.len(), 4);
    assert_eq!(machine.allocator.current_bytes(), 64);
    free(block, stream.as_raw());
    free(block, stream.as_raw());
    assert_eq!(reported.lock().map_err(|_| "poisoned")?.len(), 5, "freed twice");
    drop(stream);
    machine.end()
}

#[test]
fn devices_that_are_not_there() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    for device in [-1, 1, i32::MAX, i32::MIN] {
        assert!(alloc_on(device, 64, stream.as_raw()).is_null());
        assert!(last_error().contains("there is no device"), "{}", last_error());
        assert_eq!(c::green_ctx_torch_set_limit(device, 1), -1);
        assert_eq!(c::green_ctx_torch_current_bytes(device), 0);
        // SAFETY: the buffer is null, which the function allows.
        assert_eq!(unsafe { c::green_ctx_torch_snapshot(device, null_mut(), 0) }, 0);
    }
    let reported = heard(&machine);
    let block = alloc(64, stream.as_raw());
    // SAFETY: the device is wrong, so the function frees nothing.
    unsafe { c::green_ctx_torch_free(block, 64, 1, stream.as_raw()) };
    assert_eq!(reported.lock().map_err(|_| "poisoned")?.len(), 1);
    assert_eq!(machine.allocator.current_bytes(), 64);
    free(block, stream.as_raw());
    drop(stream);
    machine.end()
}

#[test]
fn a_stream_of_another_device() -> Outcome {
    let machine = Machine::new()?;
    let other = Sim::builder("h200@13.0".parse::<green_ctx::sim::Spec>()?).devices(2).build()?;
    let driver = Driver::simulated(&other)?;
    Allocator::install(&driver)?;
    let stream = driver.device(1)?.primary_context()?.create_stream(Default::default())?;
    assert!(alloc_on(0, 64, stream.as_raw()).is_null());
    assert!(last_error().contains("different devices"), "{}", last_error());
    // The null stream means the one of the block's device, whichever device is current.
    let group = driver.device(1)?.resources().sm()?.split([16])?.groups.remove(0);
    let partition = driver.device(1)?.create_context(group)?;
    let _current = partition.make_current()?;
    let block = alloc_on(0, 64, null_mut());
    let usage = Allocator::of(&driver.device(0)?).outside();
    assert_eq!(usage.current_bytes, 64);
    free(block, null_mut());
    assert_eq!(other.races(), []);
    drop(machine);
    Ok(())
}

#[test]
fn a_panic_of_the_hook_stays_in_the_hook() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let block = alloc(64, stream.as_raw());
    let _hook = machine.device.driver().on_cleanup_failure(|_| panic!("of the hook"));
    machine.sim.fail(Fault::on("cuMemFreeAsync").nth(1).with(CUresult::CUDA_ERROR_UNKNOWN))?;
    free(block, stream.as_raw());
    assert!(last_error().contains("cuMemFreeAsync"), "{}", last_error());
    free(without_provenance_mut(0x1234), stream.as_raw());
    record(without_provenance_mut(0x1234), stream.as_raw());
    c::green_ctx_torch_memory_fraction(2.0, 0);
    // No lock is left locked and no block is lost: the next call returns the block.
    machine.sim.clear_faults();
    let _hook = machine.device.driver().on_cleanup_failure(|_| {});
    free(alloc(8, stream.as_raw()), stream.as_raw());
    assert_eq!(machine.allocator.current_bytes(), 0);
    drop(stream);
    machine.end()
}

#[test]
fn another_driver_is_installed_when_nothing_is_out() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let block = alloc(64, stream.as_raw());
    let other = Driver::simulated(&Sim::new("h200")?)?;
    Allocator::install(machine.device.driver())?;
    for refused in [Allocator::install(&other), Allocator::uninstall()] {
        assert!(matches!(refused, Err(AllocatorError::InUse { device: 0, blocks: 1 })));
    }
    free(block, stream.as_raw());
    Allocator::install(&other)?;
    free(alloc(64, null_mut()), null_mut());
    assert_eq!(Allocator::of(&other.device(0)?).usage().allocations, 1);
    Allocator::global(0)?.set_limit(Some(100));
    assert!(alloc(101, null_mut()).is_null());
    Allocator::install(machine.device.driver())?;
    drop(stream);
    machine.end()
}

#[test]
fn a_shareable_block_has_a_handle() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let pooled = alloc(64, stream.as_raw());
    assert_eq!(c::green_ctx_torch_set_shareable(0, 1), 0);
    let shared = alloc(128, stream.as_raw());
    let handle = |block: *mut c_void| {
        let mut handle = [0; 64];
        // SAFETY: `handle` has 64 bytes.
        let status = unsafe { c::green_ctx_torch_ipc_handle(block, &raw mut handle) };
        (status, handle)
    };
    assert_eq!(handle(pooled), (-1, [0; 64]));
    assert!(last_error().contains("comes from a memory pool"), "{}", last_error());
    let (status, first) = handle(shared);
    assert_eq!(status, 0);
    assert_ne!(first, [0; 64]);
    assert_eq!(handle(without_provenance_mut(shared.addr() + 127)), (0, first));
    assert_eq!(handle(without_provenance_mut(shared.addr() + 128)).0, -1);
    assert_eq!(handle(null_mut()).0, -1);
    // SAFETY: the function rejects null.
    assert_eq!(unsafe { c::green_ctx_torch_ipc_handle(shared, null_mut()) }, -1);
    [pooled, shared].into_iter().for_each(|block| free(block, stream.as_raw()));
    drop(stream);
    machine.end()
}

#[test]
fn where_a_block_begins() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    let block = alloc(100, stream.as_raw());
    let base = |address: usize| {
        let mut size = 7;
        let address = without_provenance_mut(address);
        // SAFETY: `size` is a live local.
        let base = unsafe { c::green_ctx_torch_base_alloc(address, &raw mut size) };
        (base.addr(), size)
    };
    let begin = block.addr();
    assert_eq!([base(begin), base(begin + 99)], [(begin, 100); 2]);
    assert_eq!([base(begin + 100), base(0)], [(begin + 100, 7), (0, 7)]);
    // SAFETY: `size` may be null.
    assert_eq!(unsafe { c::green_ctx_torch_base_alloc(block, null_mut()) }, block);
    free(block, stream.as_raw());
    drop(stream);
    machine.end()
}

#[test]
fn what_is_kept_is_given_back() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream("decode", 16)?;
    c::green_ctx_torch_init(1);
    free(alloc(64, stream.as_raw()), stream.as_raw());
    machine.sim.record_calls(true);
    c::green_ctx_torch_reset();
    assert_eq!(c::green_ctx_torch_empty_cache(0), 0);
    assert_eq!(c::green_ctx_torch_set_release_threshold(0, 1), 0);
    let calls = machine.sim.call_log();
    let count = |name| calls.iter().filter(|call| call.function == name).count();
    assert_eq!((count("cuMemPoolTrimTo"), count("cuMemPoolSetAttribute")), (2, 1));
    drop(stream);
    machine.end()
}

#[test]
fn an_allocator_that_ends_reports_blocks() -> Outcome {
    let sim = Sim::new("h200")?;
    let driver = Driver::simulated(&sim)?;
    let reported = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reported);
    let _hook = driver.on_cleanup_failure(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let device = driver.device(0)?;
    // Without a live context, the driver would free the memory.
    let _primary = device.primary_context()?;
    let allocator = Allocator::of(&device);
    // SAFETY: `_primary` keeps the primary context alive, and therefore the context's null stream.
    let block = unsafe { allocator.allocate(64, null_mut()) }?;
    assert_ne!(block, 0);
    drop(allocator);
    assert_eq!(reported.load(Ordering::Relaxed), 1);
    assert_eq!((sim.live().memory_pools, sim.live().allocations), (0, 1));
    Ok(())
}

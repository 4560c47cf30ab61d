//! Guards, and the calls that they depend on.
#![allow(unsafe_code, reason = "sets PyTorch's streams")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx_torch::{Torch, TorchError, raw_stream};

use crate::common::{Machine, Outcome, torch};
use crate::fake;

/// Counts the failed clean-ups that the hook receives.
fn failures(torch: &Torch) -> Arc<AtomicUsize> {
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&heard);
    torch.on_cleanup_failure(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    heard
}

#[test]
fn the_very_stream_comes_back() -> Outcome {
    let machine = Machine::new()?;
    let (torch, stream) = (&machine.torch, machine.stream(0)?);
    let own = machine.pool_stream()?;
    fake::set_own(raw_stream(&own), 0);
    let before = fake::current(0);
    {
        let _guard = torch.guard(&stream)?;
        assert_eq!(torch.current_stream(0)?, raw_stream(&stream));
        assert_eq!(torch.current_stream(1)?, ptr::null_mut());
    }
    assert_eq!(fake::current(0), before);
    // Set by its handle alone, it is a different stream to PyTorch.
    // SAFETY: the stream lives until the test ends.
    unsafe { torch.set_current_stream(raw_stream(&own), 0) }?;
    assert_ne!(fake::current(0), before);
    // SAFETY: the default stream always exists.
    unsafe { torch.set_current_stream(ptr::null_mut(), 0) }?;
    assert_eq!(torch.current_stream(0)?, ptr::null_mut());
    Ok(())
}

#[test]
fn a_panic_puts_the_stream_back() -> Outcome {
    let machine = Machine::new()?;
    let stream = machine.stream(0)?;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _guard = machine.torch.guard(&stream);
        assert_eq!(fake::current(0).raw, raw_stream(&stream).addr());
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(result.is_err());
    assert_eq!((fake::current(0), fake::guards()), (fake::DEFAULT, 0));
    Ok(())
}

#[test]
fn a_guard_keeps_its_stream() -> Outcome {
    let machine = Machine::new()?;
    let (live, driver) = (machine.sim.live().streams, machine.device.driver());
    let stream = machine.stream(0)?;
    let (guard, raw) = (machine.torch.guard(&stream)?, stream.as_raw());
    drop(stream);
    assert!(driver.find_stream(raw).is_some());
    drop(guard);
    // The object is gone. The driver's stream waits for reuse, because PyTorch has seen it.
    assert!(driver.find_stream(raw).is_none());
    assert_eq!(machine.sim.live().streams, live + 1);
    assert_eq!(machine.stream(0)?.as_raw(), raw);
    Ok(())
}

#[test]
fn a_guard_that_ends_out_of_order_is_reported() -> Outcome {
    let machine = Machine::new()?;
    let heard = failures(&machine.torch);
    let (first, second) = (machine.stream(0)?, machine.stream(1)?);
    let live = machine.sim.live().streams;
    let outer = machine.torch.guard(&first)?;
    let inner = machine.torch.guard(&second)?;
    let raw = raw_stream(&first);
    drop((outer, first, second));
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    assert_ne!(machine.torch.current_stream(0)?, raw, "the inner one's is current");
    drop(inner);
    // The stream that the inner guard restores is still alive.
    assert_eq!(machine.torch.current_stream(0)?, raw);
    assert!(machine.device.driver().find_stream(raw.cast()).is_some());
    assert_eq!((machine.sim.live().streams, heard.load(Ordering::Relaxed)), (live, 1));
    Ok(())
}

#[test]
fn failures_change_nothing() -> Outcome {
    let machine = Machine::new()?;
    let heard = failures(&machine.torch);
    let stream = machine.stream(0)?;
    fake::fail(1);
    let failed = machine.torch.guard(&stream);
    assert!(matches!(
        failed,
        Err(TorchError::Call { call: "aoti_torch_create_cuda_stream_guard", code: 1 })
    ));
    assert_eq!((fake::current(0), fake::guards()), (fake::DEFAULT, 0));
    // If the guard cannot restore the previous stream, the stream that stays current stays alive.
    let live = machine.sim.live().streams;
    let guard = machine.torch.guard(&stream)?;
    fake::fail(1);
    drop((guard, stream));
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    assert_eq!(machine.sim.live().streams, live);
    // The order of later guards is not affected.
    let other = machine.stream(1)?;
    drop(machine.torch.guard(&other)?);
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn the_other_calls() -> Outcome {
    let torch = torch();
    let (low, high) = (torch.stream_from_pool(1, false)?, torch.stream_from_pool(1, true)?);
    assert_ne!(low, high);
    // SAFETY: the default stream always exists.
    unsafe { torch.synchronize_stream(ptr::null_mut(), 0) }?;
    for device in [2, u32::MAX] {
        assert!(torch.current_stream(device).is_err());
        assert!(torch.stream_from_pool(device, false).is_err());
        // SAFETY: the default stream always exists.
        assert!(unsafe { torch.set_current_stream(ptr::null_mut(), device) }.is_err());
        // SAFETY: the default stream always exists.
        assert!(unsafe { torch.synchronize_stream(ptr::null_mut(), device) }.is_err());
    }
    Ok(())
}

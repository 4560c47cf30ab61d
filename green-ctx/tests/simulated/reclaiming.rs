//! Reclaim hooks: functions of the program that release partitions before SMs are taken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use green_ctx::{Error, StreamOptions, context::CloseReason};

use crate::common::{Outcome, group, partition};
use crate::{Machine, STRUCTURED, each_driver, of};

/// Returns a counter, and a function that increments it.
fn counter() -> (Arc<AtomicUsize>, impl Fn()) {
    let count = Arc::new(AtomicUsize::new(0));
    let of_hook = Arc::clone(&count);
    let count_one = move || {
        of_hook.fetch_add(1, Ordering::Relaxed);
    };
    (count, count_one)
}

#[test]
fn whatever_wants_sms_calls_first() -> Outcome {
    each_driver(|machine| {
        let device = &machine.device;
        let (calls, count) = counter();
        let hook = device.driver().on_reclaim(move |_| count());
        let called = || calls.swap(0, Ordering::Relaxed);
        let sms = device.resources().sm()?;
        assert_eq!(called(), 0);
        // A dry run only reads.
        sms.dry_run([16])?;
        if machine.has(STRUCTURED) {
            sms.structured_counts(of([16]).coscheduled(8))?;
        }
        assert_eq!(called(), 0);
        let context = partition(device, 16)?;
        assert_eq!(called(), 1);
        let group = context.close()?;
        assert_eq!(called(), 1);
        // Returning SMs does not call the hook.
        drop(group);
        device.release_idle();
        assert_eq!((called(), sms.free_sm_count()), (0, 132));
        // An invalid request does not call the hook.
        assert!(sms.split([0]).is_err());
        assert_eq!(called(), 0);

        drop(hook);
        drop(sms.split([16])?);
        assert_eq!((called(), Arc::strong_count(&calls)), (0, 1));
        Ok(())
    })
}

#[test]
fn what_is_let_go_of_is_free_at_once() -> Outcome {
    each_driver(|Machine { device, .. }| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let of_hook = Arc::clone(&kept);
        let _hook = device.driver().on_reclaim(move |driver| {
            let unused = std::mem::take(&mut *of_hook.lock().expect("no panic"));
            assert!(!driver.is_forked());
            drop(unused);
        });
        let keep = |handle| kept.lock().expect("no panic").push(handle);
        let context = partition(device, 128)?;
        keep(context.create_stream(StreamOptions::default())?);
        drop(context);
        let context = partition(device, 128)?;
        keep(context.create_stream(StreamOptions::default())?);
        // The close succeeds only if the hook dropped the stream, which keeps the context alive.
        context.close()?;
        Ok(())
    })
}

#[test]
fn functions_are_called_in_order_and_not_by_each_other() -> Outcome {
    each_driver(|Machine { device, .. }| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let hook = |number: u32| {
            let order = Arc::clone(&order);
            device.driver().on_reclaim(move |driver| {
                order.lock().expect("no panic").push(number);
                // The hook may take SMs itself.
                let device = driver.device(0).expect("a device");
                let context = partition(&device, 8).expect("8 SMs are free");
                context.close().expect("nothing else has it");
            })
        };
        let (first, second, _third) = (hook(1), hook(2), hook(3));
        let taken = || std::mem::take(&mut *order.lock().expect("no panic"));
        drop(group(device, 16)?);
        assert_eq!(taken(), [1, 2, 3]);
        drop(second);
        drop(group(device, 16)?);
        assert_eq!(taken(), [1, 3]);
        let _fourth = hook(4);
        drop(first);
        drop(group(device, 16)?);
        assert_eq!(taken(), [3, 4]);
        Ok(())
    })
}

#[test]
fn a_panic_goes_to_whoever_wanted_sms() -> Outcome {
    each_driver(|Machine { device, .. }| {
        let sms = device.resources().sm()?;
        let context = partition(device, 16)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let hook = device.driver().on_reclaim(|_| std::panic::resume_unwind(Box::new("refused")));
        let split = catch_unwind(AssertUnwindSafe(|| sms.split([16])));
        assert!(split.is_err());
        let other = context.clone();
        assert!(catch_unwind(AssertUnwindSafe(|| other.close())).is_err());
        // The panic left no SMs taken, and the next call behaves like the first.
        assert_eq!(sms.free_sm_count(), 116);
        assert!(catch_unwind(AssertUnwindSafe(|| sms.split([16]))).is_err());
        drop(hook);
        drop(sms.split([16])?);
        let refused = context.close().expect_err("its stream lives");
        assert!(matches!(refused.reason, CloseReason::Shared { .. }));
        drop(stream);
        refused.given.close()?;
        Ok(())
    })
}

/// A hook may own handles, and may remove itself while it runs.
#[test]
fn a_function_may_remove_itself() -> Outcome {
    each_driver(|Machine { device, .. }| {
        let its_own = Arc::new(Mutex::new(None));
        let of_hook = Arc::clone(&its_own);
        let context = partition(device, 128)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let hook = device.driver().on_reclaim(move |_| {
            let _owned = &stream;
            drop(of_hook.lock().expect("no panic").take());
        });
        *its_own.lock().expect("no panic") = Some(hook);
        let refused = partition(device, 128);
        assert!(matches!(refused, Err(Error::NotEnoughSms(_))));
        // The stream was dropped with the hook, after the call returned.
        context.close()?;
        Ok(())
    })
}

#[test]
fn a_function_that_is_kept_keeps_no_driver() -> Outcome {
    let Machine { sim, device } = Machine::new("h200@13.0")?;
    let (calls, count) = counter();
    device.driver().on_reclaim(move |_| count()).keep();
    drop(partition(&device, 8)?);
    assert_eq!((calls.load(Ordering::Relaxed), device.context_counts().idle), (1, 1));
    drop(device);
    assert_eq!(sim.live().green_contexts, 0);
    Ok(())
}

//! Contexts, and what is current.

use std::sync::{Arc, Mutex};

use green_ctx::{
    StreamOptions,
    context::{CloseReason, Context},
};

use crate::common::{Outcome, device, partition};

#[test]
fn a_context_knows_what_it_is() -> Outcome {
    let device = device()?;
    let primary = device.primary_context()?;
    let green = partition(&device, 32)?;
    assert!(!primary.is_green() && green.is_green());
    assert_eq!((primary.sm_count()?, green.sm_count()?), (device.sm_count()?, 32));
    assert_ne!(primary.id()?, green.id()?);
    assert_ne!(primary, green);
    assert_eq!(primary, device.primary_context()?);
    assert_eq!(green.group().map(|group| group.sm_count()), Some(32));
    assert!(primary.group().is_none());
    Ok(())
}

#[test]
fn a_raw_handle_leads_to_the_object_that_owns_it() -> Outcome {
    let device = device()?;
    let driver = device.driver();
    let green = partition(&device, 8)?;
    let stream = green.create_stream(StreamOptions::default())?;
    assert_eq!(driver.find_context(green.as_raw()), Some(green.clone()));
    assert_eq!(driver.find_stream(stream.as_raw()), Some(stream.clone()));
    assert_eq!(driver.find_stream(std::ptr::null_mut()), None);
    let raw = stream.as_raw();
    drop(stream);
    assert_eq!(driver.find_stream(raw), None);
    Ok(())
}

#[test]
fn closing_a_context_gives_its_group_back() -> Outcome {
    let device = device()?;
    let context = partition(&device, 24)?;
    let group = context.close()?.expect("a green context has a group");
    assert_eq!(group.sm_count(), 24);
    // The same SMs make another context.
    let context = device.create_context(group)?;
    assert_eq!(context.sm_count()?, 24);
    drop(context);
    assert_eq!(device.resources().sm()?.free(), device.sm_count()?);
    Ok(())
}

#[test]
fn a_context_in_use_is_not_closed() -> Outcome {
    let device = device()?;
    let context = partition(&device, 8)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let error = context.close().expect_err("a stream uses it");
    assert!(matches!(error.reason, CloseReason::Shared { .. }), "{error:?}");
    let context = error.context;
    assert_eq!(device.driver().find_context(context.as_raw()), Some(context.clone()));
    stream.synchronize()?;
    drop(stream);

    let current = context.make_current()?;
    let error = context.close().expect_err("a guard keeps it");
    assert!(matches!(error.reason, CloseReason::Shared { .. }), "{error:?}");
    drop(current);
    assert!(error.context.close()?.is_some());
    Ok(())
}

#[test]
fn guards_nest_and_restore() -> Outcome {
    let device = device()?;
    let driver = device.driver();
    let (primary, green) = (device.primary_context()?, partition(&device, 8)?);
    assert_eq!(Context::current(driver)?, None);
    let outer = primary.make_current()?;
    {
        let _inner = green.make_current()?;
        assert_eq!(Context::current(driver)?, Some(green.clone()));
    }
    assert_eq!(Context::current(driver)?, Some(primary.clone()));
    drop(outer);
    assert_eq!(Context::current(driver)?, None);
    Ok(())
}

#[test]
fn a_guard_out_of_order_is_reported_and_harms_nothing() -> Outcome {
    let device = device()?;
    let driver = device.driver().clone();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let _hook = driver.on_cleanup_failure(move |error| {
        sink.lock().expect("no test panics here").push(error.to_string());
    });
    // On a thread of its own: a guard that ended out of order stays on the thread's stack.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> green_ctx::Result<()> {
            let (primary, green) = (device.primary_context()?, partition(&device, 8)?);
            let outer = primary.make_current()?;
            let inner = green.make_current()?;
            drop(outer);
            assert_eq!(Context::current(&driver)?, Some(green.clone()));
            drop(inner);
            assert_eq!(Context::current(&driver)?, Some(primary));
            Ok(())
        });
        thread.join().expect("no panic")
    })?;
    let reports = reports.lock().expect("no test panics here");
    assert_eq!(*reports, ["a guard ended out of order: another context is current"]);
    Ok(())
}

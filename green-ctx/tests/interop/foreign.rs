//! Foreign handles: one raw handle, one object, and nothing destroyed that is somebody else's.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use green_ctx::sim_0_1::{Live, Sim};
use green_ctx::{
    Driver, Error, Event, Stream, StreamOptions, context::Context, event::EventOptions,
    stream::DefaultStream,
};

use crate::common::{Outcome, partition, simulated};
use crate::raw;

/// Says that it was dropped.
struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn owner() -> (Owner, impl Fn() -> bool) {
    let gone = Arc::new(AtomicBool::new(false));
    (Owner(Arc::clone(&gone)), move || gone.load(Ordering::SeqCst))
}

const DRIVERS: [&str; 4] = ["h200@12.4", "h200@12.5", "h200@13.0", "h200@13.1"];

/// A stream that another library makes in a context of this crate, with that context as the current
/// one, is one of that context.
#[test]
fn a_foreign_stream_finds_our_context() -> Outcome {
    for spec in DRIVERS {
        let (sim, device) = simulated(spec)?;
        let contexts = [device.primary_context()?, partition(&device, 8)?];
        for context in &contexts {
            let raw = raw::stream(context)?;
            assert_eq!(device.driver().find_stream(raw), None);
            let (owner, gone) = owner();
            // SAFETY: the stream is destroyed below, after its object is gone.
            let stream = unsafe { Stream::from_raw_borrowed(device.driver(), raw, owner) }?;
            assert_eq!(stream.context(), context, "{spec}");
            assert_eq!(stream.as_raw(), raw);
            assert_eq!(device.driver().find_stream(raw).as_ref(), Some(&stream));
            let clone = stream.clone();
            drop(stream);
            assert!(!gone());
            drop(clone);
            assert!(gone());
            assert_eq!(device.driver().find_stream(raw), None);
            // It is the other library's still.
            raw::destroy_stream(&device, raw)?;
        }
        drop((contexts, device));
        assert_eq!(sim.live(), Live::default(), "{spec}");
    }
    Ok(())
}

#[test]
fn a_foreign_green_context_is_one_object() -> Outcome {
    for spec in DRIVERS {
        let (sim, device) = simulated(spec)?;
        let driver = device.driver();
        let green = Arc::new(raw::Green::create(&device)?);
        // SAFETY: the owner keeps the context.
        let context =
            unsafe { Context::from_raw_borrowed(driver, green.context, Arc::clone(&green)) }?;
        assert!(context.is_green() && context.group().is_none());
        assert_eq!((context.device(), context.sm_count()?), (&device, 16));
        assert_eq!(context.as_raw_green(), Some(green.green));
        assert_eq!(driver.find_context(green.context).as_ref(), Some(&context));

        // Its streams lead to the same object, ours and others.
        let ours = context.create_stream(StreamOptions::default())?;
        assert_eq!(ours.context(), &context);
        let theirs = raw::stream(&context)?;
        // SAFETY: the stream was made just now, and nobody else has it.
        let theirs = unsafe { Stream::from_raw_owned(&context, theirs) }?;
        assert_eq!(theirs.context(), &context);
        ours.wait_for(&theirs)?;
        let event = device.create_event(EventOptions::default())?;
        context.record(&event)?;
        context.wait(&event)?;
        context.synchronize()?;

        // The last handle lets go of the owner, and destroys no context.
        drop((ours, theirs));
        assert_eq!(Arc::strong_count(&green), 2);
        assert!(context.close()?.is_none());
        assert_eq!(Arc::strong_count(&green), 1);
        assert_eq!((sim.live().green_contexts, sim.live().streams), (1, 0));
        drop((green, event, device));
        assert_eq!(sim.live(), Live::default(), "{spec}");
    }
    Ok(())
}

/// A stream whose context nobody has seen borrows the context along with it.
#[test]
fn an_unknown_context_comes_with_its_stream() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let driver = device.driver();
    let green = Arc::new(raw::Green::create(&device)?);
    let (first, second) = (green.stream()?, green.stream()?);
    // SAFETY: the owner keeps the context, and the streams are destroyed after their objects.
    let first_stream = unsafe { Stream::from_raw_borrowed(driver, first, Arc::clone(&green)) }?;
    // SAFETY: as above.
    let second_stream = unsafe { Stream::from_raw_borrowed(driver, second, Arc::clone(&green)) }?;
    assert_eq!(first_stream.context(), second_stream.context());
    assert_eq!(first_stream.context().as_raw(), green.context);
    // The context is kept by who kept the stream that it came with.
    let context = second_stream.context().clone();
    drop((first_stream, second_stream));
    assert_eq!(Arc::strong_count(&green), 2);
    drop(context);
    assert_eq!(Arc::strong_count(&green), 1);
    assert_eq!(driver.find_context(green.context), None);
    raw::destroy_stream(&device, first)?;
    raw::destroy_stream(&device, second)?;
    drop((green, device));
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn a_borrowed_primary_context_is_the_primary_context() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let raw = device.primary_context()?.as_raw();
    assert_eq!(sim.live().primary_retains, 0);
    // Somebody else holds it, and the crate does not.
    let retain = device.driver().api().cuDevicePrimaryCtxRetain()?;
    let mut again = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    let status = unsafe { retain(&raw mut again, device.as_raw()) };
    assert_eq!((status, again), (green_ctx::CUresult::CUDA_SUCCESS, raw));
    let (owner, gone) = owner();
    // SAFETY: it is held.
    let context = unsafe { Context::from_raw_borrowed(device.driver(), raw, owner) }?;
    assert!(gone() && !context.is_green());
    assert_eq!(context, device.primary_context()?);
    assert_eq!(sim.live().primary_retains, 2);
    drop(context);
    assert_eq!(sim.live().primary_retains, 1);
    Ok(())
}

#[test]
fn an_owned_stream_is_destroyed_once() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let driver = device.driver();
    let context = partition(&device, 8)?;
    let raw = raw::stream(&context)?;
    let other = device.primary_context()?;
    // SAFETY: nobody else has the stream; here it is refused.
    let error = unsafe { Stream::from_raw_owned(&other, raw) }.expect_err("another context's");
    assert!(matches!(error, Error::InvalidRequest(_)) && error.is_misuse(), "{error}");
    assert_eq!(sim.live().streams, 1);

    // SAFETY: nobody else has the stream.
    let stream = unsafe { Stream::from_raw_owned(&context, raw) }?;
    // SAFETY: the stream is alive; here it is refused.
    let error = unsafe { Stream::from_raw_owned(&context, raw) }.expect_err("it has an owner");
    assert!(matches!(error, Error::AlreadyOwned { what: "stream" }), "{error}");
    // SAFETY: the stream is alive and keeps itself.
    let same = unsafe { Stream::from_raw_borrowed(driver, raw, ()) }?;
    assert_eq!(same, stream);
    assert_eq!(sim.live().streams, 1);
    drop(stream);
    assert_eq!(sim.live().streams, 1);
    drop(same);
    assert_eq!(sim.live().streams, 0);
    assert_eq!(sim.calls()["cuStreamDestroy"], 1);
    Ok(())
}

#[test]
fn events_come_and_go_as_streams_do() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let driver = device.driver();
    let ours = device.create_event(EventOptions::default())?;
    assert_eq!(ours.context(), &device.primary_context()?);
    assert_eq!(driver.find_event(ours.as_raw()).as_ref(), Some(&ours));
    // SAFETY: the event is alive; here it is refused.
    let error = unsafe { Event::from_raw_owned(&device, ours.as_raw()) }.expect_err("ours");
    assert!(matches!(error, Error::AlreadyOwned { what: "event" }), "{error}");

    let raw = raw::event(&device)?;
    let (owner, gone) = owner();
    // SAFETY: the event is alive until it is owned below.
    let borrowed = unsafe { Event::from_raw_borrowed(&device, raw, owner) }?;
    assert_eq!(driver.find_event(raw).as_ref(), Some(&borrowed));
    // SAFETY: the event is alive.
    let same = unsafe { Event::from_raw_borrowed(&device, raw, ()) }?;
    assert_eq!(same, borrowed);
    drop((same, borrowed));
    assert!(gone());
    assert_eq!(sim.live().events, 2);
    // SAFETY: nobody else has the event.
    let owned = unsafe { Event::from_raw_owned(&device, raw) }?;
    owned.synchronize()?;
    drop((owned, ours));
    assert_eq!(sim.live().events, 0);
    assert_eq!(driver.find_event(raw), None);
    // SAFETY: a null handle is refused.
    assert!(unsafe { Event::from_raw_owned(&device, ptr::null_mut()) }.is_err());
    // SAFETY: a null handle is refused.
    assert!(unsafe { Context::from_raw_borrowed(driver, ptr::null_mut(), ()) }.is_err());
    Ok(())
}

#[test]
fn an_event_of_another_device_is_reported() -> Outcome {
    let sim = Sim::builder("h200").devices(2).build()?;
    let driver = Driver::simulated(&sim)?;
    let event = driver.device(0)?.create_event(EventOptions::default())?;
    let other = driver.device(1)?;
    // SAFETY: the event is alive.
    let error = unsafe { Event::from_raw_borrowed(&other, event.as_raw(), ()) };
    assert!(matches!(error, Err(Error::DeviceMismatch { .. })));
    Ok(())
}

#[test]
fn tokens_are_no_handles() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let driver = device.driver();
    let context = device.primary_context()?;
    let _current = context.make_current()?;
    for token in [DefaultStream::Null, DefaultStream::Legacy, DefaultStream::PerThread] {
        assert_eq!(DefaultStream::from_raw(token.as_raw()), Some(token));
        assert_eq!(driver.find_stream(token.as_raw()), None);
        // SAFETY: tokens are refused.
        let owned = unsafe { Stream::from_raw_owned(&context, token.as_raw()) };
        // SAFETY: tokens are refused.
        let borrowed = unsafe { Stream::from_raw_borrowed(driver, token.as_raw(), ()) };
        for result in [owned, borrowed] {
            let error = result.expect_err("a token");
            assert!(matches!(error, Error::DefaultStream { token: found } if found == token));
            assert!(error.is_misuse() && error.to_string().contains("is no handle"), "{error}");
        }
        assert_eq!(driver.find_stream(token.as_raw()), None);
    }
    let stream = context.create_stream(StreamOptions::default())?;
    assert_eq!(DefaultStream::from_raw(stream.as_raw()), None);
    Ok(())
}

/// A token is another stream where another context is current.
#[test]
fn tokens_are_looked_up_at_each_call() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let driver = device.driver();
    let (primary, green) = (device.primary_context()?, partition(&device, 8)?);
    let event = device.create_event(EventOptions::default())?;
    assert_eq!(DefaultStream::Null.context(driver)?, None);
    assert!(DefaultStream::Null.record(&event).is_err_and(|error| error.is_misuse()));
    for context in [&primary, &green] {
        let _current = context.make_current()?;
        for token in [DefaultStream::Null, DefaultStream::Legacy, DefaultStream::PerThread] {
            assert_eq!(token.context(driver)?.as_ref(), Some(context));
            let all = token
                .record(&event)
                .and_then(|()| token.wait(&event))
                .and_then(|()| token.is_idle(driver))
                .and_then(|_| token.synchronize(driver));
            // A green context has no stream for each thread.
            let none = context.is_green() && token == DefaultStream::PerThread;
            assert_eq!(all.is_err(), none, "{token}");
        }
    }
    Ok(())
}

/// Whoever comes with one raw handle at the same time gets one object, and the rest are gone.
#[test]
fn threads_that_borrow_at_once_get_one_object() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let threads = 4;
    let barrier = Barrier::new(threads);
    for _ in 0..100 {
        let green = Arc::new(raw::Green::create(&device)?);
        let address = green.stream()?.addr();
        let borrow = |_| -> green_ctx::Result<Stream> {
            let raw = ptr::without_provenance_mut(address);
            barrier.wait();
            // SAFETY: the stream is destroyed below, after its object; the owner keeps its context.
            unsafe { Stream::from_raw_borrowed(device.driver(), raw, Arc::clone(&green)) }
        };
        let streams: Vec<Stream> = std::thread::scope(|scope| {
            let borrow = &borrow;
            let running: Vec<_> =
                (0..threads).map(|thread| scope.spawn(move || borrow(thread))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect::<green_ctx::Result<_>>()
        })?;
        for stream in &streams {
            assert_eq!(stream, &streams[0]);
            assert_eq!(stream.context(), streams[0].context());
        }
        drop(streams);
        assert_eq!(Arc::strong_count(&green), 1);
        raw::destroy_stream(&device, ptr::without_provenance_mut(address))?;
    }
    device.release_idle();
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

/// The primary context of threads that ask at once is one object, and it is found.
#[test]
fn threads_that_retain_at_once_get_one_primary_context() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let threads = 4;
    let barrier = Barrier::new(threads);
    for round in 0..300 {
        let contexts: Vec<Context> = std::thread::scope(|scope| {
            let retain = || {
                scope.spawn(|| {
                    barrier.wait();
                    device.primary_context()
                })
            };
            let running: Vec<_> = (0..threads).map(|_| retain()).collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect::<green_ctx::Result<_>>()
        })?;
        let found = device.driver().find_context(contexts[0].as_raw());
        assert!(contexts.iter().all(|context| Some(context) == found.as_ref()), "{round}");
        drop((contexts, found));
        assert_eq!(sim.live(), Live::default(), "{round}");
    }
    Ok(())
}

//! Streams and events: their contexts, their order, and foreign handles.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use green_ctx::{
    Error, Event, Stream, StreamOptions, context::Context, event::EventOptions,
    stream::DefaultStream,
};

use crate::common::{Outcome, partition, stream};
use crate::{LONG, Machine, each_driver, launch, raw};

/// An owner that records its drop.
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

#[test]
fn work_waits_for_streams_and_events_of_other_contexts() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let (one, two) = (partition(device, 8)?, partition(device, 8)?);
        let plain = stream(&device.primary_context()?)?;
        let (producer, consumer) = (stream(&one)?, stream(&two)?);
        launch(&producer, &kernel)?;
        launch(&consumer, &kernel)?;
        consumer.wait_for(&producer)?;
        launch(&consumer, &kernel)?;
        let done = device.create_event(EventOptions::default())?;
        consumer.record(&done)?;
        launch(&consumer, &kernel)?;
        plain.wait(&done)?;
        launch(&plain, &kernel)?;
        // A stream need not wait for itself.
        plain.wait_for(&plain.clone())?;
        let order: Vec<Vec<usize>> = {
            let launches = sim.launches();
            let after = |launch: &green_ctx::sim::Launch| {
                (0..launches.len())
                    .filter(|other| launch.happens_before(&launches[*other]))
                    .collect()
            };
            launches.iter().map(after).collect()
        };
        assert_eq!(order, [vec![2, 3, 4], vec![2, 3, 4], vec![3, 4], vec![], vec![]]);
        assert_eq!(sim.live().events, 1, "the event of `wait_for` is left");
        device.primary_context()?.synchronize()?;
        Ok(())
    })
}

#[test]
fn streams_report_their_state() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let kernel = machine.kernel(LONG)?;
        let context = partition(device, 8)?;
        let (urgent, other) =
            (context.create_stream(StreamOptions::default().priority(-3))?, stream(&context)?);
        assert_eq!((urgent.priority()?, other.priority()?), (-3, 0));
        assert!(urgent.id()? != other.id()? && urgent.id()? == urgent.clone().id()?);
        assert!(urgent != other && urgent == urgent.clone());
        launch(&urgent, &kernel)?;
        assert_eq!(sim.launches()[0].stream, urgent.id()?);
        assert!(!urgent.is_idle()? && other.is_idle()? && !urgent.is_capturing()?);
        urgent.synchronize()?;
        assert!(urgent.is_idle()?);
        Ok(())
    })
}

#[test]
fn host_functions_run_once_and_in_order() -> Outcome {
    each_driver(|machine| {
        let kernel = machine.kernel(LONG)?;
        let stream = stream(&partition(&machine.device, 8)?)?;
        let (sender, receiver) = mpsc::channel();
        for number in 0..4 {
            let sender = sender.clone();
            stream.launch_host(move || sender.send(number).expect("the receiver is alive"))?;
            launch(&stream, &kernel)?;
        }
        let early: Vec<u32> = receiver.try_iter().collect();
        assert!(early.len() < 4, "a function did not wait for earlier work");
        stream.synchronize()?;
        assert_eq!(early.into_iter().chain(receiver.try_iter()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        Ok(())
    })
}

/// A foreign green context is never destroyed, and its owner is kept alive until the last handle is dropped,
/// including streams.
#[test]
fn foreign_contexts_are_borrowed() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let driver = machine.driver();
        let green = raw::Green::create(device)?;
        let (owner, gone) = owner();
        // SAFETY: `green` outlives every handle of the result.
        let context = unsafe { Context::from_raw_borrowed(driver, green.context, owner) }?;
        assert!(context.is_green() && context.group().is_none());
        assert_eq!((context.sm_count()?, context.device(), machine.free()?), (16, device, 132));
        assert_eq!(driver.find_context(green.context).as_ref(), Some(&context));
        let ours = stream(&context)?;
        let late = ours.clone();
        drop((context, ours));
        assert!(!gone());
        let context = late.context().clone();
        drop(late);
        assert_eq!(context.close()?.map(|group| group.sm_count()), None);
        assert!(gone());
        assert_eq!((driver.find_context(green.context), sim.live().green_contexts), (None, 1));
        // A borrowed handle of the primary context is the same object as the retained one.
        let primary = device.primary_context()?;
        let (owner, gone) = self::owner();
        // SAFETY: `primary` keeps the context alive.
        let same = unsafe { Context::from_raw_borrowed(driver, primary.as_raw(), owner) }?;
        assert!(same == primary && gone());
        // SAFETY: a null handle is refused.
        let none = unsafe { Context::from_raw_borrowed(driver, ptr::null_mut(), ()) };
        assert!(none.is_err_and(|error| error.is_misuse()));
        Ok(())
    })
}

/// A foreign stream is found to belong to its context, whether this crate or other code created the context.
#[test]
fn foreign_streams_are_borrowed_or_owned() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let driver = machine.driver();
        let green = Arc::new(raw::Green::create(device)?);
        // SAFETY: the owner keeps the context alive.
        let foreign =
            unsafe { Context::from_raw_borrowed(driver, green.context, Arc::clone(&green)) }?;
        let known = [device.primary_context()?, partition(device, 16)?];
        for context in known.iter().chain([&foreign]) {
            let raw = raw::stream(context)?;
            assert_eq!(driver.find_stream(raw), None);
            let (owner, gone) = owner();
            // SAFETY: the raw stream is destroyed after the `Stream` objects that wrap it, and `context` keeps its
            // context alive.
            let borrowed = unsafe { Stream::from_raw_borrowed(driver, raw, owner) }?;
            assert_eq!((borrowed.context(), borrowed.as_raw()), (context, raw));
            let clone = borrowed.clone();
            drop(borrowed);
            assert!(!gone() && sim.live().streams == 1);
            drop(clone);
            assert!(gone() && sim.live().streams == 1, "a borrowed stream was destroyed");
            let other = if context == &foreign { &known[0] } else { &foreign };
            // SAFETY: no other code destroys the stream, and the call is refused.
            let wrong = unsafe { Stream::from_raw_owned(other, raw) };
            assert!(wrong.is_err_and(|error| error.is_misuse()) && sim.live().streams == 1);
            // SAFETY: no other code destroys the stream.
            let owned = unsafe { Stream::from_raw_owned(context, raw) }?;
            assert_eq!(driver.find_stream(raw).as_ref(), Some(&owned));
            drop(owned);
            assert_eq!((driver.find_stream(raw), sim.live().streams), (None, 0));
        }
        // After its last handle is dropped, the context is unknown again. A stream of it creates a new context object.
        let raw = raw::stream(&foreign)?;
        drop(foreign);
        assert_eq!(driver.find_context(green.context), None);
        // SAFETY: the owner keeps the stream's context alive, and the raw stream is destroyed after the `Stream`
        // object that wraps it.
        let stream = unsafe { Stream::from_raw_borrowed(driver, raw, Arc::clone(&green)) }?;
        assert_eq!((stream.context().as_raw(), stream.context().is_green()), (green.context, true));
        drop(stream);
        assert_eq!(Arc::strong_count(&green), 1, "an owner is still kept alive");
        raw::destroy_stream(device, raw)?;
        Ok(())
    })
}

#[test]
fn foreign_events_are_borrowed_or_owned() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let driver = machine.driver();
        let _primary = device.primary_context()?;
        let raw = raw::event(device)?;
        let (owner, gone) = owner();
        // SAFETY: the raw event is destroyed after the `Event` objects that wrap it.
        let borrowed = unsafe { Event::from_raw_borrowed(device, raw, owner) }?;
        assert_eq!(driver.find_event(raw).as_ref(), Some(&borrowed));
        let stream = stream(&partition(device, 8)?)?;
        stream.record(&borrowed)?;
        borrowed.synchronize()?;
        assert!(borrowed.is_complete()? && !gone());
        drop(borrowed);
        assert!(gone() && sim.live().events == 1);
        // SAFETY: no other code destroys the event.
        let owned = unsafe { Event::from_raw_owned(device, raw) }?;
        assert_eq!(driver.find_event(raw).as_ref(), Some(&owned));
        drop(owned);
        assert_eq!((driver.find_event(raw), sim.live().events), (None, 0));
        // SAFETY: a null handle is refused.
        let owned = unsafe { Event::from_raw_owned(device, ptr::null_mut()) };
        // SAFETY: a null handle is refused.
        let borrowed = unsafe { Event::from_raw_borrowed(device, ptr::null_mut(), ()) };
        for none in [owned, borrowed] {
            assert!(none.is_err_and(|error| error.is_misuse()));
        }
        Ok(())
    })
}

/// A token denotes the default stream of whichever context is current, and never becomes a `Stream`.
#[test]
fn default_streams_are_looked_up_at_each_call() -> Outcome {
    const TOKENS: [DefaultStream; 3] =
        [DefaultStream::Null, DefaultStream::Legacy, DefaultStream::PerThread];
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let driver = machine.driver();
        let (primary, green) = (device.primary_context()?, partition(device, 8)?);
        let event = device.create_event(EventOptions::default())?;
        for token in TOKENS {
            assert_eq!(token.context(driver)?, None);
            assert!(token.record(&event).is_err_and(|error| error.is_misuse()));
        }
        for context in [&primary, &green, &primary] {
            let _current = context.make_current()?;
            for token in TOKENS {
                assert_eq!(token.context(driver)?.as_ref(), Some(context), "{token}");
                let used = token
                    .record(&event)
                    .and_then(|()| token.wait(&event))
                    .and_then(|()| token.is_idle(driver))
                    .and_then(|_| token.synchronize(driver));
                // A green context has no per-thread default stream.
                let none = context.is_green() && token == DefaultStream::PerThread;
                assert_eq!(used.is_err(), none, "{token}: {used:?}");
                let raw = token.as_raw();
                assert_eq!(DefaultStream::from_raw(raw), Some(token));
                // SAFETY: the call refuses tokens.
                let owned = unsafe { Stream::from_raw_owned(context, raw) };
                // SAFETY: the call refuses tokens.
                let borrowed = unsafe { Stream::from_raw_borrowed(driver, raw, ()) };
                for refused in [owned, borrowed] {
                    let error = refused.expect_err("a token is not a handle");
                    assert!(
                        matches!(error, Error::DefaultStream { token: found } if found == token)
                    );
                }
                assert_eq!(driver.find_stream(raw), None, "{token}");
            }
        }
        // The default stream of one context waits; that of the other does not.
        let kernel = machine.kernel(LONG)?;
        let busy = stream(&green)?;
        launch(&busy, &kernel)?;
        busy.record(&event)?;
        let _current = green.make_current()?;
        DefaultStream::Legacy.wait(&event)?;
        {
            let _other = primary.make_current()?;
            assert!(DefaultStream::Legacy.is_idle(driver)? && !event.is_complete()?);
        }
        assert!(!DefaultStream::Legacy.is_idle(driver)?);
        DefaultStream::Legacy.synchronize(driver)?;
        assert!(event.is_complete()?);
        Ok(())
    })
}

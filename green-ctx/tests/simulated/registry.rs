//! A raw handle corresponds to exactly one object.

use std::ptr;
use std::sync::Barrier;
use std::thread;

use green_ctx::{
    Device, Error, Event, Stream, StreamOptions, context::Context, event::EventOptions,
};

use crate::common::{Outcome, partition};
use crate::{Machine, each_driver, raw};

#[test]
fn handles_are_found_while_they_live() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let driver = machine.driver();
        let contexts = [device.primary_context()?, partition(device, 8)?];
        for context in contexts {
            let stream = context.create_stream(StreamOptions::default())?;
            let event = device.create_event(EventOptions::default())?;
            let (at, of, done) = (context.as_raw(), stream.as_raw(), event.as_raw());
            assert_eq!(driver.find_context(at).as_ref(), Some(&context));
            assert_eq!(driver.find_stream(of).as_ref(), Some(&stream));
            assert_eq!(driver.find_event(done).as_ref(), Some(&event));
            assert_eq!((stream.context(), event.context()), (&context, &device.primary_context()?));
            // SAFETY: `stream` keeps the stream and its context alive.
            assert_eq!(unsafe { Stream::from_raw_borrowed(driver, of, ()) }?, stream);
            // SAFETY: `event` keeps the raw event alive.
            assert_eq!(unsafe { Event::from_raw_borrowed(device, done, ()) }?, event);
            // SAFETY: `context` keeps the raw context alive.
            assert_eq!(unsafe { Context::from_raw_borrowed(driver, at, ()) }?, context);
            // SAFETY: the stream is alive, and the call refuses to own it twice.
            let twice = unsafe { Stream::from_raw_owned(&context, of) };
            assert!(matches!(twice, Err(Error::AlreadyOwned { what: "stream" })), "{twice:?}");
            // SAFETY: the event is alive, and the call refuses to own it twice.
            let twice = unsafe { Event::from_raw_owned(device, done) };
            assert!(matches!(twice, Err(Error::AlreadyOwned { what: "event" })), "{twice:?}");
            // A clone keeps the registry entry, and its drop removes the entry.
            let clone = stream.clone();
            drop(stream);
            assert_eq!(driver.find_stream(of).as_ref(), Some(&clone));
            drop((clone, event));
            assert_eq!((driver.find_stream(of), driver.find_event(done)), (None, None));
            let is_green = context.is_green();
            drop(context);
            assert_eq!(
                driver.find_context(at).is_none(),
                is_green || machine.sim.live().primary_retains == 0
            );
        }
        assert_eq!(driver.find_context(ptr::null_mut()), None);
        assert_eq!(driver.find_stream(ptr::null_mut()), None);
        assert_eq!(driver.find_event(ptr::null_mut()), None);
        Ok(())
    })
}

/// The driver reuses an address: a primary context's immediately, a partition's when its context is reused. The
/// look-up then returns the new object.
#[test]
fn an_address_that_is_used_again_is_the_new_object() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let driver = machine.driver();
        for make in
            [|device: &_| Device::primary_context(device), |device: &_| partition(device, 8)]
        {
            let old = make(device)?;
            let (raw, stream) = (old.as_raw(), old.create_stream(StreamOptions::default())?);
            let gone = stream.as_raw();
            drop((old, stream));
            assert_eq!((driver.find_context(raw), driver.find_stream(gone)), (None, None));
            let new = make(device)?;
            assert_eq!(new.as_raw(), raw);
            assert_eq!(driver.find_context(raw), Some(new));
        }
        Ok(())
    })
}

/// An object that is dropped late removes only its own registry entry.
#[test]
fn a_handle_that_is_adopted_again_is_the_new_object() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let driver = machine.driver();
        let context = partition(device, 8)?;
        let (stream, event) = (raw::stream(&context)?, raw::event(device)?);
        for _ in 0..2 {
            // SAFETY: the raw stream is destroyed below, after the `Stream` objects that wrap it, and `context` keeps
            // its context alive.
            let adopted = unsafe { Stream::from_raw_borrowed(driver, stream, ()) }?;
            // SAFETY: the raw event is destroyed below, after the `Event` objects that wrap it.
            let also = unsafe { Event::from_raw_borrowed(device, event, ()) }?;
            assert_eq!(driver.find_stream(stream), Some(adopted));
            assert_eq!(driver.find_event(event), Some(also));
            assert_eq!((driver.find_stream(stream), driver.find_event(event)), (None, None));
        }
        raw::destroy_stream(device, stream)?;
        raw::destroy_event(device, event)?;
        Ok(())
    })
}

/// Four threads take ownership of one stream, and exactly one succeeds. The model tests cover borrowed handles.
#[test]
fn threads_that_own_one_handle_get_one_owner() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let (context, barrier) = (partition(device, 8)?, Barrier::new(4));
        for _ in 0..10 {
            let stream = raw::stream(&context)?.addr();
            let own = || {
                barrier.wait();
                // SAFETY: only these threads use the stream, and the one that becomes its owner destroys it.
                unsafe { Stream::from_raw_owned(&context, ptr::without_provenance_mut(stream)) }
            };
            let owned = thread::scope(|scope| {
                let running = [(); 4].map(|()| scope.spawn(own));
                running.map(|thread| thread.join().expect("no panic"))
            });
            let is_late = |one: &&green_ctx::Result<Stream>| {
                matches!(one, Err(Error::AlreadyOwned { what: "stream" }))
            };
            assert_eq!((owned.iter().filter(is_late).count(), sim.live().streams), (3, 1));
            drop(owned);
            assert_eq!(sim.live().streams, 0);
        }
        Ok(())
    })
}

//! One raw handle, one object, whoever comes with it.

use std::ptr;
use std::sync::{Arc, Barrier};
use std::thread;

use green_ctx::sys_0_1::CUevent;
use green_ctx::{
    Device, Error, Event, Stream, StreamOptions, context::Context, event::EventOptions,
};

use crate::common::{Outcome, partition};
use crate::{Machine, each_driver, raw};

const THREADS: usize = 4;
const ROUNDS: usize = 10;

fn destroy_event(device: &Device, event: CUevent) -> green_ctx::Result<()> {
    let destroy = device.driver().api().cuEventDestroy()?;
    // SAFETY: the callers made the event, and no object of it lives.
    raw::ok("cuEventDestroy", unsafe { destroy(event) })
}

/// Runs something on several threads at once.
fn at_once<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(THREADS);
    let work = || {
        barrier.wait();
        work()
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Checks that all are one.
#[track_caller]
fn one<T: PartialEq + std::fmt::Debug>(
    objects: Vec<green_ctx::Result<T>>,
) -> Result<T, Box<dyn std::error::Error>> {
    let mut objects = objects.into_iter().collect::<green_ctx::Result<Vec<_>>>()?;
    assert!(objects.iter().all(|object| *object == objects[0]), "{objects:?}");
    Ok(objects.remove(0))
}

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
            // A clone keeps the entry, and its end removes it.
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

#[test]
fn what_was_closed_is_not_found() -> Outcome {
    each_driver(|machine| {
        let context = partition(&machine.device, 8)?;
        let raw = context.as_raw();
        let clone = context.clone();
        let context = context.close().expect_err("there is another handle").context;
        drop(clone);
        assert_eq!(machine.driver().find_context(raw).as_ref(), Some(&context));
        let group = context.close()?.ok_or("it has a group")?;
        assert_eq!(machine.driver().find_context(raw), None);
        drop(group);
        Ok(())
    })
}

/// The driver gives addresses out again: a primary context's at once, a partition's when its context
/// is used again. The address is the newer object's then.
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

/// An object that is late to go takes only its own entry with it.
#[test]
fn a_handle_that_is_adopted_again_is_the_new_object() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let driver = machine.driver();
        let context = partition(device, 8)?;
        let (stream, event) = (raw::stream(&context)?, raw::event(device)?);
        for _ in 0..2 {
            // SAFETY: the stream is destroyed below, after its objects; its context is kept.
            let adopted = unsafe { Stream::from_raw_borrowed(driver, stream, ()) }?;
            // SAFETY: the event is destroyed below, after its objects.
            let also = unsafe { Event::from_raw_borrowed(device, event, ()) }?;
            assert_eq!(driver.find_stream(stream), Some(adopted));
            assert_eq!(driver.find_event(event), Some(also));
            assert_eq!((driver.find_stream(stream), driver.find_event(event)), (None, None));
        }
        raw::destroy_stream(device, stream)?;
        destroy_event(device, event)?;
        Ok(())
    })
}

#[test]
fn threads_that_ask_for_one_primary_context_get_one() -> Outcome {
    each_driver(|machine| {
        for _ in 0..ROUNDS {
            let primary = one(at_once(|| machine.device.primary_context()))?;
            assert_eq!(machine.driver().find_context(primary.as_raw()), Some(primary));
            assert_eq!(machine.sim.live().primary_retains, 0);
        }
        Ok(())
    })
}

#[test]
fn threads_that_borrow_one_handle_get_one_object() -> Outcome {
    each_driver(|machine| {
        let Machine { device, .. } = machine;
        let driver = machine.driver();
        for _ in 0..ROUNDS {
            let green = Arc::new(raw::Green::create(device)?);
            let borrow = || {
                let raw = green.context;
                // SAFETY: the owner keeps the context.
                unsafe { Context::from_raw_borrowed(driver, raw, Arc::clone(&green)) }
            };
            let context = one(at_once(borrow))?;
            assert_eq!(driver.find_context(green.context).as_ref(), Some(&context));
            let (stream, event) = (raw::stream(&context)?.addr(), raw::event(device)?.addr());
            let borrow = || {
                let raw = ptr::without_provenance_mut(stream);
                // SAFETY: the stream is destroyed below; the owner keeps its context.
                unsafe { Stream::from_raw_borrowed(driver, raw, Arc::clone(&green)) }
            };
            assert_eq!(one(at_once(borrow))?.context(), &context);
            let borrow = || {
                let raw = ptr::without_provenance_mut(event);
                // SAFETY: the event is destroyed below.
                unsafe { Event::from_raw_borrowed(device, raw, ()) }
            };
            one(at_once(borrow))?;
            raw::destroy_stream(device, ptr::without_provenance_mut(stream))?;
            destroy_event(device, ptr::without_provenance_mut(event))?;
            drop(context);
            assert_eq!(Arc::strong_count(&green), 1, "an owner was kept");
        }
        Ok(())
    })
}

/// Of threads that each take a handle over one gets it, and the others get an error.
#[test]
fn threads_that_own_one_handle_get_one_owner() -> Outcome {
    each_driver(|machine| {
        let Machine { sim, device } = machine;
        let context = partition(device, 8)?;
        for _ in 0..ROUNDS {
            let (stream, event) = (raw::stream(&context)?.addr(), raw::event(device)?.addr());
            let own = || {
                let raw = ptr::without_provenance_mut(stream);
                // SAFETY: nobody else destroys the stream.
                unsafe { Stream::from_raw_owned(&context, raw) }
            };
            let (streams, late): (Vec<_>, Vec<_>) =
                at_once(own).into_iter().partition(|one| one.is_ok());
            assert_eq!((streams.len(), late.len()), (1, THREADS - 1));
            assert!(
                late.iter().all(|one| matches!(one, Err(Error::AlreadyOwned { what: "stream" })))
            );
            let own = || {
                let raw = ptr::without_provenance_mut(event);
                // SAFETY: nobody else destroys the event.
                unsafe { Event::from_raw_owned(device, raw) }
            };
            let (events, late): (Vec<_>, Vec<_>) =
                at_once(own).into_iter().partition(|one| one.is_ok());
            assert_eq!((events.len(), late.len()), (1, THREADS - 1));
            assert!(
                late.iter().all(|one| matches!(one, Err(Error::AlreadyOwned { what: "event" })))
            );
            assert_eq!((sim.live().streams, sim.live().events), (1, 1));
            drop((streams, events));
            assert_eq!((sim.live().streams, sim.live().events), (0, 0));
        }
        Ok(())
    })
}

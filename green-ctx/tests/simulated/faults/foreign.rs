//! Interaction with foreign code: foreign handles, default streams, host functions.

use std::sync::Arc;

use green_ctx::sys::{CUevent, CUstream};
use green_ctx::{
    Device, Event, Stream, StreamOptions, context::Context, event::EventOptions,
    stream::DefaultStream,
};

use super::scenario::Scenario;
use crate::common::{Outcome, raw};

/// Handles created by another library.
struct Foreign {
    green: Arc<raw::Green>,
    lent: CUstream,
    /// `None` after this crate took ownership.
    stream: Option<CUstream>,
    event: Option<CUevent>,
}

impl Foreign {
    fn create(device: &Device) -> green_ctx::Result<Foreign> {
        let green = Arc::new(raw::Green::create(device)?);
        let (lent, stream, event) = (green.stream()?, green.stream()?, raw::event(device)?);
        Ok(Foreign { green, lent, stream: Some(stream), event: Some(event) })
    }

    fn destroy(self, device: &Device) -> Outcome {
        raw::destroy_stream(device, self.lent)?;
        self.stream.map_or(Ok(()), |stream| raw::destroy_stream(device, stream))?;
        self.event.map_or(Ok(()), |event| raw::destroy_event(device, event))?;
        let kept = Arc::strong_count(&self.green) - 1;
        assert_eq!(kept, 0, "an owner was kept");
        Ok(())
    }
}

/// Calls every function that interacts with foreign code once.
fn everything(device: &Device, foreign: &mut Foreign) -> green_ctx::Result<()> {
    let driver = device.driver();
    let owner = Arc::clone(&foreign.green);
    // SAFETY: the owner keeps the context alive, and the stream is destroyed only at the end of the test.
    let lent = unsafe { Stream::from_raw_borrowed(driver, foreign.lent, owner) }?;
    let raw = foreign.green.context;
    // SAFETY: the owner keeps the context alive.
    let context = unsafe { Context::from_raw_borrowed(driver, raw, Arc::clone(&foreign.green)) }?;
    assert_eq!(lent.context(), &context);
    drop((lent, context));
    // SAFETY: as above.
    let context = unsafe { Context::from_raw_borrowed(driver, raw, Arc::clone(&foreign.green)) }?;
    context.sm_count()?;
    let stream = foreign.stream.expect("not taken yet");
    // SAFETY: no other code uses the stream.
    let owned = unsafe { Stream::from_raw_owned(&context, stream) }?;
    foreign.stream = None;
    // SAFETY: no other code uses the event.
    let event = unsafe { Event::from_raw_owned(device, foreign.event.expect("not taken yet")) }?;
    foreign.event = None;
    let other = device.primary_context()?.create_stream(StreamOptions::default())?;
    other.wait_for(&owned)?;
    other.is_capturing()?;
    other.launch_host(|| {})?;
    other.synchronize()?;
    let current = context.make_current()?;
    DefaultStream::Legacy.record(&event)?;
    DefaultStream::Legacy.wait(&event)?;
    DefaultStream::Legacy.context(driver)?;
    DefaultStream::Legacy.is_idle(driver)?;
    DefaultStream::Legacy.synchronize(driver)?;
    drop(current);
    // SAFETY: `event` keeps the raw event alive.
    let same = unsafe { Event::from_raw_borrowed(device, event.as_raw(), ()) }?;
    same.is_complete()?;
    device.create_event(EventOptions::default())?;
    Ok(())
}

#[test]
fn each_driver_call_may_fail() -> Outcome {
    for spec in ["h200@12.5", "h200@13.0", "h200@13.1"] {
        let scenario = Scenario {
            name: "other libraries' handles",
            spec,
            at_least: 40,
            set_up: Foreign::create,
            run: everything,
            // The other library still owns, and can destroy, every handle that this crate did not take.
            tear_down: |device, foreign| foreign.destroy(device),
        };
        scenario.exhaust()?;
    }
    Ok(())
}

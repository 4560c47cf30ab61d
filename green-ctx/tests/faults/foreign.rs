//! Each driver call of what this folder is about, failed in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx::sim::{Fault, Live};
use green_ctx::sys::{CUevent, CUstream};
use green_ctx::{
    CUresult, Context, DefaultStream, Device, Event, EventOptions, Stream, StreamOptions,
};

use crate::common::{Outcome, simulated};
use crate::raw;

/// Handles of another library.
struct Foreign {
    green: Arc<raw::Green>,
    lent: CUstream,
    /// Given away when the crate takes them.
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

/// Everything of the interface that meets other code, once.
fn everything(device: &Device, foreign: &mut Foreign) -> green_ctx::Result<()> {
    let driver = device.driver();
    let owner = Arc::clone(&foreign.green);
    // SAFETY: the owner keeps the context, and the stream lives on.
    let lent = unsafe { Stream::from_raw_borrowed(driver, foreign.lent, owner) }?;
    let raw = foreign.green.context;
    // SAFETY: the owner keeps the context.
    let context = unsafe { Context::from_raw_borrowed(driver, raw, Arc::clone(&foreign.green)) }?;
    assert_eq!(lent.context(), &context);
    drop((lent, context));
    // SAFETY: as above.
    let context = unsafe { Context::from_raw_borrowed(driver, raw, Arc::clone(&foreign.green)) }?;
    context.sm_count()?;
    let stream = foreign.stream.expect("not taken yet");
    // SAFETY: nobody else has the stream.
    let owned = unsafe { Stream::from_raw_owned(&context, stream) }?;
    foreign.stream = None;
    // SAFETY: nobody else has the event.
    let event = unsafe { Event::from_raw_owned(device, foreign.event.expect("not taken yet")) }?;
    foreign.event = None;
    let other = device.primary_context()?.create_stream(StreamOptions::default())?;
    other.wait_for(&owned)?;
    other.is_capturing()?;
    if driver.api().cuLaunchHostFunc().is_ok() {
        other.launch_host(|| {})?;
        other.synchronize()?;
    }
    let current = context.make_current()?;
    DefaultStream::Legacy.record(&event)?;
    DefaultStream::Legacy.wait(&event)?;
    DefaultStream::Legacy.context(driver)?;
    DefaultStream::Legacy.is_idle(driver)?;
    DefaultStream::Legacy.synchronize(driver)?;
    drop(current);
    // SAFETY: the event is alive.
    let same = unsafe { Event::from_raw_borrowed(device, event.as_raw(), ()) }?;
    same.is_complete()?;
    device.create_event(EventOptions::default())?;
    Ok(())
}

#[test]
fn each_driver_call_may_fail() -> Outcome {
    for spec in ["h200@12.5", "h200@13.0"] {
        let (sim, device) = simulated(spec)?;
        let mut foreign = Foreign::create(&device)?;
        sim.record_calls(true);
        everything(&device, &mut foreign)?;
        let calls = sim.call_log();
        foreign.destroy(&device)?;
        assert!(calls.len() >= 40, "only {} calls were made on {spec}", calls.len());
        for (index, call) in calls.iter().enumerate() {
            let nth = calls[..=index].iter().filter(|c| c.function == call.function).count();
            fails(spec, call.function, nth as u64)?;
        }
    }
    Ok(())
}

fn fails(spec: &str, function: &str, nth: u64) -> Outcome {
    let what = format!("{spec}, {function}, call {nth}");
    let status = CUresult::CUDA_ERROR_UNKNOWN;
    let (sim, device) = simulated(spec)?;
    let reported = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reported);
    device.driver().on_cleanup_failure(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut foreign = Foreign::create(&device)?;
    sim.fail(Fault::on(function).nth(nth).with(status))?;
    let result = everything(&device, &mut foreign);
    let reported = reported.load(Ordering::Relaxed);
    match &result {
        Ok(()) => assert!(reported > 0, "{what}: nobody was told"),
        Err(error) => assert_eq!(error.status(), Some(status), "{what}: {error}"),
    }
    // What was not taken over is the other library's still, and can be destroyed by it.
    foreign.destroy(&device).map_err(|error| format!("{what}: {error}"))?;
    let mut foreign = Foreign::create(&device)?;
    everything(&device, &mut foreign).map_err(|error| format!("{what}, afterwards: {error}"))?;
    foreign.destroy(&device)?;
    if reported == 0 {
        assert_eq!(sim.live(), Live::default(), "{what}");
    }
    Ok(())
}

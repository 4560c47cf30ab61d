//! Events.

use green_ctx_sys::{CUevent_st, CUresult, CUstream_st};

use crate::capture::Captured;
use crate::clock::Moment;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`. The only other flag is `CU_EVENT_BLOCKING_SYNC`.
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const KNOWN_FLAGS: u32 = 7;
pub(crate) struct Event {
    pub(crate) device: usize,
    /// The id that the device's primary context had when the event was created.
    primary_id: u64,
    flags: u32,
    /// The moment that was recorded last in the event.
    pub(crate) recorded: Option<Moment>,
    /// The captured work, if the event was last recorded in a capturing stream.
    pub(crate) captured: Option<Captured>,
    /// Whether the program still has to destroy the event.
    pub(crate) counted: bool,
}

impl State {
    /// Returns the event with this handle, if it is usable. An event always belongs to the device's primary
    /// context. An event that was created while a green context was current therefore outlives that green
    /// context (recorded on hardware).
    pub(crate) fn event(&self, handle: usize) -> Answer<&Event> {
        let event = self.events.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        self.unpoisoned(event.device)?;
        let primary = &self.contexts[&self.devices[event.device].primary];
        if primary.alive && primary.id == event.primary_id {
            return Ok(event);
        }
        Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Records a moment in an event.
    pub(crate) fn set_event(&mut self, handle: usize, moment: Moment) {
        if let Some(event) = self.events.get_mut(&handle) {
            event.recorded = Some(moment);
            event.captured = None;
        }
    }

    /// Returns the event with this handle. Fails if the event was recorded in a capture, and invalidates
    /// that capture. After the capture has ended, the event can still be neither queried nor waited for
    /// (recorded on hardware).
    pub(crate) fn uncaptured(&mut self, handle: usize) -> Answer<&Event> {
        if let Some(capture) = self.event(handle)?.captured.as_ref().map(|it| it.capture) {
            invalid_if(!self.captures.contains_key(&capture))?;
            let captured = CUresult::CUDA_ERROR_CAPTURED_EVENT;
            self.invalidate_captures(&[capture]).map_err(|_| captured)?;
        }
        self.event(handle)
    }
}

pub(crate) fn create(driver: &Driver, out: Ptr<*mut CUevent_st>, flags: u32) -> Answer {
    let mut state = driver.state();
    let context = state.current()?;
    out.given()?;
    let interprocess = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
    invalid_if(flags & !KNOWN_FLAGS != 0 || interprocess)?;
    let device = state.contexts[&context].device;
    let primary_id = state.contexts[&state.devices[device].primary].id;
    let event = Event { device, primary_id, flags, recorded: None, captured: None, counted: true };
    let handle = handle::next();
    state.events.insert(handle, event);
    out.write(handle::pointer(handle))
}

pub(crate) fn destroy(driver: &Driver, event: Ptr<CUevent_st>) -> Answer {
    let mut state = driver.state();
    state.event(event.address())?;
    state.events.remove(&event.address());
    Ok(())
}

pub(crate) fn record(driver: &Driver, event: Ptr<CUevent_st>, stream: Ptr<CUstream_st>) -> Answer {
    let mut state = driver.state();
    let handle = state.stream(stream.address())?;
    let device = state.event(event.address())?.device;
    let context = state.streams[&handle].context;
    let captured = state.captured_event(handle)?;
    refuse_if(state.contexts[&context].device != device, CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    if let Some(captured) = captured {
        if let Some(event) = state.events.get_mut(&event.address()) {
            event.captured = Some(captured);
        }
        return Ok(());
    }
    let mut moment = state.pending(handle);
    moment.clock.join(&state.thread().clock);
    moment.time = moment.time.max(state.now);
    state.set_event(event.address(), moment);
    Ok(())
}

pub(crate) fn query(driver: &Driver, event: Ptr<CUevent_st>) -> Answer {
    let mut state = driver.state();
    let event = state.uncaptured(event.address())?;
    let Some(moment) = event.recorded.clone() else { return Ok(()) };
    if moment.time > state.now {
        state.poll(moment.time);
        return Err(CUresult::CUDA_ERROR_NOT_READY);
    }
    state.wait_on_host(&moment);
    Ok(())
}

pub(crate) fn synchronize(driver: &Driver, event: Ptr<CUevent_st>) -> Answer {
    let mut state = driver.state();
    let event = state.uncaptured(event.address())?;
    if let (device, Some(moment)) = (event.device, event.recorded.clone()) {
        state.wait_on_host(&moment);
        state.unpoisoned(device)?;
    }
    Ok(())
}

pub(crate) fn elapsed_time(
    driver: &Driver,
    out: Ptr<f32>,
    start: Ptr<CUevent_st>,
    end: Ptr<CUevent_st>,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let mut time = |handle: usize| {
        let event = state.uncaptured(handle)?;
        match &event.recorded {
            Some(moment) if event.flags & DISABLE_TIMING == 0 => Ok((moment.time, event.device)),
            _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
    };
    let ((start, here), (end, there)) = (time(start.address())?, time(end.address())?);
    refuse_if(here != there, CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    refuse_if(start.max(end) > state.now, CUresult::CUDA_ERROR_NOT_READY)?;
    out.write((end as f64 - start as f64) as f32 / 1e6)
}

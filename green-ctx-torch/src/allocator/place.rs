//! Streams as the allocator is given them: raw, and known to this crate or not.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::thread::{self, ThreadId};

use green_ctx::sys::{CUcontext, CUctx_st, CUstream, CUstream_st};
use green_ctx::{
    Device, Driver, Error, Event, Result, Stream, context::Context, event::EventOptions,
    stream::DefaultStream,
};

use super::account::Owner;
use super::capture::{self, Capture, Hold};
use super::handle::Handle;
use green_ctx::call;

/// A stream that a block is used on.
#[derive(Clone)]
pub(super) struct Place {
    raw: Handle<CUstream_st>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// An object stands for it, which is kept: memory is freed in the order of the stream.
    Ours { _kept: Stream },
    /// Whoever gave it keeps it.
    Foreign,
    /// A default-stream token.
    Default(Home),
}

/// A stream by what keeps nothing, so that it can be found again if it is of this crate and lives.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct PlaceId {
    raw: Handle<CUstream_st>,
    /// Of a token, the context that it was looked up in, and the thread of a per-thread stream.
    home: Option<(Handle<CUctx_st>, Option<ThreadId>)>,
}

/// The context that a token was looked up in, and for the per-thread stream the thread.
#[derive(Clone)]
struct Home {
    context: HomeContext,
    thread: Option<ThreadId>,
}

#[derive(Clone)]
enum HomeContext {
    Known(Context),
    /// One that no object stands for, so that nothing keeps it: it is never made current.
    Other(Handle<CUctx_st>),
}

impl Place {
    /// The stream behind a raw handle, and whose memory is used on it. A token stands for the stream of
    /// the context that is current; where that is none, or of another device, for that of the primary
    /// one.
    ///
    /// # Safety
    ///
    /// The stream must be alive, or a default-stream token.
    pub(super) unsafe fn find(primary: &Context, raw: CUstream) -> Result<(Place, Owner)> {
        let device = primary.device();
        let driver = device.driver();
        if let Some(token) = DefaultStream::from_raw(raw) {
            let context = home(primary)?;
            let owner = match &context {
                HomeContext::Known(context) => Owner::of(context),
                // SAFETY: the driver answers a token for the current context, which this one is.
                HomeContext::Other(_) => unsafe { owner_of(driver, raw) }?,
            };
            let thread = (token == DefaultStream::PerThread).then(|| thread::current().id());
            let kind = Kind::Default(Home { context, thread });
            return Ok((Place { raw: Handle(raw), kind }, owner));
        }
        if let Some(stream) = driver.find_stream(raw) {
            if stream.context().device() != device {
                return Err(Error::DeviceMismatch { what: "the allocator and the stream" });
            }
            let owner = Owner::of(stream.context());
            return Ok((Place { raw: Handle(raw), kind: Kind::Ours { _kept: stream } }, owner));
        }
        // SAFETY: the stream is alive.
        let owner = unsafe { owner_of(driver, raw) }?;
        Ok((Place { raw: Handle(raw), kind: Kind::Foreign }, owner))
    }

    /// The stream's handle as a number, for reports.
    pub(super) fn address(&self) -> u64 {
        self.raw.0.addr() as u64
    }

    pub(super) fn id(&self) -> PlaceId {
        let home = match &self.kind {
            Kind::Ours { .. } | Kind::Foreign => None,
            Kind::Default(Home { context, thread }) => {
                let context = match context {
                    HomeContext::Known(context) => Handle(context.as_raw()),
                    HomeContext::Other(context) => *context,
                };
                Some((context, *thread))
            }
        };
        PlaceId { raw: self.raw, home }
    }

    /// Whether [`PlaceId::find`] leads back to the stream, on every thread, as long as it lives.
    pub(super) fn is_found_again(&self) -> bool {
        match &self.kind {
            Kind::Ours { .. } => true,
            Kind::Foreign => false,
            Kind::Default(Home { context, thread }) => {
                thread.is_none() && matches!(context, HomeContext::Known(_))
            }
        }
    }

    pub(super) fn is(&self, other: &Place) -> bool {
        self.raw == other.raw
            && match (&self.kind, &other.kind) {
                (Kind::Default(home), Kind::Default(other)) => home.is(other),
                _ => true,
            }
    }

    /// Whether this thread can still name the stream. A token of a context that nothing keeps is good
    /// while that context is current, one of a thread on that thread.
    pub(super) fn is_reachable(&self, driver: &Driver) -> Result<bool> {
        let Kind::Default(Home { context, thread }) = &self.kind else { return Ok(true) };
        if thread.is_some_and(|id| id != thread::current().id()) {
            return Ok(false);
        }
        match context {
            HomeContext::Known(_) => Ok(true),
            HomeContext::Other(context) => Ok(current(driver)? == context.0),
        }
    }

    /// Makes a call on the stream, with the context current that a token stands for a stream of.
    pub(super) fn with<R>(
        &self,
        driver: &Driver,
        call: impl FnOnce(CUstream) -> Result<R>,
    ) -> Result<R> {
        let _current = match &self.kind {
            Kind::Default(Home { context: HomeContext::Known(context), .. })
                if current(driver)? != context.as_raw() =>
            {
                Some(context.make_current()?)
            }
            _ => None,
        };
        call(self.raw.0)
    }

    pub(super) fn capture(&self, driver: &Driver) -> Result<Capture> {
        self.with(driver, |raw| {
            // SAFETY: the stream is alive: kept, or by the promise of whoever gave it.
            unsafe { capture::of(driver, raw) }
        })
    }

    /// The hold of the graph that the stream is captured into.
    pub(super) fn hold(
        &self,
        driver: &Driver,
        known: impl FnOnce(u64) -> Option<Hold>,
    ) -> Result<Option<Hold>> {
        self.with(driver, |raw| {
            // SAFETY: as above.
            unsafe { Hold::of(driver, raw, known) }
        })
    }

    /// An event that completes when the work submitted to the stream so far has.
    pub(super) fn record(&self, device: &Device) -> Result<Event> {
        let event = device.create_event(EventOptions::default())?;
        self.record_in(&event, device)?;
        Ok(event)
    }

    /// Records the work submitted to the stream so far in an event.
    pub(super) fn record_in(&self, event: &Event, device: &Device) -> Result<()> {
        self.with(device.driver(), |raw| {
            // SAFETY: the event is alive, and so is the stream, as above.
            unsafe { call!(device.driver().api(), cuEventRecord(event.as_raw(), raw)) }
        })
    }

    /// Makes the work submitted to the stream from now on wait for an event.
    pub(super) fn wait(&self, driver: &Driver, event: &Event) -> Result<()> {
        self.with(driver, |raw| {
            // SAFETY: both are alive, as above; 0 is the only flag outside of capture.
            unsafe { call!(driver.api(), cuStreamWaitEvent(raw, event.as_raw(), 0)) }
        })
    }
}

impl PlaceId {
    /// The stream, where it is one of this crate and of the device that lives. Another stream may have
    /// got its handle.
    pub(super) fn find(self, device: &Device) -> Option<Place> {
        let kind = match self.home {
            None => {
                let stream = device.driver().find_stream(self.raw.0)?;
                if stream.context().device() != device {
                    return None;
                }
                Kind::Ours { _kept: stream }
            }
            // Whoever is not that thread would name another stream.
            Some((_, Some(_))) => return None,
            Some((context, None)) => {
                let context = device.driver().find_context(context.0)?;
                if context.device() != device {
                    return None;
                }
                Kind::Default(Home { context: HomeContext::Known(context), thread: None })
            }
        };
        Some(Place { raw: self.raw, kind })
    }

    #[cfg(test)]
    pub(super) fn of_stream(number: usize) -> PlaceId {
        PlaceId { raw: Handle(ptr::without_provenance_mut(number)), home: None }
    }
}

impl Home {
    fn is(&self, other: &Home) -> bool {
        let same = match (&self.context, &other.context) {
            (HomeContext::Known(context), HomeContext::Known(other)) => context == other,
            (HomeContext::Other(context), HomeContext::Other(other)) => context == other,
            _ => false,
        };
        same && self.thread == other.thread
    }
}

/// The context that a token is looked up in.
fn home(primary: &Context) -> Result<HomeContext> {
    let device = primary.device();
    let driver = device.driver();
    let raw = current(driver)?;
    if raw.is_null() {
        return Ok(HomeContext::Known(primary.clone()));
    }
    if let Some(context) = driver.find_context(raw) {
        let ours = context.device() == device;
        return Ok(HomeContext::Known(if ours { context } else { primary.clone() }));
    }
    let mut number = 0;
    // SAFETY: the pointer is to a live integer; a context is current.
    unsafe { call!(driver.api(), cuCtxGetDevice(&raw mut number)) }?;
    if number == device.as_raw() {
        Ok(HomeContext::Other(Handle(raw)))
    } else {
        Ok(HomeContext::Known(primary.clone()))
    }
}

/// The thread's current context, null for none.
fn current(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    unsafe { call!(driver.api(), cuCtxGetCurrent(&raw mut raw)) }?;
    Ok(raw)
}

/// Whose memory is used on a stream without an object.
///
/// # Safety
///
/// The stream must be alive; a token is looked up in the current context.
unsafe fn owner_of(driver: &Driver, raw: CUstream) -> Result<Owner> {
    let mut green = ptr::null_mut();
    // SAFETY: the stream is alive, the pointer is to a live handle.
    unsafe { call!(driver.api(), cuStreamGetGreenCtx(raw, &raw mut green)) }?;
    if green.is_null() {
        return Ok(Owner::Outside);
    }
    let mut context = ptr::null_mut();
    // SAFETY: the green context is alive, since its stream is used; the pointer is to a live handle.
    unsafe { call!(driver.api(), cuCtxFromGreenCtx(&raw mut context, green)) }?;
    Ok(driver.find_context(context).as_ref().map_or(Owner::Foreign, Owner::of))
}

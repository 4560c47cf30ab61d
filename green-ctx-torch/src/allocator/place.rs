//! The streams that callers pass to the allocator as raw handles: streams of green-ctx, foreign streams and default
//! streams.
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

/// A stream on which a block is used.
#[derive(Clone)]
pub(super) struct Place {
    raw: Handle<CUstream_st>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// A stream of green-ctx. The object keeps the stream alive, because memory is freed in the stream's order.
    Ours { _kept: Stream },
    /// A foreign stream. By the contracts of `Allocator::allocate`, `free` and `record_stream`, the caller keeps the
    /// stream alive.
    Foreign,
    /// A default-stream token. The default stream of a context lives as long as the context.
    Default(Home),
}

/// The identity of a stream. It keeps no stream alive, but a live stream of green-ctx can be found by its identity.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct PlaceId {
    raw: Handle<CUstream_st>,
    /// For a default-stream token: the context in which the token was resolved and, for a per-thread stream, the
    /// thread.
    home: Option<(Handle<CUctx_st>, Option<ThreadId>)>,
}

/// The context in which a token was resolved and, for a per-thread stream, the thread.
#[derive(Clone)]
struct Home {
    context: HomeContext,
    thread: Option<ThreadId>,
}

#[derive(Clone)]
enum HomeContext {
    Known(Context),
    /// A foreign context. Nothing here keeps the context alive, so this module never makes it current.
    Other(Handle<CUctx_st>),
}

impl Place {
    /// Returns the stream with a given handle, and the owner of memory that is allocated on the stream. A token means
    /// the default stream of the current context. If no context of this device is current, the token means the default
    /// stream of the primary context.
    ///
    /// # Safety
    ///
    /// The stream must be alive, or the handle must be a default-stream token.
    pub(super) unsafe fn find(primary: &Context, raw: CUstream) -> Result<(Place, Owner)> {
        let device = primary.device();
        let driver = device.driver();
        if let Some(token) = DefaultStream::from_raw(raw) {
            let context = home(primary)?;
            let owner = match &context {
                HomeContext::Known(context) => Owner::of(context),
                // SAFETY: `raw` is a token, which the driver resolves in the current context. `home` returns `Other`
                // only for that context.
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
        // SAFETY: the contract of this function says that `raw` is alive.
        let owner = unsafe { owner_of(driver, raw) }?;
        Ok((Place { raw: Handle(raw), kind: Kind::Foreign }, owner))
    }

    /// Returns the stream's handle as a number, for reports.
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

    /// Returns whether [`PlaceId::find`] finds the stream on every thread while the stream exists.
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

    /// Returns whether the stream's handle is valid on this thread. The default stream of a foreign context can be
    /// named only while that context is current, and a per-thread stream can be named only on its own thread.
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

    /// Calls `call` with the stream's handle. For a default-stream token, the context in which the token was resolved
    /// is current during the call.
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
            // SAFETY: the stream is alive, see `Kind`. `with` has made the context of a token current.
            unsafe { capture::of(driver, raw) }
        })
    }

    /// Returns the hold of the graph into which the stream is being captured.
    pub(super) fn hold(
        &self,
        driver: &Driver,
        known: impl FnOnce(u64) -> Option<Hold>,
    ) -> Result<Option<Hold>> {
        self.with(driver, |raw| {
            // SAFETY: the stream is alive, see `Kind`. `with` has made the context of a token current.
            unsafe { Hold::of(driver, raw, known) }
        })
    }

    /// Returns an event that completes when the work submitted to the stream so far is done.
    pub(super) fn record(&self, device: &Device) -> Result<Event> {
        let event = device.create_event(EventOptions::default())?;
        self.record_in(&event, device)?;
        Ok(event)
    }

    /// Records an event after the work submitted to the stream so far.
    pub(super) fn record_in(&self, event: &Event, device: &Device) -> Result<()> {
        self.with(device.driver(), |raw| {
            // SAFETY: the borrow keeps `event` alive, and the stream is alive, see `Kind`.
            unsafe { call!(device.driver().api(), cuEventRecord(event.as_raw(), raw)) }
        })
    }

    /// Makes work submitted to the stream from now on wait for an event.
    pub(super) fn wait(&self, driver: &Driver, event: &Event) -> Result<()> {
        self.with(driver, |raw| {
            // SAFETY: the borrow keeps `event` alive, and the stream is alive, see `Kind`. 0 is the only flag outside
            // captures.
            unsafe { call!(driver.api(), cuStreamWaitEvent(raw, event.as_raw(), 0)) }
        })
    }
}

impl PlaceId {
    /// Returns the stream if a live stream of green-ctx on this device has the handle. The driver may have given
    /// the handle to another stream in the meantime.
    pub(super) fn find(self, device: &Device) -> Option<Place> {
        let kind = match self.home {
            None => {
                let stream = device.driver().find_stream(self.raw.0)?;
                if stream.context().device() != device {
                    return None;
                }
                Kind::Ours { _kept: stream }
            }
            // On another thread, the token would name another stream.
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

/// Returns the context in which a default-stream token is resolved.
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
    // SAFETY: `number` is a live local, and a context is current, because `raw` is not null.
    unsafe { call!(driver.api(), cuCtxGetDevice(&raw mut number)) }?;
    if number == device.as_raw() {
        Ok(HomeContext::Other(Handle(raw)))
    } else {
        Ok(HomeContext::Known(primary.clone()))
    }
}

/// Returns the thread's current context, or null if there is none.
fn current(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` is a live local.
    unsafe { call!(driver.api(), cuCtxGetCurrent(&raw mut raw)) }?;
    Ok(raw)
}

/// Returns the owner of memory that is allocated on a stream for which green-ctx has no object.
///
/// # Safety
///
/// The stream must be alive. A token is resolved in the current context.
unsafe fn owner_of(driver: &Driver, raw: CUstream) -> Result<Owner> {
    let mut green = ptr::null_mut();
    // SAFETY: the contract of this function says that `raw` is alive, and `green` is a live local.
    unsafe { call!(driver.api(), cuStreamGetGreenCtx(raw, &raw mut green)) }?;
    if green.is_null() {
        return Ok(Owner::Outside);
    }
    let mut context = ptr::null_mut();
    // SAFETY: `green` is the context of a live stream and therefore alive. `context` is a live local.
    unsafe { call!(driver.api(), cuCtxFromGreenCtx(&raw mut context, green)) }?;
    Ok(driver.find_context(context).as_ref().map_or(Owner::Foreign, Owner::of))
}

//! Events: points in a stream's work that others wait for.
#![allow(unsafe_code, reason = "calls the driver")]

mod foreign;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use green_ctx_sys::{CUevent, CUevent_flags, CUevent_st};

use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check_done};
use crate::handle::fence::create_event;
use crate::handle::owner::Ownership;
use crate::handle::primary::PrimaryRef;
use crate::handle::raw::Raw;
use crate::handle::registry::Registry;

/// An event of one device. Clones share it; the last one destroys it.
///
/// It belongs to the device's primary context, so that it outlives every partition and works on
/// all of the device's streams.
#[derive(Clone)]
#[doc(alias = "CUevent")]
pub struct Event {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: Raw<CUevent_st>,
    /// Keeps the primary context, and with it the driver.
    primary: PrimaryRef<Context>,
    /// Whether the raw handle has been given out, and with it entered in the registry, as a stream's
    /// is.
    known: AtomicBool,
    ownership: Ownership,
}

/// How to create an event. Without timing, and waiting for it spins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until passed to a call"]
pub struct EventOptions {
    timing: bool,
    blocking: bool,
}

impl InSlot for Registry<Inner> {
    const SLOT: Slot = Slot::Events;

    fn make(_driver: &Driver) -> Self {
        Registry::default()
    }
}

impl Driver {
    /// The living [`Event`] behind a raw handle, if it is one of this crate's.
    #[must_use]
    pub fn find_event(&self, raw: CUevent) -> Option<Event> {
        self.registered(self.events(), raw.addr()).map(Event::from_inner)
    }

    pub(crate) fn events(&self) -> &Registry<Inner> {
        self.slot()
    }
}

impl Context {
    /// Records an event that completes when all work of this context up to now has, that of
    /// streams which are destroyed already included. A primary context's event covers the device's green
    /// contexts too (cuda.h), except for [their graphs](crate::guide::graphs#where-to-launch).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]; [`Error::Unsupported`] for a primary context before CUDA 12.5.
    #[doc(alias("cuCtxRecordEvent", "cuGreenCtxRecordEvent"))]
    pub fn record(&self, event: &Event) -> Result<()> {
        event.check_driver(self.device().driver())?;
        let api = self.device().functions()?;
        let recorded = self.with_green(|green| {
            // SAFETY: both handles are alive.
            unsafe { call!(api, cuGreenCtxRecordEvent(green.as_ptr(), event.raw())) }
        });
        // SAFETY: both handles are alive.
        recorded.unwrap_or_else(|| unsafe { call!(api, cuCtxRecordEvent(self.raw(), event.raw())) })
    }

    /// Makes the work that is submitted from now on to the streams that this context has wait for
    /// an event. Streams that are created later do not wait (recorded on an H200, driver
    /// 580.159.04).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]; [`Error::Unsupported`] for a primary context before CUDA 12.5.
    #[doc(alias("cuCtxWaitEvent", "cuGreenCtxWaitEvent"))]
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.check_driver(self.device().driver())?;
        let api = self.device().functions()?;
        let waits = self.with_green(|green| {
            // SAFETY: both handles are alive.
            unsafe { call!(api, cuGreenCtxWaitEvent(green.as_ptr(), event.raw())) }
        });
        // SAFETY: both handles are alive.
        waits.unwrap_or_else(|| unsafe { call!(api, cuCtxWaitEvent(self.raw(), event.raw())) })
    }
}

impl Device {
    /// Creates an event, usable on every stream of this device.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuEventCreate")]
    pub fn create_event(&self, options: EventOptions) -> Result<Event> {
        Event::create(self, options)
    }
}

impl EventOptions {
    /// Makes the event take the time, for [`Event::elapsed_since`]. Recording costs more then.
    pub const fn timing(mut self, timing: bool) -> EventOptions {
        self.timing = timing;
        self
    }

    /// Makes [`Event::synchronize`] sleep instead of spin.
    pub const fn blocking(mut self, blocking: bool) -> EventOptions {
        self.blocking = blocking;
        self
    }

    const fn flags(self) -> u32 {
        let timing = if self.timing { 0 } else { CUevent_flags::CU_EVENT_DISABLE_TIMING.0 };
        let blocking = if self.blocking { CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 } else { 0 };
        timing | blocking
    }
}

impl Event {
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Event {
        Event { inner }
    }

    pub(crate) fn create(device: &Device, options: EventOptions) -> Result<Event> {
        let primary = device.primary_reference()?;
        let raw = create_event(device.driver(), primary.context().raw(), options.flags())?;
        let known = AtomicBool::new(false);
        let inner = Inner { raw, primary, known, ownership: Ownership::Owned };
        Ok(Event { inner: Arc::new(inner) })
    }

    /// The context that the event belongs to: its device's primary one, whichever stream records it. An
    /// event of a partition's own context would end with that context. Of a foreign event it is the primary
    /// context of the device that it was said to be of: the driver does not report an event's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.inner.primary.context()
    }

    /// The driver's handle. [`Driver::find_event`] leads back from it.
    #[must_use]
    pub fn as_raw(&self) -> CUevent {
        if !self.inner.known.load(Ordering::Acquire) {
            self.driver().events().enter(self.inner.raw.address(), &self.inner);
            self.inner.known.store(true, Ordering::Release);
        }
        self.raw()
    }

    /// The driver's handle, for calls of this crate.
    #[inline]
    pub(crate) fn raw(&self) -> CUevent {
        self.inner.raw.as_ptr()
    }

    /// Whether the work recorded last is done. An event that was never recorded is complete.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuEventQuery")]
    pub fn is_complete(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        check_done("cuEventQuery", unsafe {
            self.driver().functions()?.cuEventQuery()?(self.raw())
        })
        .inspect_err(|error| self.context().device().note(error))
    }

    /// Waits until the work recorded last is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], errors of the work included.
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { call!(self.driver().functions()?, cuEventSynchronize(self.raw())) }
            .inspect_err(|error| self.context().device().note(error))
    }

    /// The device time from `start` to this event, to about 0.5 µs. Both must have been made with
    /// timing, recorded and completed.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] for an event of another driver, and [`Error::Driver`].
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        start.check_driver(self.driver())?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are alive, the pointer is to a live number.
        unsafe {
            call!(
                self.driver().functions()?,
                cuEventElapsedTime(&raw mut milliseconds, start.raw(), self.raw())
            )
        }?;
        // Negative when the events were recorded the other way round: no time has passed then.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    #[inline]
    fn driver(&self) -> &Driver {
        self.inner.driver()
    }

    /// Refuses to be used with another driver, to which the handle would mean something else.
    #[inline]
    pub(crate) fn check_driver(&self, driver: &Driver) -> Result<()> {
        if self.driver() == driver {
            Ok(())
        } else {
            Err(Error::DeviceMismatch { what: "the event and what is to use it" })
        }
    }
}

impl Inner {
    #[inline]
    fn driver(&self) -> &Driver {
        self.primary.context().device().driver()
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: nobody else has the handle, and this is its only end.
        unsafe { call!(self.driver().functions()?, cuEventDestroy(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            // Not even the owner: what it does was meant for the parent.
            return mem::forget(mem::replace(&mut self.ownership, Ownership::Owned));
        }
        // Forgotten before it is given up: the driver may use the address again at once.
        if *self.known.get_mut() {
            self.driver().events().forget(self.raw.address(), self);
        }
        if self.ownership.is_owned() {
            self.driver().report(self.destroy());
        }
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Event {}

impl Hash for Event {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("raw", &self.raw()).finish_non_exhaustive()
    }
}

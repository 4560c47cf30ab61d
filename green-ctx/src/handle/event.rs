//! Events: points in submitted work that other work can wait for.
#![allow(unsafe_code, reason = "calls the driver")]

mod foreign;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use green_ctx_sys::{CUevent, CUevent_flags, CUevent_st, CUresult};

use crate::handle::context::Context;
use crate::handle::device::Device;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check_done};
use crate::handle::fence::create_event;
use crate::handle::owner::Owner;
use crate::handle::primary::PrimaryRef;
use crate::handle::raw::Raw;
use crate::handle::registry::Registry;

/// An event of one device. Clones share the event, and dropping the last clone destroys it.
///
/// An event belongs to the device's primary context. An event therefore outlives every partition, and can be recorded
/// and awaited on every stream of the device.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim, event::EventOptions};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let parts = device.partition([32, 64])?;
/// let ready = device.create_event(EventOptions::default())?;
/// parts[0].stream().record(&ready)?;
/// // Later work of the second partition waits for the first one's work so far.
/// parts[1].stream().wait(&ready)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "CUevent")]
pub struct Event {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: Raw<CUevent_st>,
    /// Keeps the primary context and the driver alive.
    primary: PrimaryRef<Context>,
    /// Set once the event is in the registry. The event is entered when its raw handle is first given out.
    known: AtomicBool,
    owner: Option<Owner>,
}

/// Options for creating an event. By default, timing is disabled, and the host spins while it waits for the event.
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
    /// Returns the live [`Event`] of this crate that has this raw handle, or `None` if there is none.
    #[must_use]
    pub fn find_event(&self, raw: CUevent) -> Option<Event> {
        self.registered(self.events(), raw.addr()).map(Event::from_inner)
    }

    pub(crate) fn events(&self) -> &Registry<Inner> {
        self.slot()
    }
}

impl Context {
    /// Records an event that completes when all work submitted to this context so far is done. The event also covers
    /// the work of streams that have been destroyed. For a primary context, the event also covers the work of the
    /// device's green contexts (cuda.h), except for [their graphs](crate::guide::graphs#where-to-launch).
    ///
    /// # Errors
    ///
    /// - [`Error::Driver`] if the driver call fails.
    /// - [`Error::Unsupported`] for a primary context before CUDA 12.5.
    /// - [`Error::DeviceMismatch`] if the event belongs to another driver.
    #[doc(alias("cuCtxRecordEvent", "cuGreenCtxRecordEvent"))]
    pub fn record(&self, event: &Event) -> Result<()> {
        event.check_driver(self.device().driver())?;
        let api = self.device().functions()?;
        match self.green() {
            Some(green) => green.record(api, event.raw()),
            // SAFETY: `self` and `event` own the two handles, so both stay valid during the call.
            None => unsafe { call!(api, cuCtxRecordEvent(self.raw(), event.raw())) },
        }
    }

    /// Makes later work on the context's existing streams wait for an event. Streams that are created afterwards do not
    /// wait (recorded on an H200, driver 580.159.04).
    ///
    /// # Errors
    ///
    /// - [`Error::Driver`] if the driver call fails.
    /// - [`Error::Unsupported`] for a primary context before CUDA 12.5.
    /// - [`Error::DeviceMismatch`] if the event belongs to another driver.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim, event::EventOptions};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let parts = device.partition([32, 64])?;
    /// // All streams of one context wait for all work of the other.
    /// let done = device.create_event(EventOptions::default())?;
    /// parts[0].context().record(&done)?;
    /// parts[1].context().wait(&done)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuCtxWaitEvent", "cuGreenCtxWaitEvent"))]
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.check_driver(self.device().driver())?;
        let api = self.device().functions()?;
        match self.green() {
            Some(green) => green.wait(api, event.raw()),
            // SAFETY: `self` and `event` own the two handles, so both stay valid during the call.
            None => unsafe { call!(api, cuCtxWaitEvent(self.raw(), event.raw())) },
        }
    }
}

impl Device {
    /// Creates an event that can be used on every stream of this device.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], or [`Error::Forked`] in a forked process.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim, event::EventOptions};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let event = device.create_event(EventOptions::default().blocking(true))?;
    /// assert!(event.is_complete()?, "an event that was never recorded is complete");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuEventCreate")]
    pub fn create_event(&self, options: EventOptions) -> Result<Event> {
        Event::create(self, options)
    }
}

impl EventOptions {
    /// Sets whether recording the event also records the time, as [`Event::elapsed_since`] needs. Recording an event
    /// with timing takes longer.
    pub const fn timing(mut self, timing: bool) -> EventOptions {
        self.timing = timing;
        self
    }

    /// Sets whether [`Event::synchronize`] puts the thread to sleep instead of spinning.
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
        let inner = Inner { raw, primary, known, owner: None };
        Ok(Event { inner: Arc::new(inner) })
    }

    /// Returns the context that the event belongs to: the primary context of its device, even if a partition's stream
    /// records the event. An event that belonged to a partition's context would be destroyed with that context.
    ///
    /// For a foreign event, the context is the primary context of the device that was passed when the event was
    /// wrapped, since the driver does not report an event's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.inner.primary.context()
    }

    /// Returns the driver's handle. [`Driver::find_event`] maps the handle back to this event.
    #[must_use]
    pub fn as_raw(&self) -> CUevent {
        if !self.inner.known.load(Ordering::Acquire) {
            self.driver().events().enter(self.inner.raw.address(), &self.inner);
            self.inner.known.store(true, Ordering::Release);
        }
        self.raw()
    }

    /// Returns the driver's handle without entering the event in the registry.
    #[inline]
    pub(crate) fn raw(&self) -> CUevent {
        self.inner.raw.as_ptr()
    }

    /// Returns whether the work covered by the event's last record is done. An event that was never recorded is
    /// complete.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], including errors raised by the recorded work.
    #[doc(alias = "cuEventQuery")]
    pub fn is_complete(&self) -> Result<bool> {
        // SAFETY: `self` keeps the event alive.
        check_done("cuEventQuery", unsafe {
            self.driver().functions()?.cuEventQuery()?(self.raw())
        })
        .inspect_err(|error| self.context().device().note(error))
    }

    /// Blocks the calling thread until the work covered by the event's last record is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], including errors raised by the recorded work.
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: `self` keeps the event alive.
        unsafe { call!(self.driver().functions()?, cuEventSynchronize(self.raw())) }
            .inspect_err(|error| self.context().device().note(error))
    }

    /// Returns the device time between `start` and this event, with a resolution of about 0.5 µs. Returns 0 if `start`
    /// was recorded later than this event.
    ///
    /// Both events must have been created with [`timing`](EventOptions::timing), and both must have completed.
    ///
    /// # Errors
    ///
    /// - [`Error::DeviceMismatch`] if `start` belongs to another driver.
    /// - [`Error::InvalidRequest`] if an event was not recorded, or records no time.
    /// - [`Error::Driver`] if the driver call fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{DeviceBuffer, Driver, sim::Sim, event::EventOptions};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let parts = device.partition([32])?;
    /// # let stream = parts[0].stream();
    /// let timed = EventOptions::default().timing(true);
    /// let (start, end) = (device.create_event(timed)?, device.create_event(timed)?);
    /// # let (target, source) = (DeviceBuffer::<u32>::zeroed(&device, 1024)?, DeviceBuffer::zeroed(&device, 1024)?);
    /// stream.record(&start)?;
    /// target.copy_from_buffer(&source, stream)?;
    /// stream.record(&end)?;
    /// end.synchronize()?;
    /// println!("the copy took {:?}", end.elapsed_since(&start)?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        start.check_driver(self.driver())?;
        let mut milliseconds = 0.0f32;
        // SAFETY: `self` and `start` keep both events alive. `milliseconds` is a live local that the driver writes.
        let asked = unsafe {
            call!(
                self.driver().functions()?,
                cuEventElapsedTime(&raw mut milliseconds, start.raw(), self.raw())
            )
        };
        asked.map_err(|error| match error {
            Error::Driver { status: CUresult::CUDA_ERROR_INVALID_HANDLE, .. } => {
                let reason = "an event was not recorded, was created without `EventOptions::timing`, \
                              or is of another device";
                Error::InvalidRequest(reason.to_owned())
            }
            error => error,
        })?;
        // The time is negative if `start` was recorded after `self`. Report that as zero.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    #[inline]
    fn driver(&self) -> &Driver {
        self.inner.driver()
    }

    /// Returns an error if `driver` is not the event's driver, since the raw handle is valid only in its own driver.
    #[inline]
    pub(crate) fn check_driver(&self, driver: &Driver) -> Result<()> {
        if self.driver() == driver {
            Ok(())
        } else {
            Err(Error::DeviceMismatch { what: "the event and the object that uses it" })
        }
    }
}

impl Inner {
    #[inline]
    fn driver(&self) -> &Driver {
        self.primary.context().device().driver()
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: the object owns its event, and `drop` is the only caller, so the event is destroyed once.
        unsafe { call!(self.driver().functions()?, cuEventDestroy(self.raw.as_ptr())) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            // Forget the owner too: its clean-up belongs to the parent process.
            return mem::forget(self.owner.take());
        }
        // Remove the entry before destroying the event, since the driver may reuse the address immediately.
        if *self.known.get_mut() {
            self.driver().events().forget(self.raw.address(), self);
        }
        if self.owner.is_none() {
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

//! Events that other code created.
#![allow(unsafe_code, reason = "takes raw handles")]

use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use green_ctx_sys::CUevent;

use super::{Event, Inner};
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::handle::owner::Owner;
use crate::handle::raw::Raw;

impl Event {
    /// Takes ownership of a foreign event. The last clone of the result destroys the event.
    ///
    /// # Errors
    ///
    /// - [`Error::AlreadyOwned`] if an [`Event`] of this crate already represents the handle.
    /// - [`Error::InvalidRequest`] if the handle is null.
    /// - [`Error::Forked`] or [`Error::Driver`].
    ///
    /// If the call fails, the caller still owns the event.
    ///
    /// # Safety
    ///
    /// - `raw` must be a live event of this device. The driver has no call to check this.
    /// - No other code may destroy the event, or use it after the last clone of the result is dropped.
    pub unsafe fn from_raw_owned(device: &Device, raw: CUevent) -> Result<Event> {
        let fresh = Event::foreign(device, raw, None)?;
        let address = fresh.raw.address();
        let (inner, late) = device.driver().events().get_or_enter(address, fresh);
        let Some(mut late) = late else { return Ok(Event { inner }) };
        // The event still belongs to the caller: dropping `late` must not destroy it.
        match Arc::get_mut(&mut late) {
            Some(late) => late.owner = Some(Arc::new(())),
            None => mem::forget(late),
        }
        Err(Error::AlreadyOwned { what: "event" })
    }

    /// Wraps an event that other code owns. This crate never destroys the event. `owner` is kept alive until the last
    /// clone of the result is dropped.
    ///
    /// If an [`Event`] of this crate already represents the handle, that event is returned and `owner` is dropped.
    ///
    /// # Errors
    ///
    /// - [`Error::DeviceMismatch`] if the existing [`Event`] belongs to another device.
    /// - [`Error::InvalidRequest`] if the handle is null.
    /// - [`Error::Forked`] or [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// `raw` must be a live event of this device, and must stay alive until `owner` is dropped. The driver has no
    /// call to check this.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Event, sim::Sim, event::EventOptions};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let ours = device.create_event(EventOptions::default())?;
    /// // Another library receives this handle and passes it back.
    /// let raw = ours.as_raw();
    /// // SAFETY: the clone of `ours` keeps the event alive.
    /// let same = unsafe { Event::from_raw_borrowed(&device, raw, ours.clone()) }?;
    /// assert_eq!(same, ours);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn from_raw_borrowed(
        device: &Device,
        raw: CUevent,
        owner: impl Send + Sync + 'static,
    ) -> Result<Event> {
        device.driver().check_process()?;
        if let Some(event) = device.driver().find_event(raw) {
            return event.on(device);
        }
        let fresh = Event::foreign(device, raw, Some(Arc::new(owner)))?;
        let address = fresh.raw.address();
        let (inner, late) = device.driver().events().get_or_enter(address, fresh);
        drop(late);
        Event { inner }.on(device)
    }

    fn on(self, device: &Device) -> Result<Event> {
        if self.context().device() == device {
            Ok(self)
        } else {
            Err(Error::DeviceMismatch { what: "the event and the device" })
        }
    }

    /// Creates an object for a foreign handle, without entering it in the registry. The only driver call in this
    /// function retains the primary context. The call comes before the object is created, so a failure cannot drop an
    /// object that would destroy the event.
    fn foreign(device: &Device, raw: CUevent, owner: Option<Owner>) -> Result<Arc<Inner>> {
        device.driver().check_process()?;
        let raw = Raw::new(raw)
            .ok_or_else(|| Error::InvalidRequest("the event's handle is null".to_owned()))?;
        let primary = device.primary_reference()?;
        // Foreign code has the handle, so the caller enters the object in the registry immediately.
        let known = AtomicBool::new(true);
        Ok(Arc::new(Inner { raw, primary, known, owner }))
    }
}

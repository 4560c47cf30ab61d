//! Events that others made.
#![allow(unsafe_code, reason = "takes raw handles")]

use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use green_ctx_sys::CUevent;

use super::{Event, Inner};
use crate::handle::device::Device;
use crate::handle::error::{Error, Result};
use crate::handle::owner::Ownership;
use crate::handle::raw::Raw;

impl Event {
    /// Takes over a foreign event: the last handle destroys it.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyOwned`] for an event that an object of this crate stands for,
    /// [`Error::InvalidRequest`] for a null handle, [`Error::Forked`], [`Error::Driver`]. The event
    /// stays the caller's then.
    ///
    /// # Safety
    ///
    /// `raw` must be a living event of this device, which the driver has no way to ask for, and
    /// nobody else may destroy it. Others may use it no longer than a handle of the result lives.
    pub unsafe fn from_raw_owned(device: &Device, raw: CUevent) -> Result<Event> {
        let fresh = Event::foreign(device, raw, Ownership::Owned)?;
        let address = fresh.raw.address();
        let (inner, late) = device.driver().events().get_or_enter(address, fresh);
        let Some(mut late) = late else { return Ok(Event { inner }) };
        // It stays with whoever has it.
        match Arc::get_mut(&mut late) {
            Some(late) => late.ownership = Ownership::borrowed(()),
            None => mem::forget(late),
        }
        Err(Error::AlreadyOwned { what: "event" })
    }

    /// Uses an event that is somebody else's. Nothing destroys it; `owner` is kept until the last
    /// handle of the result is gone.
    ///
    /// An event that an object of this crate stands for already is that object, and `owner` is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] where that object is of another device, [`Error::InvalidRequest`]
    /// for a null handle, [`Error::Forked`], [`Error::Driver`].
    ///
    /// # Safety
    ///
    /// `raw` must be a living event of this device, which the driver has no way to ask for, and stay
    /// alive until `owner` is dropped.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, Event, sim::Sim, event::EventOptions};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let ours = device.create_event(EventOptions::default())?;
    /// // From here to another library and back.
    /// let raw = ours.as_raw();
    /// // SAFETY: `ours` keeps the event.
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
        let fresh = Event::foreign(device, raw, Ownership::borrowed(owner))?;
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

    /// An object for a foreign handle, not yet in the registry. Of the driver's calls only the one
    /// for the context is made, before there is an object that could end the event.
    fn foreign(device: &Device, raw: CUevent, ownership: Ownership) -> Result<Arc<Inner>> {
        device.driver().check_process()?;
        let raw = Raw::new(raw)
            .ok_or_else(|| Error::InvalidRequest("the event's handle is null".to_owned()))?;
        let primary = device.primary_reference()?;
        // Others have the handle: it goes into the registry at once.
        let known = AtomicBool::new(true);
        Ok(Arc::new(Inner { raw, primary, known, ownership }))
    }
}

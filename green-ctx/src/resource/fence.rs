//! Fences: what has to be done before SMs that were given back are really free.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::Arc;

use green_ctx_sys::{Api, CUdevice, CUevent, CUevent_st};

use crate::capture::RelaxedCapture;
use crate::device::Device;
use crate::driver::{Driver, WeakDriver};
use crate::error::{Result, call, check_done};
use crate::event::Event;
use crate::raw::Raw;

/// An event of work that still ran on SMs when their group went back.
///
/// The driver owns the ledger, and the ledger keeps fences: a fence that kept its driver, as an
/// [`Event`] does, would keep it for ever. What it needs of the device it holds by a reference of its
/// own to the primary context.
pub(crate) struct Fence {
    event: Raw<CUevent_st>,
    device: CUdevice,
    driver: WeakDriver,
}

impl Fence {
    /// Takes an event over that nobody else has.
    pub(crate) fn new(device: &Device, event: Event) -> Result<Fence> {
        let mut primary = ptr::null_mut();
        // SAFETY: the pointer is to a live handle, the device comes from the driver.
        unsafe {
            call!(device.api(), cuDevicePrimaryCtxRetain(&raw mut primary, device.as_raw()))
        }?;
        let (driver, device) = (device.driver().downgrade(), device.as_raw());
        Ok(Fence { event: event.into_raw(), device, driver })
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.event.as_ptr()
    }

    fn is_done(&self, api: &Api) -> Result<bool> {
        // SAFETY: the event is alive.
        check_done("cuEventQuery", unsafe { api.cuEventQuery()?(self.raw()) })
    }

    /// Whether nothing needs to wait for the fence any more. One that cannot tell is kept, which is
    /// right whatever it is, unless the device has failed: then no work goes on.
    fn is_over(&self, driver: &Driver) -> bool {
        let answer = self.is_done(driver.api());
        let over = match &answer {
            Ok(done) => *done,
            Err(error) => error.is_sticky(),
        };
        driver.report(answer.map(drop));
        over
    }

    /// Lets go of the event and of the primary context.
    fn end(&self, api: &Api) -> [Result<()>; 2] {
        let destroy = || {
            // SAFETY: nobody else has the handle, and a fence ends once.
            unsafe { call!(api, cuEventDestroy(self.raw())) }
        };
        let release = || {
            // SAFETY: the reference is the fence's own, and a fence ends once.
            unsafe { call!(api, cuDevicePrimaryCtxRelease(self.device)) }
        };
        [destroy(), release()]
    }
}

/// A fence is equal to itself alone.
impl PartialEq for Fence {
    fn eq(&self, other: &Fence) -> bool {
        ptr::eq(self, other)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // A driver that is ending has ended its fences itself.
        let Some(driver) = self.driver.upgrade() else { return };
        if !driver.is_forked() {
            self.end(driver.api()).into_iter().for_each(|result| driver.report(result));
        }
    }
}

/// The fences of a group. Whoever takes its SMs gets them at once, and what is submitted there waits
/// for these on the device.
#[derive(Clone, Default)]
pub(crate) struct Fences {
    fences: Vec<Arc<Fence>>,
}

impl From<Vec<Arc<Fence>>> for Fences {
    fn from(fences: Vec<Arc<Fence>>) -> Fences {
        Fences { fences }
    }
}

impl Fences {
    /// The fences of several units, each once.
    pub(crate) fn gather<'a>(shared: impl IntoIterator<Item = &'a Arc<Fence>>) -> Fences {
        let mut fences: Vec<Arc<Fence>> = Vec::new();
        for fence in shared {
            if !fences.iter().any(|known| Arc::ptr_eq(known, fence)) {
                fences.push(Arc::clone(fence));
            }
        }
        Fences { fences }
    }

    /// These fences and more.
    pub(crate) fn with(&self, more: Vec<Arc<Fence>>) -> Fences {
        Fences::gather(self.fences.iter().chain(&more))
    }

    /// Adds fences, and lets go of those that are done.
    pub(crate) fn add(&mut self, driver: &Driver, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.settle(driver);
        self.fences.extend(more);
    }

    /// Lets go of fences that are done.
    pub(crate) fn settle(&mut self, driver: &Driver) {
        if self.fences.is_empty() {
            return;
        }
        let relaxed = RelaxedCapture::enter(driver);
        match &relaxed {
            Ok(_) => self.fences.retain(|fence| !fence.is_over(driver)),
            Err(_) => driver.report(relaxed.map(drop)),
        }
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn are_done(&self, driver: &Driver) -> Result<bool> {
        let _relaxed = RelaxedCapture::enter(driver)?;
        for fence in &self.fences {
            if !fence.is_done(driver.api())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes something wait for each fence.
    pub(crate) fn wait(&self, wait: impl FnMut(&Fence) -> Result<()>) -> Result<()> {
        self.fences.iter().map(AsRef::as_ref).try_for_each(wait)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    pub(crate) fn as_slice(&self) -> &[Arc<Fence>] {
        &self.fences
    }

    /// Ends the fences of a driver that is ending itself, which nobody else has any more.
    pub(crate) fn end(self, api: &Api, mut report: impl FnMut(Result<()>)) {
        self.fences.iter().flat_map(|fence| fence.end(api)).for_each(&mut report);
    }
}

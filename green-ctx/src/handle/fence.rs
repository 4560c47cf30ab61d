//! Fences: events that the next owner of SMs waits for.
//!
//! Destroying a stream or a green context does not stop its work, and neither does a switch between plans. So
//! a context that gives up SMs records a fence. New work of the next partition whose floor is on these SMs
//! waits for the fence on the device. Partitions that only share the SMs do not wait.
//!
//! A context of a plan gives up its SMs many times. It has a fence from the start and records it again in
//! place, and each record covers what the earlier ones covered. Any other context gets a fence when its last
//! handle is dropped, unless its work is done. The ledger, or the group that the SMs came from, keeps the
//! fence until the next floor takes it.
//!
//! A list drops a fence only if its work is done or the device has failed. The query runs with the thread's
//! capture mode relaxed. The last reference destroys the event, while no lock is held.
#![allow(unsafe_code, reason = "calls the driver")]

mod pending;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use green_ctx_sys::{Api, CUcontext, CUdevice, CUevent, CUevent_flags, CUevent_st};

use crate::handle::capture::RelaxedCapture;
use crate::handle::current::{self, Scope};
use crate::handle::device::Device;
use crate::handle::driver::{Driver, WeakDriver};
use crate::handle::error::call;
use crate::handle::error::{Error, Result, check_done};
use crate::handle::raw::Raw;

pub(crate) use pending::Pending;

/// An event for the work that a context has submitted.
///
/// The driver owns the ledger, and the ledger keeps fences: a fence that kept its driver, as an
/// [`Event`](crate::Event) does, would keep it for ever. What it needs of the device it holds by a
/// reference of its own to the primary context.
pub(crate) struct Fence {
    event: Raw<CUevent_st>,
    /// How often the event was recorded. Who has waited for it has waited for the records until then.
    records: AtomicU64,
    device: CUdevice,
    driver: WeakDriver,
}

impl Fence {
    /// A fence that stands for nothing yet.
    pub(crate) fn new(device: &Device) -> Result<Fence> {
        let (driver, api) = (device.driver(), device.functions()?);
        let device = device.as_raw();
        let _relaxed = RelaxedCapture::enter(driver)?;
        let mut primary = ptr::null_mut();
        // SAFETY: the pointer is to a live handle, the device comes from the driver.
        unsafe { call!(api, cuDevicePrimaryCtxRetain(&raw mut primary, device)) }?;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        let event = create_event(driver, primary, flags)
            .inspect_err(|_| driver.report(release(api, device)))?;
        Ok(Fence { event, records: AtomicU64::new(0), device, driver: driver.downgrade() })
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.event.as_ptr()
    }

    /// Notes that the event was recorded.
    pub(crate) fn note_record(&self) {
        self.records.fetch_add(1, Ordering::Release);
    }

    /// How often it was recorded.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Acquire)
    }

    /// Whether the work that it stands for is done. The question invalidates captures of other
    /// threads in global mode (recorded on an H200), unless the thread's mode is relaxed.
    pub(crate) fn is_done(&self, api: &Api) -> Result<bool> {
        // SAFETY: the event is alive.
        check_done("cuEventQuery", unsafe { api.cuEventQuery()?(self.raw()) })
    }

    /// Waits on the host until the work that it stands for is done.
    pub(crate) fn synchronize(&self, api: &Api) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { call!(api, cuEventSynchronize(self.raw())) }
    }

    /// Whether nothing needs to wait for the fence any more. One that cannot answer is kept, which
    /// is right whatever it is, unless the device has failed: then no work goes on.
    fn is_over(&self, driver: &Driver) -> bool {
        let answer = driver.functions().and_then(|api| self.is_done(api));
        let over = match &answer {
            Ok(done) => *done,
            Err(error) => error.is_sticky(),
        };
        driver.report(answer.map(drop));
        over
    }

    /// Lets go of the event and of the primary context.
    fn end(&self, api: &Api) -> [Result<()>; 2] {
        [self.destroy(api), self.release(api)]
    }

    fn destroy(&self, api: &Api) -> Result<()> {
        // SAFETY: the handle is the fence's own. A fence ends once: when it is dropped, or with the driver,
        // after which dropping it does nothing.
        unsafe { call!(api, cuEventDestroy(self.raw())) }
    }

    fn release(&self, api: &Api) -> Result<()> {
        release(api, self.device)
    }
}

/// Releases the reference to the primary context that a fence has: once, when the fence ends or cannot be made.
fn release(api: &Api, device: CUdevice) -> Result<()> {
    // SAFETY: the reference is the caller's own.
    unsafe { call!(api, cuDevicePrimaryCtxRelease(device)) }
}

/// Creates an event in a primary context, which the caller keeps.
pub(crate) fn create_event(
    driver: &Driver,
    primary: CUcontext,
    flags: u32,
) -> Result<Raw<CUevent_st>> {
    let mut raw = ptr::null_mut();
    // The driver makes events in the current context. To push one takes no longer than to ask which it is, but two
    // threads that push the same one hinder each other at the event itself (seen on an H200, driver 580.159.04).
    let is_current = current::get(driver)? == primary;
    let _scope = if is_current { None } else { Some(Scope::enter(driver, primary)?) };
    // SAFETY: the pointer is to a live handle.
    unsafe { call!(driver.functions()?, cuEventCreate(&raw mut raw, flags)) }?;
    Raw::new(raw).ok_or_else(|| Error::null("cuEventCreate"))
}

/// A fence equals only itself.
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
            driver.report(driver.functions().and_then(|api| self.destroy(api)));
            driver.clean_up(|| self.release(driver.functions()?));
        }
    }
}

/// The fences of a group, each once. Whoever takes its SMs gets them at once, and what is submitted
/// there waits for these on the device.
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
        let mut fences = Fences::default();
        fences.union(shared.into_iter().map(Arc::clone));
        fences
    }

    /// These fences and more.
    pub(crate) fn with(&self, more: impl IntoIterator<Item = Arc<Fence>>) -> Fences {
        let mut fences = self.clone();
        fences.union(more);
        fences
    }

    fn union(&mut self, more: impl IntoIterator<Item = Arc<Fence>>) {
        for fence in more {
            if !self.fences.iter().any(|known| Arc::ptr_eq(known, &fence)) {
                self.fences.push(fence);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Fence>> {
        self.fences.iter()
    }

    /// Adds fences, and lets go of those that are done.
    pub(crate) fn add(&mut self, driver: &Driver, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.union(more);
        self.settle(driver);
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

    pub(crate) fn as_slice(&self) -> &[Arc<Fence>] {
        &self.fences
    }

    /// Ends the fences of a driver that is ending itself: all that there are, since each is here once.
    /// What drops them later does nothing.
    pub(crate) fn end(self, api: &Api, mut report: impl FnMut(Result<()>)) {
        self.fences.iter().flat_map(|fence| fence.end(api)).for_each(&mut report);
    }
}

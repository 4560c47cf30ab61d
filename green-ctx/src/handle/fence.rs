//! Fences: events that the next owner of SMs waits for.
//!
//! Work continues after its stream or green context is destroyed, and after a switch between plans. A context that
//! gives up SMs therefore records a fence. New work of the next partition whose floor is on these SMs waits for the
//! fence on the device. Partitions that only share the SMs do not wait.
//!
//! A context of a plan gives up its SMs many times. Such a context has a fence from the start, and records this same
//! fence each time. Each record also covers the work that earlier records covered. Every other context gets a fence
//! when its last handle is dropped, unless the context has no unfinished work. The fence stays in the ledger, or in the
//! group that the SMs were split from, until the next owner of the SMs takes the fence.
//!
//! A list of fences drops a fence only if the fence's work is done or the device has failed. Fences are queried with
//! the thread's capture mode relaxed. Dropping the last reference to a fence destroys its event, so that reference is
//! never dropped under a lock.
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

/// An event that covers the work that a context has submitted.
///
/// The driver owns the ledger, and the ledger owns fences. Unlike an [`Event`](crate::Event), a fence must therefore
/// not keep its driver alive, since driver and fence would then keep each other alive forever. Instead, the fence
/// itself retains the primary context.
pub(crate) struct Fence {
    event: Raw<CUevent_st>,
    /// The number of times that the event was recorded. A wait for the event covers all records made before the wait.
    records: AtomicU64,
    device: CUdevice,
    driver: WeakDriver,
}

impl Fence {
    /// Creates a fence that has no record yet and therefore covers no work.
    pub(crate) fn new(device: &Device) -> Result<Fence> {
        let _relaxed = RelaxedCapture::enter(device.driver())?;
        let primary = device.primary_reference()?;
        Fence::of(device, create_event(device.driver(), primary.context().raw(), FLAGS)?)
    }

    /// Returns a fence for the work that `record` records in an event, or `None` if that work is done. The caller has
    /// relaxed the thread's capture mode.
    pub(crate) fn recorded(
        device: &Device,
        record: impl FnOnce(CUevent) -> Result<()>,
    ) -> Result<Option<Fence>> {
        let (driver, api) = (device.driver(), device.functions()?);
        // Not a shared reference: at the drop of the last partition, that would be made anew each time.
        let primary = device.primary_context()?;
        let event = create_event(driver, primary.raw(), FLAGS)?;
        let is_done = record(event.as_ptr()).and_then(|()| is_done(api, event));
        if let Ok(false) = is_done {
            return Fence::of(device, event).map(Some);
        }
        // Usually the work is done. Retaining the primary context takes longer than creating an event.
        driver.report(destroy(api, event));
        is_done.map(|_| None)
    }

    /// Takes over an event, and retains the primary context for it. If the driver refuses that, destroys the event.
    fn of(device: &Device, event: Raw<CUevent_st>) -> Result<Fence> {
        let (driver, api, device) = (device.driver(), device.functions()?, device.as_raw());
        let mut primary = ptr::null_mut();
        // SAFETY: `primary` is a live local that the driver writes, and `device` is one of the driver's devices.
        unsafe { call!(api, cuDevicePrimaryCtxRetain(&raw mut primary, device)) }
            .inspect_err(|_| driver.report(destroy(api, event)))?;
        Ok(Fence { event, records: AtomicU64::new(0), device, driver: driver.downgrade() })
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.event.as_ptr()
    }

    /// Counts a record of the event. Called after each record.
    pub(crate) fn note_record(&self) {
        self.records.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of times that the event was recorded.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Acquire)
    }

    /// Returns whether the covered work is done. The query invalidates captures of other threads in global mode
    /// (recorded on an H200), unless this thread's mode is relaxed.
    pub(crate) fn is_done(&self, api: &Api) -> Result<bool> {
        is_done(api, self.event)
    }

    /// Blocks the calling thread until the covered work is done.
    pub(crate) fn synchronize(&self, api: &Api) -> Result<()> {
        // SAFETY: `self` owns the event, which is alive until `self` ends.
        unsafe { call!(api, cuEventSynchronize(self.raw())) }
    }

    /// Returns true if no owner of SMs needs to wait for the fence. If the query fails, returns false, so that the
    /// fence is kept, which is always correct. If the device has failed, returns true, since no work continues on that
    /// device.
    fn is_over(&self, driver: &Driver) -> bool {
        let answer = driver.functions().and_then(|api| self.is_done(api));
        let over = match &answer {
            Ok(done) => *done,
            Err(error) => error.is_sticky(),
        };
        driver.report(answer.map(drop));
        over
    }

    /// Destroys the event and releases the primary context.
    fn end(&self, api: &Api) -> [Result<()>; 2] {
        [destroy(api, self.event), self.release(api)]
    }

    fn release(&self, api: &Api) -> Result<()> {
        // SAFETY: the fence owns its reference. A fence ends only once: in `drop`, or together with the driver, after
        // which `drop` does nothing.
        unsafe { call!(api, cuDevicePrimaryCtxRelease(self.device)) }
    }
}

/// The options of a fence's event.
const FLAGS: u32 = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;

/// Returns whether the work that was recorded in an event is done. The caller keeps the event alive.
fn is_done(api: &Api, event: Raw<CUevent_st>) -> Result<bool> {
    // SAFETY: the caller keeps the event alive.
    check_done("cuEventQuery", unsafe { api.cuEventQuery()?(event.as_ptr()) })
}

/// Destroys an event that the caller owns.
fn destroy(api: &Api, event: Raw<CUevent_st>) -> Result<()> {
    // SAFETY: the callers own the event and do not use it afterwards.
    unsafe { call!(api, cuEventDestroy(event.as_ptr())) }
}

/// Creates an event in a primary context. The caller keeps the context alive.
pub(crate) fn create_event(
    driver: &Driver,
    primary: CUcontext,
    flags: u32,
) -> Result<Raw<CUevent_st>> {
    let mut raw = ptr::null_mut();
    // The driver creates events in the current context. Pushing a context takes no longer than this query. But if two
    // threads push the same context, they delay each other's event creation (seen on an H200, driver 580.159.04).
    let is_current = current::get(driver)? == primary;
    let _scope = if is_current { None } else { Some(Scope::enter(driver, primary)?) };
    // SAFETY: `raw` is a live local that the driver writes. The primary context is current.
    unsafe { call!(driver.functions()?, cuEventCreate(&raw mut raw, flags)) }?;
    Raw::new(raw).ok_or_else(|| Error::null("cuEventCreate"))
}

/// A fence is equal only to itself.
impl PartialEq for Fence {
    fn eq(&self, other: &Fence) -> bool {
        ptr::eq(self, other)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // A driver that is being dropped has already ended its fences.
        let Some(driver) = self.driver.upgrade() else { return };
        if !driver.is_forked() {
            driver.report(driver.functions().and_then(|api| destroy(api, self.event)));
            driver.clean_up(|| self.release(driver.functions()?));
        }
    }
}

/// The fences of a group, without duplicates. The next owner gets the SMs immediately, and its work waits on the device
/// for these fences.
#[derive(Clone, Default)]
pub(crate) struct Fences {
    fences: Vec<Arc<Fence>>,
}

impl From<Vec<Arc<Fence>>> for Fences {
    /// The list must have no duplicates.
    fn from(fences: Vec<Arc<Fence>>) -> Fences {
        Fences { fences }
    }
}

impl Fences {
    /// Collects the fences of several units, without duplicates.
    pub(crate) fn gather<'a>(shared: impl IntoIterator<Item = &'a Arc<Fence>>) -> Fences {
        let mut fences = Fences::default();
        fences.union(shared.into_iter().map(Arc::clone));
        fences
    }

    /// Returns these fences and `more`, without duplicates.
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

    /// Adds fences, and drops those whose work is done.
    pub(crate) fn add(&mut self, driver: &Driver, more: impl IntoIterator<Item = Arc<Fence>>) {
        self.union(more);
        self.settle(driver);
    }

    /// Drops the fences whose work is done.
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

    /// Ends all fences of a driver that is being dropped. Dropping the fences afterwards does nothing.
    pub(crate) fn end(self, api: &Api, mut report: impl FnMut(Result<()>)) {
        self.fences.iter().flat_map(|fence| fence.end(api)).for_each(&mut report);
    }
}

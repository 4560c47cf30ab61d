//! Per-device state of the process: the ledger, and values that are read from the driver once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use green_ctx_sys::{Api, CUdevResourceType, CUdevSmResource, CUresult, Rest};
use parking_lot::{Mutex, MutexGuard};

use super::Device;
use crate::handle::capture::RelaxedCapture;
use crate::handle::context::Context;
use crate::handle::dev_resource;
use crate::handle::dev_resource::Units;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::{Error, Result};
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, Green};
use crate::handle::primary::ShareSlots;
use crate::handle::quarantine::Quarantine;
use crate::handle::report::Reporter;
use crate::ledger::{ContextCounts, Cut, Ledger};

/// The maximum number of cuts (divisions of the device into units) that are remembered per device. Structured requests
/// can cut a device in any number of ways, and repeating a forgotten cut takes only about 5 µs.
pub(crate) const MOST_CUTS: usize = 32;

/// The ledger of one device.
pub(crate) type DeviceLedger = Ledger<Arc<Fence>, Arc<Green>>;

/// The state of one device. A driver has one such state per device.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// The address of the primary context that was retained last. The registry of contexts has its object while a
    /// handle exists.
    pub(crate) primary: AtomicUsize,
    /// The references to the primary context that events use.
    pub(crate) primary_shares: ShareSlots<Context>,
    /// Set when a driver call returns an error that ends all contexts of the device.
    failed: AtomicBool,
    ledger: Mutex<DeviceLedger>,
    pub(crate) quarantine: Quarantine,
    /// The units of each remembered cut, with the most recently used cut last. Units stay valid even if the primary
    /// context is released in the meantime (recorded on an H200).
    units: Mutex<Vec<(Cut, Arc<Units>)>>,
    /// The driver's description of the SMs, read once. The query takes 0.4 µs (measured on an H200). Units that were
    /// made from this description stay valid.
    sms: OnceLock<CUdevSmResource>,
    /// Set when the ledger has the rest as a holder, or when there is no rest.
    pub(crate) rest_is_held: AtomicBool,
}

/// The states of a driver's devices, by ordinal.
struct States(Vec<DeviceState>);

impl InSlot for States {
    const SLOT: Slot = Slot::Devices;

    fn make(driver: &Driver) -> States {
        States(driver.raw_devices().iter().map(|_| DeviceState::default()).collect())
    }

    fn end(&self, api: &Api, reporter: &Reporter) {
        // The program may still be capturing without this crate, and the queries here must not invalidate that.
        let relaxed = RelaxedCapture::of(api, reporter);
        for device in &self.0 {
            let idle = device.ledger.lock().recycler.drain();
            for idle in idle {
                reporter.report(idle.raw.destroy(api));
            }
            let fences = device.ledger.lock().fences();
            // A fence can be in both lists. `with` removes duplicates, since each fence must end only once.
            let fences = Fences::from(fences).with(device.quarantine.end(api));
            fences.end(api, |result| reporter.report(result));
        }
        reporter.report(relaxed.map(drop));
    }
}

impl Device {
    /// Returns how many green contexts were created, how many were reused, and how many are idle. All three counts are
    /// 0 in a forked process.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// drop(device.partition([32])?);
    /// let counts = device.context_counts();
    /// assert_eq!((counts.created, counts.reused, counts.idle), (1, 0, 1));
    ///
    /// let _same_sms = device.partition([32])?;
    /// assert_eq!(device.context_counts().reused, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn context_counts(&self) -> ContextCounts {
        self.ledger().map(|ledger| ledger.recycler.counts()).unwrap_or_default()
    }

    /// Sets the maximum number of idle contexts that the device keeps for reuse. The default is 64. Contexts above the
    /// limit are destroyed, the oldest first.
    ///
    /// Destroying a context frees no device memory (measured on an H200, driver 580.159.04). Contexts of streams that
    /// are [kept alive](crate::Stream::keep_alive) are never destroyed and do not count towards the limit.
    pub fn set_idle_limit(&self, limit: usize) {
        let Ok(mut ledger) = self.ledger() else { return };
        let surplus = ledger.recycler.set_limit(limit);
        drop(ledger);
        green::destroy(self, surplus);
    }

    /// Destroys the idle contexts, and returns the number of contexts that were destroyed. Contexts of streams that are
    /// [kept alive](crate::Stream::keep_alive) are not destroyed.
    ///
    /// This method also tries again to record the work of contexts in quarantine, and destroys the events of dropped
    /// partitions whose work is done.
    #[doc(alias = "cuGreenCtxDestroy")]
    pub fn release_idle(&self) -> usize {
        if self.driver.is_forked() {
            return 0;
        }
        self.retry_quarantine();
        let Ok(mut ledger) = self.ledger() else { return 0 };
        let idle = ledger.recycler.drain();
        drop(ledger);
        let count = idle.len();
        green::destroy(self, idle);
        self.settle_fences();
        count
    }

    /// Tries again to record the work of contexts in quarantine.
    #[inline]
    pub(crate) fn retry_quarantine(&self) {
        self.state().quarantine.retry(self);
    }

    /// Drops the fences in the ledger whose work is done.
    pub(crate) fn settle_fences(&self) {
        let Ok(mut fences) = self.ledger().map(|ledger| ledger.fences()) else { return };
        // The ledger is not locked during the queries. A partition that takes the SMs now also gets the fences.
        let mut running = Fences::gather(&fences);
        running.settle(&self.driver);
        fences.retain(|fence| !running.as_slice().contains(fence));
        let done = self.ledger().map(|mut ledger| ledger.take_fences(&fences));
        drop(done);
    }

    /// Returns the driver's description of all SMs of the device.
    pub(crate) fn sms(&self) -> Result<&CUdevSmResource> {
        self.driver.check_process()?;
        let sms = &self.state().sms;
        if let Some(known) = sms.get() {
            return Ok(known);
        }
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let resource = dev_resource::of_device(self.functions()?, self.as_raw(), kind)?;
        Ok(sms.get_or_init(|| *dev_resource::sm_part(&resource)))
    }

    /// Returns the rest of the device, to which work outside of partitions is confined, or `None` if no SMs are reserved.
    pub(crate) fn unbound(&self) -> Result<Option<Rest>> {
        self.rest_with(true)
    }

    /// As [`unbound`](Device::unbound), but creates no context and returns none.
    pub(crate) fn division(&self) -> Result<Option<Rest>> {
        self.rest_with(false)
    }

    fn rest_with(&self, context: bool) -> Result<Option<Rest>> {
        let rest = self.functions()?.rest(self.as_raw(), context).transpose();
        rest.map_err(|status| match status {
            CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION => {
                let words = "the reserve leaves no SMs for work outside of partitions; start the program \
                             again with a smaller one, because a reserve cannot be changed";
                Error::InvalidRequest(words.to_owned())
            }
            status => Error::Driver { call: "greenCtxReserveRest", status },
        })
    }

    /// Returns the units of `cut`. If the cut is not remembered, calls `make` to cut the device.
    pub(crate) fn units(
        &self,
        cut: &Cut,
        make: impl FnOnce() -> Result<Units>,
    ) -> Result<Arc<Units>> {
        self.driver.check_process()?;
        let find = |made: &mut Vec<(Cut, Arc<Units>)>| {
            let index = made.iter().rposition(|(made, _)| made == cut)?;
            made[index..].rotate_left(1);
            made.last().map(|(_, units)| Arc::clone(units))
        };
        if let Some(units) = find(&mut self.state().units.lock()) {
            return Ok(units);
        }
        // Two threads may cut the device at the same time. Both get the result that was stored first.
        let fresh = Arc::new(make()?);
        let mut made = self.state().units.lock();
        if let Some(units) = find(&mut made) {
            return Ok(units);
        }
        let oldest = if made.len() < MOST_CUTS { None } else { Some(made.remove(0)) };
        made.push((cut.clone(), Arc::clone(&fresh)));
        drop(made);
        drop(oldest);
        Ok(fresh)
    }

    #[cfg(test)]
    pub(crate) fn remembered_cuts(&self) -> usize {
        self.state().units.lock().len()
    }

    /// Marks the device as failed if the error means that the device's contexts are lost. Contexts of a failed device
    /// are not reused.
    #[cold]
    pub(crate) fn note(&self, error: &Error) {
        if error.is_sticky() {
            self.state().failed.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().failed.load(Ordering::Relaxed)
    }

    /// Locks the device's ledger. Fails in a forked process, where a thread that no longer exists may hold the lock
    /// forever.
    pub(crate) fn ledger(&self) -> Result<MutexGuard<'_, DeviceLedger>> {
        self.driver.check_process()?;
        Ok(self.state().ledger.lock())
    }

    #[inline]
    pub(crate) fn state(&self) -> &DeviceState {
        &self.driver.slot::<States>().0[self.index]
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn few_ways_of_cutting_are_remembered() -> Result<()> {
        let driver = Driver::simulated(&green_ctx_sim::Sim::new("h200@13.1")?)?;
        let device = driver.device(0)?;
        let raw = |count| -> Result<usize> {
            let request = crate::SplitRequest::from([count, 8]).coscheduled(2);
            let split = device.resources().sm()?.split(request)?;
            assert_eq!(split.groups[0].sm_count(), count);
            Ok(device.remembered_cuts())
        };
        let most = (8..120).step_by(2).map(raw).collect::<Result<Vec<_>>>()?.into_iter().max();
        assert_eq!(most, Some(MOST_CUTS));
        raw(8)?;
        Ok(())
    }
}

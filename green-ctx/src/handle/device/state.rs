//! What the process keeps of a device: its ledger, and what it remembers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use green_ctx_sys::{Api, CUdevResourceType, CUdevSmResource};
use parking_lot::{Mutex, MutexGuard};

use super::Device;
use crate::handle::capture::RelaxedCapture;
use crate::handle::context::{self, Context};
use crate::handle::dev_resource;
use crate::handle::dev_resource::Units;
use crate::handle::driver::{Driver, InSlot, Slot};
use crate::handle::error::{Error, Result};
use crate::handle::fence::{Fence, Fences};
use crate::handle::green::{self, RawGreen};
use crate::handle::kept::KeptStreams;
use crate::handle::primary::ShareSlots;
use crate::handle::quarantine::Quarantine;
use crate::handle::report::Reporter;
use crate::ledger::{ContextCounts, Cut, Ledger};

/// How many ways of cutting a device are remembered, so that structured requests do not make them ever
/// more. Cutting again takes about 5 µs.
pub(crate) const MOST_CUTS: usize = 32;

/// The ledger of a device.
pub(crate) type DeviceLedger = Ledger<Arc<Fence>, RawGreen>;

/// What the process keeps of a device, once.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// The primary context while a handle of it lives.
    pub(crate) primary: Mutex<Weak<context::Inner>>,
    /// How events find what keeps the primary context.
    pub(crate) primary_shares: ShareSlots<Context>,
    /// Whether the device's contexts are lost, as far as somebody has seen it.
    failed: AtomicBool,
    ledger: Mutex<DeviceLedger>,
    pub(crate) quarantine: Quarantine,
    pub(crate) kept: KeptStreams,
    /// What the device was cut into, and asked for last, at the end. The pieces stay good, even when the primary context was
    /// released meanwhile (recorded on an H200).
    units: Mutex<Vec<(Cut, Arc<Units>)>>,
    /// What the driver says of the device's SMs, once asked: it takes 0.4 µs (measured on an H200), and the
    /// pieces that were made of it stay good all the same.
    sms: OnceLock<CUdevSmResource>,
}

/// The states of a driver's devices.
struct States(Vec<DeviceState>);

impl InSlot for States {
    const SLOT: Slot = Slot::Devices;

    fn make(driver: &Driver) -> States {
        States(driver.raw_devices().iter().map(|_| DeviceState::default()).collect())
    }

    fn end(&self, api: &Api, reporter: &Reporter) {
        // A program may capture without this crate.
        let relaxed = RelaxedCapture::of(api, reporter);
        for device in &self.0 {
            let idle = device.ledger.lock().recycler.drain();
            for idle in idle {
                reporter.report(green::destroy_raw(api, idle.raw.green));
            }
            let fences = device.ledger.lock().fences();
            // One fence may be in both, and each ends once.
            let fences = Fences::from(fences).with(device.quarantine.end(api));
            fences.end(api, |result| reporter.report(result));
        }
        reporter.report(relaxed.map(drop));
    }
}

impl Device {
    /// How many green contexts were made, used again, and wait to be; all 0 in a forked process.
    #[must_use]
    pub fn context_counts(&self) -> ContextCounts {
        self.ledger().map(|ledger| ledger.recycler.counts()).unwrap_or_default()
    }

    /// Sets how many idle contexts the device keeps, 64 unless set; those above the limit are
    /// destroyed, the oldest first. Destroying one gives back no device memory (measured on an H200,
    /// driver 580.159.04). Contexts of streams that are [kept](crate::Stream::keep_alive) stay, and are not
    /// counted.
    pub fn set_idle_limit(&self, limit: usize) {
        let Ok(mut ledger) = self.ledger() else { return };
        let surplus = ledger.recycler.set_limit(limit);
        drop(ledger);
        green::destroy(&self.driver, surplus);
    }

    /// Destroys all idle contexts, and returns how many they were; those of streams that are
    /// [kept](crate::Stream::keep_alive) stay. What is kept to find out whether
    /// work of dropped partitions is done goes too, where it is done. Before that it tries again to
    /// record the work of contexts for which this has failed.
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
        green::destroy(&self.driver, idle);
        self.settle_fences();
        count
    }

    /// Tries again to record the work that SMs in quarantine wait for.
    #[inline]
    pub(crate) fn retry_quarantine(&self) {
        self.state().quarantine.retry(self);
    }

    /// Lets go of fences in the ledger whose work is done.
    pub(crate) fn settle_fences(&self) {
        let Ok(mut fences) = self.ledger().map(|ledger| ledger.fences()) else { return };
        // Asked without the lock, as whoever takes the SMs meanwhile gets the fences too.
        let mut running = Fences::gather(&fences);
        running.settle(&self.driver);
        fences.retain(|fence| !running.as_slice().contains(fence));
        let done = self.ledger().map(|mut ledger| ledger.take_fences(&fences));
        drop(done);
    }

    /// The driver's description of all SMs of the device.
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

    /// The device cut in some way, most often from memory.
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
        // Two threads may both cut; whoever is first is right for both.
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

    /// Notes where an error means that the device's contexts are lost: none is used again.
    #[cold]
    pub(crate) fn note(&self, error: &Error) {
        if error.is_sticky() {
            self.state().failed.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().failed.load(Ordering::Relaxed)
    }

    /// The device's ledger, in the process that loaded the driver. In a forked one a thread that is gone may
    /// hold its lock for ever.
    pub(crate) fn ledger(&self) -> Result<MutexGuard<'_, DeviceLedger>> {
        self.driver.check_process()?;
        Ok(self.state().ledger.lock())
    }

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

//! Devices: what they are, and the start of their contexts and partitions.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use green_ctx_sys::{
    Api, CUdevResourceType, CUdevSmResource, CUdevice, CUdevice_attribute, CUuuid,
};
use parking_lot::{Mutex, MutexGuard};

use crate::context::{self, Context};
use crate::current;
use crate::dev_resource;
use crate::driver::Driver;
use crate::error::call;
use crate::error::{Error, Result, check};
use crate::event::{Event, EventOptions};
use crate::fence::{Fence, Fences};
use crate::green::{self, RawGreen};
use crate::kept::KeptStreams;
use crate::ledger::{ContextCounts, Cut, Ledger};
use crate::primary::ShareSlots;
use crate::quarantine::Quarantine;
use crate::units::Units;

/// One GPU. Cheap to clone, and equal to every other handle of the same GPU.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim_0_1::Sim};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// let device = driver.device(0)?;
/// assert_eq!(device.name()?, "NVIDIA H200");
/// assert_eq!(device.sm_count()?, 132);
/// assert_eq!(device.compute_capability()?.to_string(), "9.0");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    index: usize,
}

/// How many ways of cutting a device are remembered, so that structured requests do not make them ever
/// more. Cutting again takes about 5 µs.
pub(crate) const MOST_CUTS: usize = 32;

/// The ledger of a device.
pub(crate) type DeviceLedger = Ledger<Arc<Fence>, RawGreen>;

/// What the process keeps of a device, once.
pub(crate) struct DeviceState {
    raw: CUdevice,
    /// The primary context while a handle of it lives.
    primary: Mutex<Weak<context::Inner>>,
    /// How events find what keeps the primary context.
    primary_shares: ShareSlots,
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

impl DeviceState {
    pub(crate) fn new(api: &Api, ordinal: u32) -> Result<DeviceState> {
        let mut raw = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is to a live integer; the driver checks the ordinal.
        check("cuDeviceGet", unsafe { api.cuDeviceGet()(&raw mut raw, number) })?;
        Ok(DeviceState {
            raw,
            primary: Mutex::new(Weak::new()),
            primary_shares: ShareSlots::default(),
            failed: AtomicBool::new(false),
            ledger: Mutex::new(Ledger::default()),
            quarantine: Quarantine::default(),
            kept: KeptStreams::default(),
            units: Mutex::new(Vec::new()),
            sms: OnceLock::new(),
        })
    }

    /// The ledger of a driver that is ending. The driver has checked that the process was not forked.
    pub(crate) fn ending_ledger(&self) -> MutexGuard<'_, DeviceLedger> {
        self.ledger.lock()
    }
}

impl Device {
    pub(crate) fn new(driver: Driver, index: usize) -> Device {
        Device { driver, index }
    }

    /// The driver that the device belongs to.
    #[must_use]
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The device's number in [`Driver::device`].
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        // There are as many states as devices, and the driver counts those in an int.
        u32::try_from(self.index).unwrap_or(u32::MAX)
    }

    /// The driver's handle.
    #[must_use]
    #[doc(alias = "CUdevice")]
    pub fn as_raw(&self) -> CUdevice {
        self.state().raw
    }

    /// The product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the driver writes at most the given length, the terminator included.
        unsafe {
            call!(self.functions()?, cuDeviceGetName(name.as_mut_ptr(), 256, self.as_raw()))
        }?;
        // SAFETY: the buffer was zeroed and the driver terminates what it writes.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    /// The device's UUID, the same in every process and after every boot.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDeviceGetUuid")]
    pub fn uuid(&self) -> Result<Uuid> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is to a live structure of 16 bytes.
        unsafe { call!(self.functions()?, cuDeviceGetUuid(&raw mut uuid, self.as_raw())) }?;
        Ok(Uuid(uuid.bytes.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// The compute capability, 9.0 on Hopper.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn compute_capability(&self) -> Result<ComputeCapability> {
        use CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(ComputeCapability { major, minor })
    }

    /// The number of SMs.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn sm_count(&self) -> Result<u32> {
        let count = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// A device attribute, in the unit that the driver's documentation gives for it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], for an attribute that the driver does not know too.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the attribute.
        unsafe {
            call!(self.functions()?, cuDeviceGetAttribute(&raw mut value, attribute, self.as_raw()))
        }?;
        Ok(value)
    }

    /// The device's memory in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a live integer.
        unsafe { call!(self.functions()?, cuDeviceTotalMem(&raw mut bytes, self.as_raw())) }?;
        Ok(bytes)
    }

    /// The device's free memory in bytes, as far as the driver sees it now. Retains the primary
    /// context for the call.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuMemGetInfo")]
    pub fn free_memory(&self) -> Result<usize> {
        let primary = self.primary_context()?;
        let _scope = current::Scope::enter(&self.driver, primary.as_raw())?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live integers.
        unsafe { call!(self.functions()?, cuMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok(free)
    }

    /// The priorities that the device tells apart, from that of the streams that run first to that of those
    /// that run last: `-5..=0` on an H200. Other priorities are clamped to them
    /// ([`StreamOptions::priority`](crate::StreamOptions::priority)). Retains the primary context for the
    /// call.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuCtxGetStreamPriorityRange")]
    pub fn stream_priorities(&self) -> Result<RangeInclusive<i32>> {
        let primary = self.primary_context()?;
        let _scope = current::Scope::enter(&self.driver, primary.as_raw())?;
        let (mut last, mut first) = (0, 0);
        // SAFETY: both pointers are to live integers; a context is current.
        unsafe {
            call!(self.functions()?, cuCtxGetStreamPriorityRange(&raw mut last, &raw mut first))
        }?;
        Ok(first..=last)
    }

    /// The primary context, which all of the device's work shares. It is retained while a handle of
    /// it lives; the first retain initialises the device, which takes long (87 ms on an H200).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn primary_context(&self) -> Result<Context> {
        self.driver.check_process()?;
        if let Some(inner) = self.state().primary.lock().upgrade() {
            return Ok(Context::from_inner(inner));
        }
        let fresh = Context::retain_primary(self)?;
        let mut slot = self.state().primary.lock();
        if let Some(inner) = slot.upgrade() {
            // Another thread was first. Dropping ours releases what it retained.
            drop(slot);
            return Ok(Context::from_inner(inner));
        }
        *slot = fresh.downgrade();
        Ok(fresh)
    }

    /// Forgets the primary context, which is about to be closed; false if others have handles to it.
    pub(crate) fn forget_primary(&self, primary: &Arc<context::Inner>) -> bool {
        let mut slot = self.state().primary.lock();
        // Under the lock, where nobody gets a handle of it from here.
        if Arc::strong_count(primary) > 1 {
            return false;
        }
        let former = mem::take(&mut *slot);
        drop(slot);
        drop(former);
        true
    }

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

    /// Creates an event, usable on every stream of this device.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    #[doc(alias = "cuEventCreate")]
    pub fn create_event(&self, options: EventOptions) -> Result<Event> {
        Event::create(self, options)
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

    pub(crate) fn primary_shares(&self) -> &ShareSlots {
        &self.state().primary_shares
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

    /// The driver's functions, in the process that loaded it.
    #[inline]
    pub(crate) fn functions(&self) -> Result<&Api> {
        self.driver.functions()
    }

    /// The device's ledger, in the process that loaded the driver. In a forked one a thread that is gone may
    /// hold its lock for ever.
    pub(crate) fn ledger(&self) -> Result<MutexGuard<'_, DeviceLedger>> {
        self.driver.check_process()?;
        Ok(self.state().ledger.lock())
    }

    pub(crate) fn state(&self) -> &DeviceState {
        self.driver.state(self.index)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.index == other.index && self.driver == other.driver
    }
}

impl Eq for Device {}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.index).finish_non_exhaustive()
    }
}

/// What a device's processors can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// 9 of 9.0.
    pub major: i32,
    /// 0 of 9.0.
    pub minor: i32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A device's UUID; prints as `nvidia-smi` does.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

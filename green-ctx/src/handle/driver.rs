//! The driver: where everything starts.

use std::any::Any;
use std::ffi::c_int;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use green_ctx_sys::{Api, CUdevice, GetProcAddress, Version};
use parking_lot::Mutex;

use crate::handle::error::{Error, Result, check};
use crate::handle::fork;
pub use crate::handle::fork::Process;
use crate::handle::registry::Registry;
use crate::handle::report::Reporter;

pub use crate::handle::reclaim::ReclaimHook;
pub use crate::handle::report::CleanupHook;

/// A loaded and initialised CUDA driver. Clones share it.
///
/// Every handle of this crate keeps its driver loaded. However often the same library is loaded,
/// there is one `Driver` of it in the process, so that its devices have one ledger of SMs.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use green_ctx::{Driver, sim::Sim};
///
/// // On a machine with a GPU: `let driver = Driver::load()?;`
/// let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
/// assert_eq!(driver.version().to_string(), "13.0");
/// for device in driver.devices() {
///     println!("{}: {} SMs", device.name()?, device.sm_count()?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    api: Api,
    origin: Origin,
    devices: Vec<CUdevice>,
    slots: [OnceLock<InUse>; Slot::COUNT],
    /// Shared with functions that wait in a stream, which must not keep the driver.
    reporter: Arc<Reporter>,
    /// The process in which the driver was initialised.
    process: Process,
}

/// What files that know the driver keep of it.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    Contexts,
    Streams,
    Events,
    Graphs,
    OpenCaptures,
    Checks,
    Devices,
    ReclaimHooks,
}

impl Slot {
    const COUNT: usize = Slot::ReclaimHooks as usize + 1;
}

/// A type of which a driver keeps one value. No other type has its slot.
pub(crate) trait InSlot: Any + Send + Sync + Sized {
    const SLOT: Slot;

    /// The value for a driver.
    fn make(driver: &Driver) -> Self;

    /// Ends what the value has of the driver, which ends itself, in the process that loaded it.
    fn end(&self, _api: &Api, _reporter: &Reporter) {}
}

/// A value, and what ends it.
struct InUse {
    value: Box<dyn Any + Send + Sync>,
    end: fn(&(dyn Any + Send + Sync), &Api, &Reporter),
}

impl InUse {
    fn new<T: InSlot>(driver: &Driver) -> InUse {
        let end = |value: &(dyn Any + Send + Sync), api: &Api, reporter: &Reporter| {
            InUse::as_type::<T>(value).end(api, reporter);
        };
        InUse { value: Box::new(T::make(driver)), end }
    }

    #[inline]
    fn as_type<T: InSlot>(value: &(dyn Any + Send + Sync)) -> &T {
        value.downcast_ref().expect("a slot is one type's")
    }
}

/// Where a driver's functions come from. A simulated driver lives as long as its handles.
enum Origin {
    Library,
    #[cfg(feature = "sim")]
    Simulated(green_ctx_sim::Sim),
}

/// A driver that may have ended.
pub(crate) struct WeakDriver(Weak<Inner>);

impl WeakDriver {
    pub(crate) fn upgrade(&self) -> Option<Driver> {
        self.0.upgrade().map(|inner| Driver { inner })
    }
}

/// The living drivers, so that one library never gets two ledgers.
static DRIVERS: Mutex<Vec<(GetProcAddress, Weak<Inner>)>> = Mutex::new(Vec::new());

impl Driver {
    /// Loads the installed NVIDIA driver. The first success is kept for the process.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] when there is no driver or it is older than 12.4, and [`Error::Driver`] when
    /// it does not initialise, as on a machine without a GPU; [`Error::Forked`] if this process was forked
    /// after a driver had been loaded, or while one was.
    pub fn load() -> Result<Driver> {
        static LOADED: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = LOADED.get() {
            driver.check_process()?;
            return Ok(driver.clone());
        }
        let driver = fork::load(|| Driver::start(Api::load()?, Origin::Library))?;
        Ok(LOADED.get_or_init(|| driver).clone())
    }

    /// Loads the driver library at `path`.
    ///
    /// # Errors
    ///
    /// As [`load`](Driver::load), with the path.
    ///
    /// # Safety
    ///
    /// The library must be a CUDA driver: opening it runs its code.
    #[allow(unsafe_code, reason = "opens a library")]
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Driver> {
        // SAFETY: this function's own contract.
        fork::load(|| Driver::start(unsafe { Api::load_from(path) }?, Origin::Library))
    }

    /// Uses a simulated driver. It lives as long as the result or a handle made with it.
    ///
    /// # Errors
    ///
    /// What the simulated driver answers, injected faults included.
    #[cfg(feature = "sim")]
    pub fn simulated(sim: &green_ctx_sim::Sim) -> Result<Driver> {
        #[allow(unsafe_code, reason = "the simulator's functions are a driver's")]
        // SAFETY: the simulator implements `cuGetProcAddress_v2`, and `Origin::Simulated` keeps it
        // for as long as the table is.
        let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
        Driver::start(api, Origin::Simulated(sim.clone()))
    }

    /// Initialises a driver, or finds the one that has the same functions.
    fn start(api: Api, origin: Origin) -> Result<Driver> {
        // Held throughout, so that two threads that load at once get one driver.
        let mut drivers = DRIVERS.lock();
        // Only the driver that is looked for is touched: a handle of another, however short, could
        // become its last one.
        let same = |known: &&(GetProcAddress, _)| std::ptr::fn_addr_eq(known.0, api.entry());
        let known = drivers.iter().find(same).and_then(|(_, driver)| driver.upgrade());
        if let Some(inner) = known {
            drop(drivers);
            let driver = Driver { inner };
            driver.check_process()?;
            return Ok(driver);
        }
        drivers.retain(|(_, driver)| driver.strong_count() > 0);
        let process = Process::watched();
        initialise(&api)?;
        let devices = (0..device_count(&api)?)
            .map(|ordinal| raw_device(&api, ordinal))
            .collect::<Result<_>>()?;
        let inner = Arc::new(Inner {
            api,
            origin,
            devices,
            slots: Default::default(),
            reporter: Arc::new(Reporter::new()),
            process,
        });
        drivers.push((inner.api.entry(), Arc::downgrade(&inner)));
        Ok(Driver { inner })
    }

    /// The newest CUDA version that the driver supports.
    #[must_use]
    pub fn version(&self) -> Version {
        self.inner.api.version()
    }

    /// Whether the driver is simulated: made with `Driver::simulated`, or the simulated `libcuda.so.1`. Its
    /// devices have the names of real ones, and no work is done on them.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.info().is_simulated()
    }

    /// Which driver this is, for reports.
    #[must_use]
    pub fn info(&self) -> DriverInfo {
        let profile = match &self.inner.origin {
            Origin::Library => self.inner.api.simulated_profile().map(str::to_owned),
            #[cfg(feature = "sim")]
            Origin::Simulated(sim) => Some(sim.spec().profile().name.to_owned()),
        };
        DriverInfo { version: self.version(), profile }
    }

    /// Finds an object by its address. A forked process finds none: a thread that is gone may hold the
    /// registry's lock.
    #[inline]
    pub(crate) fn registered<T>(&self, registry: &Registry<T>, address: usize) -> Option<Arc<T>> {
        if self.is_forked() { None } else { registry.find(address) }
    }

    /// Sets what happens when a clean-up fails: a handle is dropped and the driver refuses to
    /// destroy what is behind it, or a function of
    /// [`Stream::launch_host`](crate::Stream::launch_host) panics. Without a hook
    /// such failures go to standard error. Dropping the result removes the hook, and setting another one
    /// replaces it. After a panic in a function of a stream the hook runs on the driver's thread, where it
    /// must not call CUDA.
    ///
    /// A panic does not leave the hook, since the clean-up that failed must go on: the panic and the failure
    /// go to standard error.
    ///
    /// When a device has failed ([`Error::is_sticky`]), nothing of it can be destroyed any more: the
    /// hook is called once, and not again for every handle.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let _hook = driver.on_cleanup_failure(|error| eprintln!("leaked something: {error}"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_cleanup_failure(&self, hook: impl Fn(&Error) + Send + Sync + 'static) -> CleanupHook {
        self.inner.reporter.set(Arc::new(hook))
    }

    /// Reports a failed clean-up to the hook of [`on_cleanup_failure`](Driver::on_cleanup_failure), for
    /// code that builds on this crate. `Ok` is nothing to report.
    pub fn report(&self, result: Result<()>) {
        self.inner.reporter.report(result);
    }

    pub(crate) fn reporter(&self) -> &Arc<Reporter> {
        &self.inner.reporter
    }

    /// Whether this process was forked since the driver was initialised, for code that builds on this
    /// crate. CUDA does not survive that: whatever makes handles is [`Error::Forked`], and handles that
    /// are dropped do nothing. Locks may be held by threads that are gone.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.inner.is_forked()
    }

    /// Refuses to go on in a forked process.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// The driver's functions. Each call that this crate makes passes this check first, so a forked
    /// process makes none.
    #[inline]
    pub(crate) fn functions(&self) -> Result<&Api> {
        self.check_process()?;
        Ok(&self.inner.api)
    }

    /// The driver's functions, for what this crate does not wrap. In a forked process
    /// ([`is_forked`](Driver::is_forked)) they must not be called.
    #[inline]
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.inner.api
    }

    /// The driver's value of a type, made when it is first asked for.
    #[inline]
    pub(crate) fn slot<T: InSlot>(&self) -> &T {
        let (slot, make) = (&self.inner.slots[T::SLOT as usize], || InUse::new::<T>(self));
        let in_use = match slot.get() {
            Some(in_use) => in_use,
            // A thread that is gone may have begun to fill the slot, and would be waited for without end. The
            // child finds nothing in a value of its own.
            None if self.is_forked() => Box::leak(Box::new(make())),
            None => slot.get_or_init(make),
        };
        InUse::as_type(&*in_use.value)
    }

    /// The driver's handles of its devices.
    pub(crate) fn raw_devices(&self) -> &[CUdevice] {
        &self.inner.devices
    }

    pub(crate) fn downgrade(&self) -> WeakDriver {
        WeakDriver(Arc::downgrade(&self.inner))
    }
}

impl Inner {
    #[inline]
    fn is_forked(&self) -> bool {
        self.process.is_forked()
    }
}

/// Which driver something was done with: `CUDA 13.0, driver of the machine`, or `simulated h200,
/// CUDA 13.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DriverInfo {
    /// The newest CUDA version that the driver supports.
    #[cfg_attr(feature = "serde", serde(with = "crate::handle::serialize::version"))]
    pub version: Version,
    /// The simulated device, `h200` for example; `None` for a real driver. The simulated `libcuda.so.1` has
    /// one too.
    pub profile: Option<String>,
}

impl DriverInfo {
    /// Whether the driver is simulated.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.profile.is_some()
    }
}

impl fmt::Display for DriverInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DriverInfo { version, profile } = self;
        match profile {
            Some(profile) => write!(f, "simulated {profile}, CUDA {version}"),
            None => write!(f, "CUDA {version}, driver of the machine"),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        for in_use in self.slots.iter().filter_map(OnceLock::get) {
            (in_use.end)(&*in_use.value, &self.api, &self.reporter);
        }
    }
}

impl PartialEq for Driver {
    fn eq(&self, other: &Driver) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Driver {}

impl Hash for Driver {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("info", &format_args!("{}", self.info()))
            .finish_non_exhaustive()
    }
}

#[allow(unsafe_code, reason = "calls the driver")]
fn initialise(api: &Api) -> Result<()> {
    // SAFETY: `cuInit` takes the flags 0 and may be called any number of times (cuda.h).
    check("cuInit", unsafe { api.cuInit()(0) })
}

#[allow(unsafe_code, reason = "calls the driver")]
fn raw_device(api: &Api, ordinal: u32) -> Result<CUdevice> {
    let mut raw = 0;
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: the pointer is to a live integer; the driver checks the ordinal.
    check("cuDeviceGet", unsafe { api.cuDeviceGet()(&raw mut raw, number) })?;
    Ok(raw)
}

#[allow(unsafe_code, reason = "calls the driver")]
fn device_count(api: &Api) -> Result<u32> {
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    check("cuDeviceGetCount", unsafe { api.cuDeviceGetCount()(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

//! The driver, from which every other object is created.

use std::any::{Any, TypeId};
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
#[cfg(feature = "reserve")]
use crate::ledger::Amount;

pub use crate::handle::reclaim::ReclaimHook;
pub use crate::handle::report::CleanupHook;

/// A loaded and initialised CUDA driver. Clones share the driver.
///
/// The driver stays loaded while any object of this crate uses it. Loading the same library again returns the same
/// `Driver`, so each device has one ledger of SMs per process.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use green_ctx::{Driver, sim::Sim};
///
/// // With a GPU: `let driver = Driver::load()?;`
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
    /// Shared with callbacks that are queued in a stream, since those callbacks must not keep the driver alive.
    reporter: Arc<Reporter>,
    /// The process that initialised the driver.
    process: Process,
}

/// The slots of a driver. Each slot holds the value of one type, which another module attaches to the driver.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    Contexts,
    Greens,
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

/// A type with one value per driver. No two types may use the same `SLOT`.
pub(crate) trait InSlot: Any + Send + Sync + Sized {
    const SLOT: Slot;

    /// Creates the value for a driver.
    fn make(driver: &Driver) -> Self;

    /// Releases the driver objects that the value owns. Called while the driver itself is being dropped, in the process
    /// that loaded the driver.
    fn end(&self, _api: &Api, _reporter: &Reporter) {}
}

/// A slot's value, and the function that ends it.
struct InUse {
    value: Box<dyn Any + Send + Sync>,
    /// The type of the value.
    kind: TypeId,
    end: fn(&InUse, &Api, &Reporter),
}

impl InUse {
    fn new<T: InSlot>(driver: &Driver) -> InUse {
        InUse {
            value: Box::new(T::make(driver)),
            kind: TypeId::of::<T>(),
            end: |slot, api, reporter| slot.get::<T>().end(api, reporter),
        }
    }

    #[inline]
    #[allow(unsafe_code, reason = "`downcast_ref` calls the value for its type at each use")]
    fn get<T: InSlot>(&self) -> &T {
        assert!(self.kind == TypeId::of::<T>(), "a slot has one type");
        // SAFETY: `new` stores the type of the value in `kind`, and neither changes afterwards.
        unsafe { &*(&raw const *self.value).cast::<T>() }
    }
}

/// The source of a driver's functions. A simulated driver lives until the last object that uses it is dropped.
enum Origin {
    Library,
    #[cfg(feature = "sim")]
    Simulated(green_ctx_sim::Sim),
}

/// A reference to a driver that does not keep it alive.
pub(crate) struct WeakDriver(Weak<Inner>);

impl WeakDriver {
    pub(crate) fn upgrade(&self) -> Option<Driver> {
        self.0.upgrade().map(|inner| Driver { inner })
    }
}

/// The live drivers. Loading a library that is in this list returns the existing driver and its ledgers.
static DRIVERS: Mutex<Vec<(GetProcAddress, Weak<Inner>)>> = Mutex::new(Vec::new());

impl Driver {
    /// Loads the installed NVIDIA driver. The first driver that loads successfully stays loaded for the rest of the
    /// process. With the feature `reserve`, SMs are reserved first if the environment variable `GREEN_CTX_RESERVE` has an
    /// amount, such as `32` or `25%`.
    ///
    /// # Errors
    ///
    /// - [`Error::Load`] if there is no driver, or if it is older than CUDA 12.4.
    /// - [`Error::Reserve`] if the amount in `GREEN_CTX_RESERVE` cannot be reserved, and [`Error::InvalidRequest`] if it
    ///   leaves no SMs of any device, or if there is an amount, but not the feature.
    /// - [`Error::Driver`] if the driver fails to initialise, for example on a machine without a GPU.
    /// - [`Error::Forked`] if this process was forked after a driver was loaded, or while a driver was being loaded.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use green_ctx::Driver;
    ///
    /// let driver = Driver::load()?;
    /// println!("{}, {} devices", driver.info(), driver.devices().count());
    /// # Ok(())
    /// # }
    /// ```
    pub fn load() -> Result<Driver> {
        static LOADED: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = LOADED.get() {
            driver.check_process()?;
            return Ok(driver.clone());
        }
        Driver::reserve_from_environment()?;
        let driver = fork::load(|| Driver::start(Api::load()?, Origin::Library))?;
        #[cfg(feature = "reserve")]
        {
            // A program may use only those devices for which the amount is not too large.
            let (mut refused, count) = (driver.without_a_rest(), driver.devices().count());
            if count > 0 && refused.len() == count {
                return Err(refused.remove(0));
            }
        }
        Ok(LOADED.get_or_init(|| driver).clone())
    }

    /// Reserves SMs of each device for partitions, and loads the driver. All work of the process outside of partitions,
    /// whatever library or thread submits it, runs on the other SMs, the *rest*: default streams, autograd, cuBLAS,
    /// NCCL. This work is told the rest's number of SMs. [`primary_context`](crate::Device::primary_context) is the
    /// rest's context.
    ///
    /// No library may have opened the driver before. The amount is rounded up to whole units, like a floor, and cannot
    /// be changed afterwards. In the process, `cuCtxCreate` is refused. This function needs Linux and CUDA 12.5.
    ///
    /// # Errors
    ///
    /// - [`Error::Reserve`] if there is no driver, if the driver is in use already or too old, if another amount was
    ///   reserved, if the system is not Linux, or if the library in front of the driver cannot be written or loaded.
    /// - [`Error::InvalidRequest`] for an amount of 0 or more than 100 %, and for one that leaves no SMs of a device. In
    ///   the latter case no work outside of partitions runs on that device, and the process cannot reserve again.
    /// - Otherwise the same errors as [`load`](Driver::load).
    #[cfg(feature = "reserve")]
    pub fn reserve(amount: Amount) -> Result<Driver> {
        let (number, percent) = match amount {
            Amount::Sms(sms) => (sms, false),
            Amount::Percent(percent) => (percent, true),
        };
        if number == 0 || percent && number > 100 {
            let words = "ask for 1 SM or more, or for 1% or more, and leave SMs for other work";
            return Err(Error::InvalidRequest(format!(
                "a reserve of {amount} cannot be made; {words}"
            )));
        }
        // If the variable has another amount, that one stays.
        Driver::reserve_from_environment()?;
        let amount = green_ctx_reserve::Amount { number, percent, of_rest: false };
        green_ctx_reserve::reserve(amount).map_err(Error::Reserve)?;
        let driver = Driver::load()?;
        driver.without_a_rest().pop().map_or(Ok(driver), Err)
    }

    /// Returns an error for each device that a reserve takes whole. A device without green contexts fails when it
    /// is used.
    #[cfg(feature = "reserve")]
    fn without_a_rest(&self) -> Vec<Error> {
        let refused = self.devices().filter_map(|device| device.reserved_sm_count().err());
        refused.filter(|error| matches!(error, Error::InvalidRequest(_))).collect()
    }

    /// Reserves the SMs in the environment variable `GREEN_CTX_RESERVE`, if it is set. Makes no driver call, so that
    /// processes that are forked later can use CUDA.
    ///
    /// # Errors
    ///
    /// [`Error::Reserve`] as for [`reserve`](Driver::reserve), and [`Error::InvalidRequest`] if the variable is set in a
    /// program without the feature `reserve`, which could not confine anything.
    pub fn reserve_from_environment() -> Result<()> {
        #[cfg(feature = "reserve")]
        green_ctx_reserve::from_environment().map_err(Error::Reserve)?;
        #[cfg(not(feature = "reserve"))]
        if std::env::var_os("GREEN_CTX_RESERVE").is_some_and(|amount| !amount.is_empty()) {
            let words = "GREEN_CTX_RESERVE is set, but this program was built without the feature `reserve` of green-ctx; \
                         build it with the feature, or unset the variable and start it with `green-ctx run --reserve`";
            return Err(Error::InvalidRequest(words.to_owned()));
        }
        Ok(())
    }

    /// Loads the driver library at `path`.
    ///
    /// # Errors
    ///
    /// The same errors as [`load`](Driver::load). An [`Error::Load`] names the path.
    ///
    /// # Safety
    ///
    /// The library must be a CUDA driver. Opening the library runs its initialisation code.
    #[allow(unsafe_code, reason = "opens a library")]
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Driver> {
        // SAFETY: this function's contract is that the library at `path` is a CUDA driver.
        fork::load(|| Driver::start(unsafe { Api::load_from(path) }?, Origin::Library))
    }

    /// Returns a driver that runs on the simulator `sim`. The simulator stays alive until the result and every object
    /// created from the result are dropped.
    ///
    /// # Errors
    ///
    /// Any error that the simulated driver returns during initialisation, including injected faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use green_ctx::{Driver, sim::Sim};
    ///
    /// let driver = Driver::simulated(&Sim::new("h200@13.0")?)?;
    /// assert!(driver.is_simulated());
    /// assert_eq!(driver.device(0)?.name()?, "NVIDIA H200");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sim")]
    pub fn simulated(sim: &green_ctx_sim::Sim) -> Result<Driver> {
        #[allow(unsafe_code, reason = "the simulator implements the driver's functions")]
        // SAFETY: the simulator implements `cuGetProcAddress_v2`. `Origin::Simulated` keeps the simulator
        // alive as long as the function table.
        let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
        Driver::start(api, Origin::Simulated(sim.clone()))
    }

    /// Initialises a driver, or returns the live driver that has the same functions.
    fn start(api: Api, origin: Origin) -> Result<Driver> {
        // Held until the new driver is in the list, so two threads that load the same library get one driver.
        let mut drivers = DRIVERS.lock();
        // Upgrade only the matching entry. Upgrading another driver could make this function drop its last reference.
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

    /// Returns the newest CUDA version that the driver supports.
    #[must_use]
    pub fn version(&self) -> Version {
        self.inner.api.version()
    }

    /// Returns whether the driver is simulated: created by `Driver::simulated`, or loaded from the simulated
    /// `libcuda.so.1`. A simulated device has the name of a real device, but a simulated device does not execute
    /// kernels.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.info().is_simulated()
    }

    /// Returns the version and origin of this driver, for use in reports.
    #[must_use]
    pub fn info(&self) -> DriverInfo {
        let profile = match &self.inner.origin {
            Origin::Library => self.inner.api.simulated_profile().map(str::to_owned),
            #[cfg(feature = "sim")]
            Origin::Simulated(sim) => Some(sim.spec().profile().name.to_owned()),
        };
        DriverInfo { version: self.version(), profile }
    }

    /// Returns the object that is registered under this address. In a forked process, returns `None`, because a thread
    /// that does not exist in the child may hold the registry's lock.
    #[inline]
    pub(crate) fn registered<T>(&self, registry: &Registry<T>, address: usize) -> Option<Arc<T>> {
        if self.is_forked() { None } else { registry.find(address) }
    }

    /// Sets a hook that is called when a clean-up fails. For example, the driver refuses to destroy the
    /// object behind a dropped handle or to record a partition's last work, memory has to be leaked during a capture, or a
    /// function given to [`Stream::launch_host`](crate::Stream::launch_host) panics.
    /// Without a hook, failures are written to standard error.
    ///
    /// Dropping the returned [`CleanupHook`] removes the hook. Setting another hook replaces the previous hook. If a
    /// function given to `launch_host` panics, the hook runs on the driver's own thread and must not call CUDA there.
    ///
    /// If the hook itself panics, the panic is caught so that the clean-up can finish. The failure that was passed to
    /// the hook is then written to standard error.
    ///
    /// After a device has failed ([`Error::is_sticky`]), none of its objects can be destroyed. The hook is called only
    /// for the first failure of this kind, not once per object.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// let _hook = driver.on_cleanup_failure(|error| eprintln!("leaked an object: {error}"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_cleanup_failure(&self, hook: impl Fn(&Error) + Send + Sync + 'static) -> CleanupHook {
        self.inner.reporter.set(Arc::new(hook))
    }

    /// Passes a failed clean-up to the hook of [`on_cleanup_failure`](Driver::on_cleanup_failure). Does nothing if
    /// `result` is `Ok`. This method is for crates that build on this one.
    pub fn report(&self, result: Result<()>) {
        self.inner.reporter.report(result);
    }

    pub(crate) fn reporter(&self) -> &Arc<Reporter> {
        &self.inner.reporter
    }

    /// Returns whether this process was forked after the driver was initialised. CUDA does not survive a fork: in the
    /// child, every call that creates an object returns [`Error::Forked`], and dropping an object does nothing. Crates
    /// that build on this one must not take their own locks in the child, because a thread that no longer exists may
    /// hold these locks.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.inner.is_forked()
    }

    /// Returns [`Error::Forked`] in a forked process.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Returns the driver's functions, or [`Error::Forked`] in a forked process. This crate's driver calls get their
    /// functions from this method, so a forked process makes no driver calls.
    #[inline]
    pub(crate) fn functions(&self) -> Result<&Api> {
        self.check_process()?;
        Ok(&self.inner.api)
    }

    /// Returns the driver's functions, for calls that this crate does not wrap. These functions must not be called in a
    /// forked process ([`is_forked`](Driver::is_forked)).
    #[inline]
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.inner.api
    }

    /// Returns the value of type `T` that is attached to the driver. The first call creates the value.
    #[inline]
    pub(crate) fn slot<T: InSlot>(&self) -> &T {
        let slot = &self.inner.slots[T::SLOT as usize];
        slot.get().unwrap_or_else(|| self.fill::<T>(slot)).get()
    }

    #[cold]
    fn fill<'a, T: InSlot>(&self, slot: &'a OnceLock<InUse>) -> &'a InUse {
        let make = || InUse::new::<T>(self);
        // A thread that exists only in the parent may have started to fill the slot. Waiting for it would block
        // forever, so the child gets a new, empty value.
        if self.is_forked() { Box::leak(Box::new(make())) } else { slot.get_or_init(make) }
    }

    /// Returns the driver's handles for its devices, by ordinal.
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

/// The version and origin of a driver, displayed as `CUDA 13.0, driver of the machine` or `simulated h200, CUDA 13.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DriverInfo {
    /// The newest CUDA version that the driver supports.
    #[cfg_attr(feature = "serde", serde(with = "crate::handle::serialize::version"))]
    pub version: Version,
    /// The profile of a simulated device, such as `h200`. `None` for a real driver. The simulated `libcuda.so.1` also
    /// has a profile.
    pub profile: Option<String>,
}

impl DriverInfo {
    /// Returns whether the driver is simulated.
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
            (in_use.end)(in_use, &self.api, &self.reporter);
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
    // SAFETY: 0 is the only flag value that `cuInit` accepts, and `cuInit` may be called repeatedly (cuda.h).
    check("cuInit", unsafe { api.cuInit()(0) })
}

#[allow(unsafe_code, reason = "calls the driver")]
fn raw_device(api: &Api, ordinal: u32) -> Result<CUdevice> {
    let mut raw = 0;
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: `raw` is a live local that the driver writes. The driver checks the ordinal.
    check("cuDeviceGet", unsafe { api.cuDeviceGet()(&raw mut raw, number) })?;
    Ok(raw)
}

#[allow(unsafe_code, reason = "calls the driver")]
fn device_count(api: &Api) -> Result<u32> {
    let mut count = 0;
    // SAFETY: `count` is a live local that the driver writes.
    check("cuDeviceGetCount", unsafe { api.cuDeviceGetCount()(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

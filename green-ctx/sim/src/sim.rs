//! The handle of a simulated driver, and the builder of this handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::calls::Call;
use crate::clock::Clock;
use crate::clock::real::ClockThread;
use crate::driver::Driver;
use crate::fault::Fault;
use crate::functions::{self, FUNCTIONS, Function};
use crate::kernel::KernelCall;
use crate::live::Live;
use crate::race::Race;
use crate::slot::{Lease, SLOTS};
use crate::spec::{Spec, SpecError};
use crate::trace::Launch;

/// The type of `cuGetProcAddress_v2`, the C function that returns all other functions of a driver.
pub type GetProcAddress = green_ctx_sys::GetProcAddress;

/// The default of [`Builder::patience`]. Most tests use their driver for less than a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// The default of [`Builder::trace`].
const TRACE: usize = 1 << 16;

/// A simulated CUDA driver. Clones refer to the same driver, which ends when the last clone is dropped.
///
/// A process can have up to 32 drivers at a time, and these can simulate different GPUs and versions. The
/// drivers share no state. Functions of a driver that has ended return `CUDA_ERROR_DEINITIALIZED`.
///
/// # Examples
///
/// ```
/// use green_ctx_sim::{Live, Sim};
/// use green_ctx_sys::{Api, CUresult};
///
/// let sim = Sim::new("h200@13.0")?;
/// // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
/// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
/// let mut count = 0;
/// // SAFETY: `cuInit` has no precondition.
/// assert_eq!(unsafe { api.cuInit()(0) }, CUresult::CUDA_SUCCESS);
/// // SAFETY: the pointer is to a local variable of the type that the function fills.
/// assert_eq!(unsafe { api.cuDeviceGetCount()(&mut count) }, CUresult::CUDA_SUCCESS);
/// assert_eq!(count, 1);
/// assert_eq!(sim.calls()["cuDeviceGetCount"], 1);
/// assert_eq!(sim.live(), Live::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Sim {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Arc<Driver>,
    /// Stops the clock's thread before `_lease` frees the slot; fields are dropped in order.
    _clock: ClockThread,
    /// Frees the slot, which holds a reference to the driver.
    _lease: Lease,
}

/// An error from creating a simulated driver or from a request to inject a fault or an interruption.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The process already has 32 simulated drivers, which is the maximum, and none of these drivers ended
    /// within [`Builder::patience`].
    #[error(
        "{SLOTS} simulated drivers exist, the maximum per process, and none ended in time; drop one"
    )]
    TooMany,
    /// The spec is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The operating system could not start the thread of [`Clock::Real`].
    #[error("the clock thread of the simulated driver could not be started: {reason}")]
    Thread {
        /// The reason that the operating system reports.
        reason: String,
    },
    /// The simulator has no C function of this name.
    #[error("the simulated driver has no function {name:?}; names have no version suffix")]
    UnknownFunction {
        /// The name in the request.
        name: String,
    },
}

green_ctx_sys::debug_as_text!(SimError);

/// Options of a new [`Sim`]; created by [`Sim::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    spec: Result<Spec, SpecError>,
    devices: usize,
    trace: usize,
    clock: Clock,
    patience: Duration,
}

impl Builder {
    /// Sets the number of devices. All devices have the spec's profile. The default is 1.
    pub fn devices(mut self, devices: usize) -> Builder {
        self.devices = devices;
        self
    }

    /// Sets the maximum number of launches that [`Sim::launches`] keeps. Beyond this number, the oldest launch
    /// is dropped. The default is 65,536.
    pub fn trace(mut self, launches: usize) -> Builder {
        self.trace = launches;
        self
    }

    /// Sets the clock. The default is [`Clock::Virtual`].
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::{Clock, Sim};
    ///
    /// // The program under test sleeps, so time has to pass while it makes no call.
    /// let sim = Sim::builder("h200@13.0").clock(Clock::Real).build()?;
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.clock = clock;
        self
    }

    /// Sets how long [`build`](Builder::build) waits for another driver to end if 32 drivers exist already.
    /// The default is a minute.
    pub fn patience(mut self, patience: Duration) -> Builder {
        self.patience = patience;
        self
    }

    /// Creates the driver.
    ///
    /// # Errors
    ///
    /// - [`SimError::Spec`] if the spec is invalid.
    /// - [`SimError::TooMany`] if 32 simulated drivers exist and none ends in time.
    /// - [`SimError::Thread`] if the thread of [`Clock::Real`] cannot be started.
    pub fn build(self) -> Result<Sim, SimError> {
        let spec = self.spec?;
        let lease = Lease::take(self.patience).ok_or(SimError::TooMany)?;
        let driver = Driver::new(lease.slot(), spec, self.devices, self.trace, self.clock);
        let driver = Arc::new(driver);
        let clock = ClockThread::start(&driver)
            .map_err(|error| SimError::Thread { reason: error.to_string() })?;
        lease.fill(Arc::clone(&driver));
        Ok(Sim { inner: Arc::new(Inner { driver, _clock: clock, _lease: lease }) })
    }
}

impl Sim {
    /// Creates a driver with one device, from a [`Spec`] or its text, such as `h200@13.0`.
    ///
    /// # Errors
    ///
    /// - [`SimError::Spec`] if the text is not a valid spec.
    /// - [`SimError::TooMany`] if 32 simulated drivers exist and none ends within a minute.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Sim;
    ///
    /// let sim = Sim::new("h200@12.4")?;
    /// assert_eq!(sim.spec().version(), 12_040);
    /// assert!(Sim::new("h200@9.9").is_err());
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn new(spec: impl TryInto<Spec, Error: Into<SpecError>>) -> Result<Sim, SimError> {
        Sim::builder(spec).build()
    }

    /// Returns a builder for a driver with options. [`Builder::build`] reports an invalid spec.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::{Sim, Spec};
    ///
    /// let sim = Sim::builder(Spec::default()).devices(2).trace(100).build()?;
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn builder(spec: impl TryInto<Spec, Error: Into<SpecError>>) -> Builder {
        Builder {
            spec: spec.try_into().map_err(Into::into),
            devices: 1,
            trace: TRACE,
            clock: Clock::Virtual,
            patience: PATIENCE,
        }
    }

    /// Returns the driver's `cuGetProcAddress_v2`, for example for
    /// [`Api::from_get_proc_address`](green_ctx_sys::Api::from_get_proc_address).
    #[must_use]
    pub fn get_proc_address(&self) -> GetProcAddress {
        functions::get_proc_address(self.slot())
    }

    /// Returns the slot through which the C functions find this driver.
    #[doc(hidden)]
    #[must_use]
    pub fn slot(&self) -> usize {
        self.inner.driver.slot
    }

    /// Returns the GPU and the driver version that are simulated.
    #[must_use]
    pub fn spec(&self) -> Spec {
        self.inner.driver.spec
    }

    /// Makes one later call fail. The failing call has no other effect.
    ///
    /// # Errors
    ///
    /// [`SimError::UnknownFunction`] if no simulated driver version has the function.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::{Fault, Sim};
    /// use green_ctx_sys::CUresult;
    ///
    /// let sim = Sim::new("h200@13.0")?;
    /// // The third allocation from now fails.
    /// sim.fail(Fault::on("cuMemAlloc").nth(3).with(CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
    /// assert!(sim.fail(Fault::on("cuMemAloc")).is_err());
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn fail(&self, fault: Fault) -> Result<(), SimError> {
        check_name(&fault.function)?;
        self.inner.driver.fail(fault);
        Ok(())
    }

    /// Runs a closure once, before the `nth` call of this C function from now. The next call is number 1, and
    /// an `nth` of 0 has the same meaning. The closure runs on the calling thread, before the call takes
    /// effect and without any lock of the simulated driver. A test can thus stop one thread at this call while
    /// another thread continues.
    ///
    /// If the closure panics, the call fails with `CUDA_ERROR_UNKNOWN`.
    ///
    /// # Errors
    ///
    /// [`SimError::UnknownFunction`] if no simulated driver version has the function.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Sim;
    /// use green_ctx_sys::Api;
    /// use std::sync::mpsc;
    ///
    /// let sim = Sim::new("h200@13.0")?;
    /// // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
    /// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// let (halted, halts) = mpsc::channel();
    /// sim.run_before("cuInit", 2, move || halted.send("halted").expect("the test waits"))?;
    /// // SAFETY: `cuInit` has no precondition.
    /// let init = || unsafe { api.cuInit()(0) };
    /// init();
    /// assert!(halts.try_recv().is_err());
    /// init();
    /// assert_eq!(halts.try_recv(), Ok("halted"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_before(
        &self,
        function: impl Into<String>,
        nth: u64,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), SimError> {
        let function = function.into();
        check_name(&function)?;
        self.inner.driver.interrupt(function, nth, Box::new(run));
        Ok(())
    }

    /// Removes the faults and the [`run_before`](Sim::run_before) closures that are still pending.
    pub fn clear_faults(&self) {
        self.inner.driver.clear_faults();
    }

    /// Returns the number of existing objects of each kind. If the program has released all objects, the
    /// result is [`Live::default`].
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::{Live, Sim};
    /// use green_ctx_sys::{Api, CUresult};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sim = Sim::new("h200@13.0")?;
    /// # // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
    /// # let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// # let ok = |status| assert_eq!(status, CUresult::CUDA_SUCCESS);
    /// let mut context = std::ptr::null_mut();
    /// // SAFETY: the pointer is to a local variable of the type that the function fills.
    /// unsafe {
    ///     ok(api.cuInit()(0));
    ///     ok(api.cuDevicePrimaryCtxRetain()?(&mut context, 0));
    /// }
    /// assert_eq!(sim.live().primary_retains, 1);
    /// // SAFETY: the call passes no pointers.
    /// ok(unsafe { api.cuDevicePrimaryCtxRelease()?(0) });
    /// assert_eq!(sim.live(), Live::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn live(&self) -> Live {
        self.inner.driver.peek().live()
    }

    /// Returns the kernel launches in the order of submission, up to the limit of [`Builder::trace`].
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Sim;
    /// use green_ctx_sys::{Api, CUresult};
    /// use std::ptr::null_mut;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sim = Sim::new("h200@13.0")?;
    /// # // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
    /// # let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// # let ok = |status| assert_eq!(status, CUresult::CUDA_SUCCESS);
    /// # let ptx = c".version 7.0 .target sm_52 .visible .entry work() { ret; }";
    /// # let (mut context, mut stream) = (null_mut(), null_mut());
    /// # let (mut library, mut kernel) = (null_mut(), null_mut());
    /// # // SAFETY: each pointer is to a local variable of the type that the function fills, and the text
    /// # // ends with a null byte.
    /// # unsafe {
    /// #     ok(api.cuInit()(0));
    /// #     ok(api.cuDevicePrimaryCtxRetain()?(&mut context, 0));
    /// #     ok(api.cuCtxPushCurrent()?(context));
    /// #     ok(api.cuStreamCreate()?(&mut stream, 1));
    /// #     let (text, none, no_values) = (ptx.as_ptr().cast(), null_mut(), null_mut());
    /// #     ok(api.cuLibraryLoadData()?(&mut library, text, none, no_values, 0, null_mut(), null_mut(), 0));
    /// #     ok(api.cuLibraryGetKernel()?(&mut kernel, library, c"work".as_ptr()));
    /// # }
    /// for blocks in [1, 200] {
    ///     // SAFETY: the kernel has no parameters.
    ///     ok(unsafe {
    ///         api.cuLaunchKernel()?(kernel.cast(), blocks, 1, 1, 32, 1, 1, 0, stream, null_mut(), null_mut())
    ///     });
    /// }
    /// let launches = sim.launches();
    /// assert_eq!((&*launches[0].kernel, launches[0].sms.len()), ("work", 1));
    /// assert_eq!(launches[1].sms.len(), 132);
    /// assert!(launches[0].happens_before(&launches[1]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn launches(&self) -> Vec<Launch> {
        self.inner.driver.peek().launches.iter().cloned().collect()
    }

    /// Removes the recorded launches and returns them.
    pub fn take_launches(&self) -> Vec<Launch> {
        self.inner.driver.peek().launches.drain(..).collect()
    }

    /// Returns the pairs of operations that access the same memory without an order between the two
    /// operations. At least one operation of each pair writes. No stream order, event, context wait or host
    /// wait makes one operation of a pair wait for the other. On a GPU, the results of a program with such a
    /// pair differ from run to run.
    ///
    /// The check covers copies, memsets, accesses of kernels through [`KernelCall`], and stream-ordered
    /// allocations and frees, in device memory and in page-locked host memory. A kernel without a closure
    /// accesses nothing. Accesses by the host itself are not checked.
    ///
    /// The check considers the order that the program established, and ignores virtual times. It finds a race
    /// even if the first operation happened to end long before the second operation began. If one thread of
    /// the program waits for work, this counts as a wait of every thread, because the simulator does not see
    /// how threads synchronise.
    ///
    /// Each pair is reported once, with all memory that both operations access. At most 1024 pairs are kept.
    ///
    /// # Examples
    ///
    /// One stream fills memory that another stream reads. No event orders the two streams at first; later an
    /// event does:
    ///
    /// ```
    /// use green_ctx_sim::{Accessor, Sim};
    /// use green_ctx_sys::{Api, CUresult};
    /// use std::ptr::null_mut;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sim = Sim::new("h200@13.0")?;
    /// # // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
    /// # let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// # let ok = |status| assert_eq!(status, CUresult::CUDA_SUCCESS);
    /// # let (mut context, mut event, mut buffer) = (null_mut(), null_mut(), 0);
    /// # let (mut writer, mut reader) = (null_mut(), null_mut());
    /// # // SAFETY: each pointer is to a local variable of the type that the function fills.
    /// # unsafe {
    /// #     ok(api.cuInit()(0));
    /// #     ok(api.cuDevicePrimaryCtxRetain()?(&mut context, 0));
    /// #     ok(api.cuCtxPushCurrent()?(context));
    /// #     ok(api.cuStreamCreate()?(&mut writer, 1));
    /// #     ok(api.cuStreamCreate()?(&mut reader, 1));
    /// #     ok(api.cuEventCreate()?(&mut event, 0));
    /// #     ok(api.cuMemAlloc()?(&mut buffer, 64));
    /// # }
    /// let mut bytes = [0; 64];
    /// let to = bytes.as_mut_ptr().cast();
    /// // SAFETY: the buffer and the array have 64 bytes each.
    /// unsafe {
    ///     ok(api.cuMemsetD8Async()?(buffer, 7, 64, writer));
    ///     ok(api.cuMemcpyDtoHAsync()?(to, buffer, 64, reader));
    /// }
    /// let races = sim.races();
    /// assert_eq!(races.len(), 1);
    /// assert_eq!((&races[0].first.what, &races[0].second.what), (&Accessor::Fill, &Accessor::Copy));
    /// println!("{}", races[0]);
    ///
    /// sim.clear_races();
    /// // SAFETY: as above.
    /// unsafe {
    ///     ok(api.cuMemsetD8Async()?(buffer, 8, 64, writer));
    ///     ok(api.cuEventRecord()?(event, writer));
    ///     ok(api.cuStreamWaitEvent()?(reader, event, 0));
    ///     ok(api.cuMemcpyDtoHAsync()?(to, buffer, 64, reader));
    /// }
    /// assert_eq!(sim.races(), []);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn races(&self) -> Vec<Race> {
        self.inner.driver.peek().races.list()
    }

    /// Removes the recorded races.
    pub fn clear_races(&self) {
        self.inner.driver.peek().races.clear();
    }

    /// Returns the number of calls of each C function, by its name without a version suffix. Functions that
    /// were never called are left out. Failed calls count too.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Sim;
    /// use green_ctx_sys::Api;
    ///
    /// let sim = Sim::new("h200@13.0")?;
    /// // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
    /// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// sim.clear_calls();
    /// // SAFETY: `cuInit` has no precondition.
    /// let _status = unsafe { api.cuInit()(0) };
    /// assert_eq!(sim.calls().into_iter().collect::<Vec<_>>(), [("cuInit", 1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.count(|_| true)
    }

    /// Returns the [`calls`](Sim::calls) of functions that are not simulated. Each call returned
    /// `CUDA_ERROR_NOT_SUPPORTED`. A program can call such a function if it links the simulated `libcuda.so.1`
    /// or looks up the function's name in that library; `cuGetProcAddress` does not find the function.
    #[must_use]
    pub fn unsimulated_calls(&self) -> BTreeMap<&'static str, u64> {
        self.count(|function| !function.is_simulated())
    }

    fn count(&self, wanted: impl Fn(&Function) -> bool) -> BTreeMap<&'static str, u64> {
        let mut calls = BTreeMap::new();
        for (function, count) in FUNCTIONS.iter().zip(self.inner.driver.counts()) {
            if count > 0 && wanted(function) {
                *calls.entry(function.name).or_default() += count;
            }
        }
        calls
    }

    /// Sets whether calls are added to [`call_log`](Sim::call_log). The default is `false`.
    pub fn record_calls(&self, on: bool) {
        self.inner.driver.record_calls(on);
    }

    /// Returns the calls made while [`record_calls`](Sim::record_calls) was on, in order.
    ///
    /// # Examples
    ///
    /// ```
    /// use green_ctx_sim::Sim;
    /// use green_ctx_sys::{Api, CUresult};
    ///
    /// let sim = Sim::new("h200@13.0")?;
    /// // SAFETY: the function belongs to the simulated driver, which lives as long as `sim`.
    /// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// sim.record_calls(true);
    /// // SAFETY: `cuInit` has no precondition; it refuses flags other than 0.
    /// let _status = unsafe { api.cuInit()(1) };
    /// let log = sim.call_log();
    /// assert_eq!((log[0].function, log[0].status), ("cuInit", CUresult::CUDA_ERROR_INVALID_VALUE));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn call_log(&self) -> Vec<Call> {
        self.inner.driver.call_log()
    }

    /// Sets the counts of [`calls`](Sim::calls) to zero and empties the log.
    pub fn clear_calls(&self) {
        self.inner.driver.clear_calls();
    }

    /// Defines what a kernel does in all later launches. The closure replaces any closure that was registered
    /// under this name before.
    ///
    /// A launch of a kernel without a closure is recorded but computes nothing: memory keeps its contents.
    /// The first such launch in a process writes a warning to standard error. If a test expects no results,
    /// an empty closure, `|_| {}`, avoids the warning.
    ///
    /// The closure runs within the call that launches the kernel. Writes of the closure become visible to
    /// other work when the launch ends in virtual time. The closure may call the driver. The closure must not
    /// wait for a launch of another thread, because all other launches wait until the closure returns. No
    /// other lock of the driver is held while the closure runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # let sim = green_ctx_sim::Sim::new(green_ctx_sim::Spec::default())?;
    /// sim.register_kernel("fill", |kernel| {
    ///     let (Some(to), Some(value)) = (kernel.param_u64(0), kernel.param_u32(1)) else { return };
    ///     // An address outside the program's memory fails the launch, as on a GPU.
    ///     let _ = kernel.write(to, &value.to_ne_bytes());
    /// });
    /// # Ok::<(), green_ctx_sim::SimError>(())
    /// ```
    pub fn register_kernel<F>(&self, name: impl Into<String>, kernel: F)
    where
        F: Fn(&mut KernelCall<'_>) + Send + Sync + 'static,
    {
        self.inner.driver.kernels.write().insert(name.into(), Arc::new(kernel));
    }
}

/// Returns an error if no simulated function has this name.
fn check_name(name: &str) -> Result<(), SimError> {
    if FUNCTIONS.iter().any(|function| function.is_simulated() && function.name == name) {
        Ok(())
    } else {
        Err(SimError::UnknownFunction { name: name.to_owned() })
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("spec", &self.spec()).finish_non_exhaustive()
    }
}

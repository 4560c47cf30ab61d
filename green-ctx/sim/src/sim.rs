//! The simulated driver as its user holds it.

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

/// The C function through which a driver gives out all others: `cuGetProcAddress_v2`.
pub type GetProcAddress = green_ctx_sys::GetProcAddress;

/// How long a builder waits for a place unless [`Builder::patience`] says otherwise: longer than most
/// tests need their drivers.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many launches are remembered unless [`Builder::trace`] says otherwise.
const TRACE: usize = 1 << 16;

/// A simulated CUDA driver. Clones are the same driver; it ends with the last of them.
///
/// Several live in one process, of different parts and versions, and share nothing. Functions that
/// were taken from a driver answer `CUDA_ERROR_DEINITIALIZED` when it has ended.
///
/// # Example
///
/// ```
/// use green_ctx_sim::{Live, Sim};
/// use green_ctx_sys::{Api, CUresult};
///
/// let sim = Sim::new("h200@13.0")?;
/// // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`.
/// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
/// let mut count = 0;
/// // SAFETY: `cuInit` takes the flags 0 and nothing else.
/// assert_eq!(unsafe { api.cuInit()(0) }, CUresult::CUDA_SUCCESS);
/// // SAFETY: `count` takes the answer.
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
    /// Ends before the slot is given back.
    _clock: ClockThread,
    /// Gives the slot back, and with it the slot's hold on the driver.
    _lease: Lease,
}

/// Why there is no simulated driver, or why it refused a request.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// So many simulated drivers live already that there is no place for another, and none ended in
    /// time.
    #[error(
        "{SLOTS} simulated drivers are alive, the most that fit into one process, and none ended"
    )]
    TooMany,
    /// The spec could not be read.
    #[error("the spec of a simulated driver could not be read")]
    Spec(#[from] SpecError),
    /// The thread of a clock that runs could not be started.
    #[error("the thread of the simulated driver's clock could not be started: {reason}")]
    Thread {
        /// What the system said.
        reason: String,
    },
    /// The driver has no C function of this name.
    #[error("the simulated driver has no function {name:?}")]
    UnknownFunction {
        /// The name that was given.
        name: String,
    },
}

green_ctx_sys::debug_as_text!(SimError);

/// Makes a [`Sim`]; from [`Sim::builder`].
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
    /// How many devices there are, all of the spec's profile; one by default.
    pub fn devices(mut self, devices: usize) -> Builder {
        self.devices = devices;
        self
    }

    /// How many launches [`Sim::launches`] remembers, the oldest being forgotten first; 65,536 by
    /// default.
    pub fn trace(mut self, launches: usize) -> Builder {
        self.trace = launches;
        self
    }

    /// What makes time pass; [`Clock::Virtual`] by default.
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.clock = clock;
        self
    }

    /// How long to wait for another driver to end where 32 live already; a minute by default.
    pub fn patience(mut self, patience: Duration) -> Builder {
        self.patience = patience;
        self
    }

    /// Brings the driver up.
    ///
    /// # Errors
    ///
    /// [`SimError::Spec`] for a spec that could not be read, [`SimError::TooMany`] where 32 simulated
    /// drivers live and none ends in time, and [`SimError::Thread`] where the clock's thread cannot be started.
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
    /// A driver with one device, of a [`Spec`] or of its text, such as `h200@13.0`.
    ///
    /// # Errors
    ///
    /// [`SimError::Spec`] for a text that is no spec, and [`SimError::TooMany`] where 32 simulated
    /// drivers live and none ends within a minute.
    pub fn new(spec: impl TryInto<Spec, Error: Into<SpecError>>) -> Result<Sim, SimError> {
        Sim::builder(spec).build()
    }

    /// A driver with options. [`Builder::build`] returns what is wrong with the spec.
    pub fn builder(spec: impl TryInto<Spec, Error: Into<SpecError>>) -> Builder {
        Builder {
            spec: spec.try_into().map_err(Into::into),
            devices: 1,
            trace: TRACE,
            clock: Clock::Virtual,
            patience: PATIENCE,
        }
    }

    /// The driver's `cuGetProcAddress_v2`, for example for
    /// [`Api::from_get_proc_address`](green_ctx_sys::Api::from_get_proc_address).
    #[must_use]
    pub fn get_proc_address(&self) -> GetProcAddress {
        functions::get_proc_address(self.slot())
    }

    /// Where the C functions find this driver.
    #[doc(hidden)]
    #[must_use]
    pub fn slot(&self) -> usize {
        self.inner.driver.slot
    }

    /// The part and version that this driver plays.
    #[must_use]
    pub fn spec(&self) -> Spec {
        self.inner.driver.spec
    }

    /// Makes a later call fail without effect, once.
    ///
    /// # Errors
    ///
    /// [`SimError::UnknownFunction`] where the simulator has no such function at any version.
    pub fn fail(&self, fault: Fault) -> Result<(), SimError> {
        check_name(&fault.function)?;
        self.inner.driver.fail(fault);
        Ok(())
    }

    /// Runs a function of the test before a later call, once: the `nth` call of this C function from now; 0
    /// is taken as 1. It runs on the calling thread before the call has any effect, and no lock of the simulated
    /// driver is held. So a test can halt one thread at this call while another thread works.
    ///
    /// If the function panics, the call fails with `CUDA_ERROR_UNKNOWN`.
    ///
    /// # Errors
    ///
    /// [`SimError::UnknownFunction`] if the simulator has no such function at any version.
    ///
    /// # Example
    ///
    /// ```
    /// use green_ctx_sim::Sim;
    /// use green_ctx_sys::Api;
    /// use std::sync::mpsc;
    ///
    /// let sim = Sim::new("h200@13.0")?;
    /// // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`.
    /// let api = unsafe { Api::from_get_proc_address(sim.get_proc_address()) }?;
    /// let (halted, halts) = mpsc::channel();
    /// sim.run_before("cuInit", 2, move || halted.send("halted").expect("the test waits"))?;
    /// // SAFETY: `cuInit` takes the flags 0 and nothing else.
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

    /// Forgets the faults that have not struck, and the functions of [`run_before`](Sim::run_before) that have
    /// not run.
    pub fn clear_faults(&self) {
        self.inner.driver.clear_faults();
    }

    /// What exists now: a program that has cleaned up leaves [`Live::default`].
    #[must_use]
    pub fn live(&self) -> Live {
        self.inner.driver.peek().live()
    }

    /// The kernels that were launched, in the order of the launches.
    #[must_use]
    pub fn launches(&self) -> Vec<Launch> {
        self.inner.driver.peek().launches.iter().cloned().collect()
    }

    /// Forgets the launches so far.
    pub fn clear_trace(&self) {
        self.inner.driver.peek().launches.clear();
    }

    /// Pairs of operations that touch the same memory, at least one of them writing, although nothing
    /// makes one wait for the other: no order within a stream, no event, no wait of a context or of
    /// the host. On a GPU such a program gives other results from run to run.
    ///
    /// Seen are copies, fills, what kernels do through [`KernelCall`], and allocations and releases in
    /// stream order; page-locked and managed memory are looked at as device memory is. A kernel that
    /// is not registered touches nothing, and what the host itself does to memory is not seen. The
    /// order is what the program
    /// asked for, and not what happened in virtual time: a race is seen although the first operation
    /// had long ended by chance. What one thread of the program has waited for counts as waited for
    /// by all, since the simulator does not see how threads synchronize.
    ///
    /// A pair is reported once, with all of the memory that both touch; the first 1024 pairs are
    /// kept.
    ///
    /// # Example
    ///
    /// One stream fills what another reads, first without and then with an event between them:
    ///
    /// ```
    /// use green_ctx_sim::{Accessor, Sim};
    /// use green_ctx_sys::{Api, CUresult};
    /// use std::ptr::null_mut;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sim = Sim::new("h200@13.0")?;
    /// # // SAFETY: the pointer is the simulated driver's, which lives as long as `sim`.
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
    /// // SAFETY: buffer and array have 64 bytes.
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

    /// Forgets the races so far.
    pub fn clear_races(&self) {
        self.inner.driver.peek().races.clear();
    }

    /// How often each C function was called, by its name without a version suffix; functions that
    /// were not called are left out.
    #[must_use]
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.count(|_| true)
    }

    /// Those of the [`calls`](Sim::calls) that were to functions which are not simulated. Each
    /// answered `CUDA_ERROR_NOT_SUPPORTED`. A program gets to call them where it links the simulated
    /// `libcuda.so.1` or asks that for their names; `cuGetProcAddress` finds none of them.
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

    /// Whether calls are written to [`call_log`](Sim::call_log); they are not at first.
    pub fn record_calls(&self, on: bool) {
        self.inner.driver.record_calls(on);
    }

    /// The calls made while they were recorded, in their order.
    #[must_use]
    pub fn call_log(&self) -> Vec<Call> {
        self.inner.driver.call_log()
    }

    /// Sets the counts of [`calls`](Sim::calls) to zero and empties the log.
    pub fn clear_calls(&self) {
        self.inner.driver.clear_calls();
    }

    /// Says what a kernel does, for all launches from now on, in place of what was registered under
    /// the name before. A kernel without a closure is traced and computes nothing: memory keeps what it held. The
    /// first such launch in a process writes a warning to standard error. A test that expects no results avoids
    /// it with an empty closure, `|_| {}`.
    ///
    /// The closure runs in the launching call; what it writes is seen by others when the launch has
    /// ended in virtual time. It may call the driver; no lock of the driver is
    /// held meanwhile but the one that makes launches wait for each other, so it must not wait for
    /// a launch of another thread.
    ///
    /// # Example
    ///
    /// ```
    /// # let sim = green_ctx_sim::Sim::new(green_ctx_sim::Spec::default())?;
    /// sim.register_kernel("fill", |kernel| {
    ///     let (Some(to), Some(value)) = (kernel.param_u64(0), kernel.param_u32(1)) else { return };
    ///     // An address that is not the program's fails the launch, as on a GPU.
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

/// Refuses the name of a function that the simulator lacks.
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

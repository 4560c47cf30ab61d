//! One simulated driver, and the steps that every call passes before its handler.

use std::collections::HashMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use green_ctx_sys::CUresult;
use parking_lot::{Mutex, MutexGuard, ReentrantMutex, RwLock};

use crate::calls::Call;
use crate::clock::real::{Running, Signals};
use crate::clock::{Clock, cost};
use crate::fault::{Fault, Faults, Interruption};
use crate::functions::{FUNCTIONS, Mark};
use crate::kernel::KernelFn;
use crate::pointer::Answer;
use crate::spec::Spec;
use crate::state::State;
use crate::stream;

pub(crate) struct Driver {
    pub(crate) slot: usize,
    pub(crate) spec: Spec,
    initialized: AtomicBool,
    counts: Box<[AtomicU64]>,
    /// Whether calls are written to `log`.
    logging: AtomicBool,
    log: Mutex<Vec<Call>>,
    /// Whether `faults` is not empty. While this is false, calls do not need to take the lock.
    armed: AtomicBool,
    faults: Mutex<Faults>,
    /// Whether a callback was ever added to a stream. Other calls need not look for one otherwise.
    calling_back: AtomicBool,
    /// The closures of kernels, by name.
    pub(crate) kernels: RwLock<HashMap<String, KernelFn>>,
    /// Locked during a launch. Launches thus follow each other although `state` is unlocked while a
    /// kernel's closure runs. Reentrant, because a closure may launch.
    pub(crate) launching: ReentrantMutex<()>,
    /// The signals to and from the clock's thread, with [`Clock::Real`].
    pub(crate) signals: Option<Signals>,
    state: Mutex<State>,
}

impl Driver {
    pub(crate) fn new(
        slot: usize,
        spec: Spec,
        devices: usize,
        trace: usize,
        clock: Clock,
    ) -> Driver {
        let mut state = State::new(spec, devices, trace);
        let runs = clock == Clock::Real;
        state.running = runs.then(Running::new);
        Driver {
            slot,
            spec,
            initialized: AtomicBool::new(false),
            counts: FUNCTIONS.iter().map(|_| AtomicU64::new(0)).collect(),
            logging: AtomicBool::new(false),
            log: Mutex::default(),
            armed: AtomicBool::new(false),
            faults: Mutex::default(),
            calling_back: AtomicBool::new(false),
            kernels: RwLock::new(crate::builtin::kernels()),
            launching: ReentrantMutex::new(()),
            signals: runs.then(Signals::default),
            state: Mutex::new(state),
        }
    }

    /// Locks the state without advancing time.
    pub(crate) fn peek(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Locks the state for a call: advances host time slightly and lets due effects take place.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.catch_up();
        state.now += cost::CALL;
        state.settle();
        state
    }

    /// Records that `cuInit` was called.
    pub(crate) fn initialize(&self) {
        self.initialized.store(true, Ordering::Release);
    }

    /// Runs one call: counts it, applies faults, refuses it before `cuInit`, and never unwinds into the C
    /// caller.
    pub(crate) fn enter(&self, id: usize, work: impl FnOnce(&Driver) -> Answer) -> CUresult {
        self.counts[id].fetch_add(1, Ordering::Relaxed);
        let status = self.answer(id, work);
        if self.logging.load(Ordering::Relaxed) {
            self.log.lock().push(Call { function: FUNCTIONS[id].name, status });
        }
        if let Some(signals) = &self.signals {
            self.follow_clock(signals);
        } else if self.calling_back.load(Ordering::Relaxed) {
            self.call_back();
        }
        status
    }

    /// Records that callbacks exist.
    pub(crate) fn expect_callbacks(&self) {
        self.calling_back.store(true, Ordering::Relaxed);
    }

    /// Runs the callbacks that are due, with no lock held.
    #[cold]
    fn call_back(&self) {
        loop {
            let mut state = self.peek();
            let (due, unheld) = (std::mem::take(&mut state.due), state.take_unheld());
            drop(state);
            if due.is_empty() && unheld.is_empty() {
                return;
            }
            due.into_iter().for_each(|(callback, status)| callback.run(status));
            unheld.into_iter().for_each(|destructor| destructor.run(CUresult::CUDA_SUCCESS));
        }
    }

    fn answer(&self, id: usize, work: impl FnOnce(&Driver) -> Answer) -> CUresult {
        if self.armed.load(Ordering::Acquire) {
            let mut faults = self.faults.lock();
            let (run, status) = faults.strike(FUNCTIONS[id].name);
            self.armed.store(!faults.is_empty(), Ordering::Release);
            // The closures may call the driver.
            drop(faults);
            let ran = catch_unwind(AssertUnwindSafe(|| run.into_iter().for_each(|run| run())));
            let status = if ran.is_ok() { status } else { Some(CUresult::CUDA_ERROR_UNKNOWN) };
            if let Some(status) = status {
                return status;
            }
        }
        let mark = &FUNCTIONS[id].mark;
        if !matches!(mark, Some(Mark::Early)) && !self.initialized.load(Ordering::Acquire) {
            return CUresult::CUDA_ERROR_NOT_INITIALIZED;
        }
        if matches!(mark, Some(Mark::Unsafe))
            && let Err(status) = self.peek().no_strict_capture()
        {
            return status;
        }
        // After a panic the state may be inconsistent, but not unsound: it contains only safe code.
        let answer = stream::with_null(FUNCTIONS[id].per_thread, || {
            catch_unwind(AssertUnwindSafe(|| work(self)))
        });
        match answer {
            Ok(Ok(())) => CUresult::CUDA_SUCCESS,
            Ok(Err(status)) => status,
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.faults.lock().add(fault);
        self.armed.store(true, Ordering::Release);
    }

    pub(crate) fn interrupt(&self, function: String, nth: u64, run: Interruption) {
        self.faults.lock().interrupt(function, nth, run);
        self.armed.store(true, Ordering::Release);
    }

    pub(crate) fn clear_faults(&self) {
        let forgotten = mem::take(&mut *self.faults.lock());
        self.armed.store(false, Ordering::Release);
        // Dropped without the lock: the closures may own handles, whose drop calls the driver.
        drop(forgotten);
    }

    /// Returns the number of calls of each function, in the order of [`FUNCTIONS`].
    pub(crate) fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn record_calls(&self, on: bool) {
        self.logging.store(on, Ordering::Relaxed);
    }

    pub(crate) fn call_log(&self) -> Vec<Call> {
        self.log.lock().clone()
    }

    pub(crate) fn clear_calls(&self) {
        self.log.lock().clear();
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the closure of a kernel.
    pub(crate) fn kernel(&self, name: &str) -> Option<KernelFn> {
        self.kernels.read().get(name).map(Arc::clone)
    }
}

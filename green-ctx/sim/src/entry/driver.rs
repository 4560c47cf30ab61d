//! One simulated driver, and the steps that every call goes through before its handler runs.

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
    /// True if `faults` is not empty. Calls lock `faults` only if this flag is true.
    armed: AtomicBool,
    faults: Mutex<Faults>,
    /// True if the program ever registered a callback. If this flag is false, calls do not look for due
    /// callbacks.
    calling_back: AtomicBool,
    /// The closures that compute what kernels do, by kernel name.
    pub(crate) kernels: RwLock<HashMap<String, KernelFn>>,
    /// The lock that every launch holds from start to end. Launches therefore run one after the other,
    /// although `state` is unlocked while a kernel's closure runs. The lock is reentrant, because a closure
    /// may launch kernels.
    pub(crate) launching: ReentrantMutex<()>,
    /// The signals between calls and the clock thread; `None` unless the clock is [`Clock::Real`].
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

    /// Locks the state for a call. Advances the simulated time by the cost of a call, and carries out all
    /// effects that are then due.
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

    /// Runs one call. Counts the call, applies faults, refuses the call if `cuInit` has not run yet, and
    /// never unwinds into the C caller.
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

    /// Records that the program registered a callback.
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

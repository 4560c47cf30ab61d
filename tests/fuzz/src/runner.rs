//! Seeds on all cores, with a watchdog for calls that never return.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::operation::Choice;
use crate::run::{self, Failure, Outcome, Plan};
use crate::table::Table;
use crate::threads;
use crate::violation::{Rule, Violation};

/// How seeds are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One thread, and every call may succeed.
    Plain,
    /// One thread, and calls of the driver fail.
    Faults,
    /// Eight threads.
    Threads,
    /// Of ten seeds seven plain, two with faults and one with threads.
    Mixed,
}

impl Mode {
    /// How a seed is run in this mode.
    #[must_use]
    pub fn of(self, seed: u64) -> Mode {
        match (self, seed % 10) {
            (Mode::Mixed, 0) => Mode::Threads,
            (Mode::Mixed, 1 | 2) => Mode::Faults,
            (Mode::Mixed, _) => Mode::Plain,
            (mode, _) => mode,
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How.
    pub mode: Mode,
    /// The first seed.
    pub first: u64,
    /// How many seeds at most.
    pub seeds: u64,
    /// How long at most; seeds that have begun are ended.
    pub at_most: Option<Duration>,
    /// How many operations a seed has.
    pub operations: usize,
    /// Which.
    pub choice: Choice,
    /// How many seeds at once.
    pub workers: usize,
    /// How long nothing may happen in a seed.
    pub patience: Duration,
}

/// A seed that broke a promise.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// How it was run.
    pub mode: Mode,
    /// What happened.
    pub failure: Failure,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counts of each kind of operation.
    pub table: Table,
    /// How many seeds ended clean.
    pub seeds: u64,
    /// How long it took.
    pub took: Duration,
    /// The first failure.
    pub found: Option<Found>,
}

/// One worker, as the watchdog sees it.
#[derive(Default)]
struct Worker {
    /// One more than the seed, 0 where there is none.
    seed: AtomicU64,
    progress: AtomicU64,
}

struct State {
    options: Options,
    next: AtomicU64,
    stop: AtomicBool,
    report: Mutex<Report>,
    start: Instant,
}

/// Every so many seeds are run twice, and must do the same.
const TWICE: u64 = 64;

/// Runs seeds until one fails, all are done or the time is over. `on_progress` is called now and
/// then with the number of seeds and operations so far.
#[must_use]
pub fn explore(options: &Options, mut on_progress: impl FnMut(u64, u64)) -> Report {
    let state = Arc::new(State {
        options: options.clone(),
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        report: Mutex::default(),
        start: Instant::now(),
    });
    let workers: Vec<Arc<Worker>> = (0..options.workers.max(1)).map(|_| Arc::default()).collect();
    // Not scoped: a thread that hangs is left behind.
    let threads: Vec<_> = workers
        .iter()
        .map(|worker| {
            let (state, worker) = (Arc::clone(&state), Arc::clone(worker));
            thread::spawn(move || state.work(&worker))
        })
        .collect();
    let mut seen = vec![(0, 0, Instant::now()); workers.len()];
    let mut reported = Instant::now();
    while !threads.iter().all(thread::JoinHandle::is_finished) {
        thread::sleep(Duration::from_millis(20));
        if reported.elapsed() > Duration::from_secs(5) {
            reported = Instant::now();
            let report = state.report.lock();
            on_progress(report.seeds, report.table.tried());
        }
        for (worker, (seed, progress, since)) in workers.iter().zip(&mut seen) {
            let now =
                (worker.seed.load(Ordering::Relaxed), worker.progress.load(Ordering::Relaxed));
            if now != (*seed, *progress) || now.0 == 0 {
                (*seed, *progress, *since) = (now.0, now.1, Instant::now());
            } else if since.elapsed() > options.patience {
                state.hangs(*seed - 1, *progress);
                return state.ended();
            }
        }
    }
    state.ended()
}

impl State {
    fn ended(&self) -> Report {
        let mut report = self.report.lock().clone();
        report.took = self.start.elapsed();
        report
    }

    fn hangs(&self, seed: u64, progress: u64) {
        self.stop.store(true, Ordering::Relaxed);
        let mode = self.options.mode.of(seed);
        let plan = plan(&self.options, seed);
        let at = plan.operations.get(progress as usize);
        let operation = match (mode, at) {
            (Mode::Threads, _) | (_, None) => "an operation".to_owned(),
            (_, Some(operation)) => format!("operation {progress} ({})", operation.kind),
        };
        let seen = format!("{operation} has not returned for {:?}", self.options.patience);
        let violation = Violation::new(Rule::Hang, seen);
        let failure = Failure { operations: progress as usize, violation, ..Failure::default() };
        self.report.lock().found.get_or_insert(Found { seed, mode, failure });
    }

    fn work(&self, worker: &Worker) {
        let Options { first, seeds, at_most, .. } = self.options;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let late = at_most.is_some_and(|at_most| self.start.elapsed() >= at_most);
            if number >= seeds || late || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let seed = first + number;
            worker.progress.store(0, Ordering::Relaxed);
            worker.seed.store(seed + 1, Ordering::Relaxed);
            let result = one(&self.options, seed, &worker.progress);
            worker.seed.store(0, Ordering::Relaxed);
            let mut report = self.report.lock();
            match result {
                Ok(outcome) => {
                    report.seeds += 1;
                    report.table.add(&outcome.table);
                }
                Err(failure) => {
                    self.stop.store(true, Ordering::Relaxed);
                    let mode = self.options.mode.of(seed);
                    report.found.get_or_insert(Found { seed, mode, failure: *failure });
                }
            }
        }
        worker.seed.store(0, Ordering::Relaxed);
    }
}

/// The operations of a seed that runs on one thread.
#[must_use]
pub fn plan(options: &Options, seed: u64) -> Plan {
    let faults = options.mode.of(seed) == Mode::Faults;
    let choice = Choice { faults, ..options.choice.clone() };
    Plan::of(seed, options.operations, &choice)
}

/// Runs one seed.
///
/// # Errors
///
/// The promise that was broken.
pub fn one(options: &Options, seed: u64, progress: &AtomicU64) -> Result<Outcome, Box<Failure>> {
    let work = || {
        if options.mode.of(seed) == Mode::Threads {
            let count = options.operations / threads::THREADS;
            return threads::run(seed, count.max(1), &options.choice, progress);
        }
        let plan = plan(options, seed);
        let outcome = run::run(&plan, false, progress)?;
        if seed.is_multiple_of(TWICE) && !plan.faults {
            let again = run::run(&plan, false, progress)?;
            if again.hash != outcome.hash {
                let seen = "the same operations had other results the second time".to_owned();
                let violation = Violation::new(Rule::Same, seen);
                let operations = plan.operations.len();
                return Err(Box::new(Failure { operations, violation, ..Failure::default() }));
            }
        }
        Ok(outcome)
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let violation = Violation::new(Rule::Panic, text);
        Err(Box::new(Failure { operations: options.operations, violation, ..Failure::default() }))
    })
}

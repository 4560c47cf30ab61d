//! Runs seeds on all cores, with a watchdog for calls that never return.

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
    /// One thread, and no call is made to fail.
    Plain,
    /// One thread, and driver calls fail.
    Faults,
    /// Eight threads.
    Threads,
    /// Seven of ten seeds plain, two with faults and one with threads.
    Mixed,
}

impl Mode {
    /// Returns the mode of one seed.
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

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mode.
    pub mode: Mode,
    /// The first seed.
    pub first: u64,
    /// The maximum number of seeds.
    pub seeds: u64,
    /// The time after which no more seeds start.
    pub at_most: Option<Duration>,
    /// The number of operations per seed.
    pub operations: usize,
    /// The kinds of operations.
    pub choice: Choice,
    /// The number of seeds to run at the same time.
    pub workers: usize,
    /// The time without progress after which a seed counts as hanging.
    pub patience: Duration,
}

/// A seed that broke the promise.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// Its mode.
    pub mode: Mode,
    /// The failure.
    pub failure: Failure,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counts of operations per kind.
    pub table: Table,
    /// The number of clean seeds.
    pub seeds: u64,
    /// The duration.
    pub took: Duration,
    /// The first failure.
    pub found: Option<Found>,
}

/// The state of a worker that the watchdog reads.
#[derive(Default)]
struct Worker {
    /// The current seed plus 1, or 0 if the worker is idle.
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

/// Every seed that is a multiple of this is run twice, and must give the same results.
const TWICE: u64 = 64;

/// Runs seeds until one fails, all are done, or the time is over. Calls `on_progress` every few seconds with
/// the number of seeds and operations so far.
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
    // Not scoped threads: a hanging thread is left behind.
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
        let seen = format!("{operation} has not returned within {:?}", self.options.patience);
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

/// Returns the plan of a seed that runs on one thread.
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
/// Returns a [`Failure`] if the promise was broken.
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
                let seen = "the same operations gave other results in a second run".to_owned();
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

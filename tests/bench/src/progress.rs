//! Progress reports on standard error.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The interval at which a long step reports its progress.
const INTERVAL: Duration = Duration::from_secs(2);

/// The progress of a run.
pub(crate) struct Progress {
    start: Instant,
    reported: Cell<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let now = Instant::now();
        Progress { start: now, reported: Cell::new(now) }
    }

    /// Reports the beginning of a step.
    pub(crate) fn step(&self, what: &str) {
        self.reported.set(Instant::now());
        eprintln!("{:6.1} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Reports the progress of a step if the last report is a while ago.
    pub(crate) fn at(&self, done: usize, all: usize) {
        if self.reported.get().elapsed() >= INTERVAL {
            self.step(&format!("  {done} of {all}"));
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

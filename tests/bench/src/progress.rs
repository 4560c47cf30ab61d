//! Reports how far a run is, on standard error.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often a long step reports how far it is.
const INTERVAL: Duration = Duration::from_secs(2);

/// How far a run is.
pub(crate) struct Progress {
    start: Instant,
    reported: Cell<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let now = Instant::now();
        Progress { start: now, reported: Cell::new(now) }
    }

    /// Begins a step.
    pub(crate) fn step(&self, what: &str) {
        self.reported.set(Instant::now());
        eprintln!("{:6.1} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Reports how far a step is, where it has taken a while.
    pub(crate) fn at(&self, done: usize, all: usize) {
        if self.reported.get().elapsed() >= INTERVAL {
            self.step(&format!("  {done} of {all}"));
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

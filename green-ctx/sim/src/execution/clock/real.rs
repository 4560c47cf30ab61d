//! The clock that runs: a thread carries out what is due while the program makes no call.
//!
//! The state's time goes on by what passes on the host's clock, beside what calls and waits add to it.
//! Functions of the program run on this thread alone, one after the other, as on a driver's own thread:
//! one that waits for the program holds up no call. Whoever has waited for work returns when the
//! functions that came before have run, as on a GPU.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use green_ctx_sys::CUresult;
use parking_lot::{Condvar, MutexGuard};

use crate::driver::Driver;
use crate::state::{self, State};

/// What a driver's calls and the thread of its clock share.
#[derive(Default)]
pub(crate) struct Signals {
    /// Wakes the thread: something may be due earlier than it knows.
    wake: Condvar,
    /// Wakes those that wait for functions of the program.
    called: Condvar,
}

/// What the state knows of a clock that runs.
pub(crate) struct Running {
    /// When the state's time last went on.
    last: Instant,
    /// The number of the thread, 0 before it has begun.
    thread: u32,
    /// How many functions of the program have run.
    called: u64,
    ended: bool,
}

impl Running {
    pub(crate) fn new() -> Running {
        Running { last: Instant::now(), thread: 0, called: 0, ended: false }
    }
}

impl State {
    /// Lets time go on to the host's.
    pub(crate) fn catch_up(&mut self) {
        if let Some(running) = &mut self.running {
            let now = Instant::now();
            self.now += now.duration_since(running.last).as_nanos() as u64;
            running.last = now;
        }
    }

    /// How many functions have had their turn, and how many of them have run.
    fn functions(&self) -> (u64, u64) {
        (self.came_due, self.running.as_ref().map_or(0, |running| running.called))
    }

    fn has_ended(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.ended)
    }
}

impl Driver {
    /// What every call ends with while the clock runs: the thread learns what has become due, and who
    /// waited on the host waits for the functions of the program, too.
    #[cold]
    pub(crate) fn follow_clock(&self, signals: &Signals) {
        signals.wake.notify_one();
        let mut state = self.peek();
        let waited = std::mem::take(&mut state.thread().waited);
        let on_thread = state.running.as_ref().is_none_or(|it| it.thread == state::thread());
        let (due, _) = state.functions();
        while waited && !on_thread && state.functions().1 < due && !state.has_ended() {
            signals.called.wait(&mut state);
        }
    }

    /// Carries out what is due, until the driver ends.
    fn run_clock(&self, signals: &Signals) {
        let mut state = self.peek();
        if let Some(running) = &mut state.running {
            running.thread = state::thread();
        }
        while !state.has_ended() {
            state.catch_up();
            state.settle();
            let (due, unheld) = (std::mem::take(&mut state.due), state.take_unheld());
            if due.is_empty() && unheld.is_empty() {
                match state.effects.next.checked_sub(state.now) {
                    Some(left) if state.effects.next < u64::MAX => {
                        signals.wake.wait_for(&mut state, Duration::from_nanos(left));
                    }
                    _ => signals.wake.wait(&mut state),
                }
                continue;
            }
            for (callback, status) in due {
                MutexGuard::unlocked(&mut state, || callback.run(status));
                if let Some(running) = &mut state.running {
                    running.called += 1;
                }
                signals.called.notify_all();
            }
            MutexGuard::unlocked(&mut state, || {
                unheld.into_iter().for_each(|destructor| destructor.run(CUresult::CUDA_SUCCESS));
            });
        }
    }
}

/// The thread of a driver's clock, which ends when this is dropped.
pub(crate) struct ClockThread {
    driver: Arc<Driver>,
    thread: Option<JoinHandle<()>>,
}

impl ClockThread {
    /// Lets the clock of a driver run, where it is one that does.
    pub(crate) fn start(driver: &Arc<Driver>) -> std::io::Result<ClockThread> {
        let mut thread = None;
        if driver.signals.is_some() {
            let driver = Arc::clone(driver);
            let run = move || {
                if let Some(signals) = &driver.signals {
                    driver.run_clock(signals);
                }
            };
            thread = Some(thread::Builder::new().name("green-ctx-sim".to_owned()).spawn(run)?);
        }
        Ok(ClockThread { driver: Arc::clone(driver), thread })
    }
}

impl Drop for ClockThread {
    fn drop(&mut self) {
        let (Some(thread), Some(signals)) = (self.thread.take(), &self.driver.signals) else {
            return;
        };
        if let Some(running) = &mut self.driver.peek().running {
            running.ended = true;
        }
        signals.wake.notify_one();
        signals.called.notify_all();
        // A function of the program may drop the driver; its own thread cannot be waited for.
        if thread.thread().id() != thread::current().id() {
            // The thread does not panic: functions that do end the process.
            let _ = thread.join();
        }
    }
}

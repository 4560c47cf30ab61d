//! The clock of [`Clock::Real`](crate::Clock::Real): a thread carries out due effects while the program
//! makes no call.
//!
//! The simulated time advances with the host's clock, and also by the cost of calls and waits. Functions
//! of the program run only on the clock thread, one after the other, as on a thread of the real driver. A
//! function that waits for another thread of the program therefore does not block the calls of that thread.
//! A call that waits for work returns after the functions that precede the work have run, as on a GPU.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use green_ctx_sys::CUresult;
use parking_lot::{Condvar, MutexGuard};

use crate::driver::Driver;
use crate::state::{self, State};

/// The signals between a driver's calls and its clock thread.
#[derive(Default)]
pub(crate) struct Signals {
    /// Wakes the clock thread, because an effect may be due earlier than the thread expects.
    wake: Condvar,
    /// Wakes calls that wait for functions of the program.
    called: Condvar,
}

/// The state of a running clock.
pub(crate) struct Running {
    /// The host time at the last update of the simulated time.
    last: Instant,
    /// The number of the clock thread; 0 before it has started.
    thread: u32,
    /// The number of functions of the program that have run.
    called: u64,
    ended: bool,
}

impl Running {
    pub(crate) fn new() -> Running {
        Running { last: Instant::now(), thread: 0, called: 0, ended: false }
    }
}

impl State {
    /// Advances time by the host time that has passed.
    pub(crate) fn catch_up(&mut self) {
        if let Some(running) = &mut self.running {
            let now = Instant::now();
            self.now += now.duration_since(running.last).as_nanos() as u64;
            running.last = now;
        }
    }

    /// Returns the number of functions that have become due, and the number of functions that have run.
    fn functions(&self) -> (u64, u64) {
        (self.came_due, self.running.as_ref().map_or(0, |running| running.called))
    }

    fn has_ended(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.ended)
    }
}

impl Driver {
    /// Runs at the end of every call with a real clock. Wakes the clock thread. If the call waited for
    /// work, waits until the functions that were due have run.
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

    /// Carries out due effects until the driver ends.
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

/// The clock thread of a driver. Dropping it ends the thread.
pub(crate) struct ClockThread {
    driver: Arc<Driver>,
    thread: Option<JoinHandle<()>>,
}

impl ClockThread {
    /// Starts the clock thread if the driver has a running clock.
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
        // A function of the program may drop the driver on the clock thread, which cannot join itself.
        if thread.thread().id() != thread::current().id() {
            // The join cannot fail: a panic in a function of the program ends the process.
            let _ = thread.join();
        }
    }
}

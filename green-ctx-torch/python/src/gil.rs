//! The rule for the GIL and our locks, and what keeps to it.
//!
//! **Whatever can block runs without the GIL, and no lock of ours is waited for with it.** Two threads
//! wait for each other for ever where one holds a lock and wants the GIL, and the other holds the GIL
//! and wants the lock. PyTorch meets this with its `cudaMutex`: freeing a tensor can take it deep
//! within, with the GIL held, so whoever else takes it tries, and lets the GIL go between two tries
//! (`THCPModule_cudaLockMutex` in torch/csrc/cuda/Module.cpp). The ledger, the registries and the
//! driver's own locks are such locks too: a thread that makes a context holds them for a millisecond,
//! and a function that the driver calls meanwhile may be Python's.
//!
//! So, in this crate:
//! - a call of `green_ctx` that is more than reading a field goes through [`blocking`];
//! - what ends in the driver when it is dropped is in a [`Held`], since Python drops with the GIL held;
//! - no lock of ours is held while Python runs, which may let another thread go on anywhere: what is
//!   shared here is in an `ArcSwap`, which has no lock, or in Python's own objects;
//! - Python code is called through [`crate::code`], since the interpreter can end a thread within it;
//! - raw handles are read once, without the GIL, since reading enters them in a registry.

use std::ops::Deref;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::fault::Fault;

/// Runs without the GIL what can block.
pub(crate) fn blocking<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Fault> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(PyErr::from)
}

/// Runs on a thread of its own, without the GIL, what can wait long: an interrupt is raised at once, and what
/// runs ends by itself.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> PyResult<T> {
    blocking(py, move || {
        let (done, result) = mpsc::channel();
        let run = move || {
            // Nobody waits any more after an interrupt.
            let _unheard = done.send(call());
        };
        let started = thread::Builder::new().name("green-ctx".to_owned()).spawn(run);
        started.map_err(|error| Fault::state(format!("no thread could be started: {error}")))?;
        let mut signals = Signals::default();
        loop {
            match result.recv_timeout(Signals::PERIOD) {
                Ok(result) => return result,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Fault::state("the thread that was to do this panicked"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) if signals.is_quiet() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(signals.into()),
            }
        }
    })
}

/// Asks Python whether there was a signal, an interrupt say, while something waits without the GIL.
#[derive(Default)]
pub(crate) struct Signals {
    asked: Option<Instant>,
    raised: Option<PyErr>,
}

impl Signals {
    /// How often Python is asked.
    const PERIOD: Duration = Duration::from_millis(20);

    /// Whether no signal has raised an exception so far.
    pub(crate) fn is_quiet(&mut self) -> bool {
        if self.asked.is_some_and(|asked| asked.elapsed() < Signals::PERIOD) {
            return self.raised.is_none();
        }
        self.asked = Some(Instant::now());
        if self.raised.is_none() {
            self.raised = Python::attach(|py| py.check_signals()).err();
        }
        self.raised.is_none()
    }

    /// Whether a signal has raised an exception.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.is_some()
    }
}

impl From<Signals> for Fault {
    fn from(signals: Signals) -> Fault {
        signals.raised.map_or_else(|| Fault::state("interrupted"), Fault::Python)
    }
}

/// Something of `green_ctx` in a Python object: it ends without the GIL.
pub(crate) struct Held<T: Send>(Option<T>);

impl<T: Send> Held<T> {
    pub(crate) fn new(value: T) -> Held<T> {
        Held(Some(value))
    }

    /// The value, to be dropped without the GIL.
    pub(crate) fn into_inner(mut self) -> T {
        match self.0.take() {
            Some(value) => value,
            None => unreachable!("only what ends it takes it"),
        }
    }
}

impl<T: Send> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => unreachable!("only what ends it takes it"),
        }
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let value = &mut self.0;
        if value.is_none() {
            return;
        }
        // Where the interpreter is ending there is no GIL to let go, and it is dropped as it is.
        let _ended = Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

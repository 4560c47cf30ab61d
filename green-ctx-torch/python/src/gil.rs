//! The rules for the GIL and this crate's locks, and the functions and types that follow these rules.
//!
//! **Code that can block runs without the GIL, and no thread waits for a lock of this crate while the thread holds
//! the GIL.** Otherwise two threads can deadlock: one holds a lock and waits for the GIL, and the other holds the GIL
//! and waits for the lock. PyTorch has the same problem with its `cudaMutex`, because freeing a tensor can lock this
//! mutex deep inside a call, with the GIL held. Therefore other PyTorch code does not block on the mutex: it tries to
//! lock the mutex, and releases the GIL between two attempts (`THCPModule_cudaLockMutex` in
//! torch/csrc/cuda/Module.cpp). The ledger, the registries of handles and the driver have locks with the same
//! problem. A thread that creates a context holds these locks for about a millisecond. During that time, the driver
//! may call a Python function.
//!
//! Therefore, in this crate:
//! - A call of `green_ctx` that does more than read a field goes through [`blocking`].
//! - A value whose destructor calls the driver is wrapped in a [`Held`], because Python drops objects with the GIL
//!   held.
//! - No lock of this crate is held while Python code runs, because Python code can let other threads run at any
//!   point. Shared state is stored in an `ArcSwap`, which has no lock, or in Python objects.
//! - Python code is called through [`crate::code`], because the interpreter can end a thread inside Python code.
//! - A raw handle is read once, without the GIL, because the reading function adds the handle to a locked registry.

use std::ops::Deref;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::fault::Fault;

/// Runs a call that can block, without the GIL.
pub(crate) fn blocking<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Fault> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(PyErr::from)
}

/// Runs a call that can take a long time, on its own thread and without the GIL. An interrupt raises its exception
/// immediately, and the call finishes in the background.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> PyResult<T> {
    blocking(py, move || {
        let (done, result) = mpsc::channel();
        let run = move || {
            // After an interrupt the receiver is gone.
            let _unheard = done.send(call());
        };
        let started = thread::Builder::new().name("green-ctx".to_owned()).spawn(run);
        started.map_err(|error| Fault::state(format!("no thread could be started: {error}")))?;
        let mut signals = Signals::default();
        loop {
            match result.recv_timeout(Signals::PERIOD) {
                Ok(result) => return result,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Fault::state("the thread that ran this call panicked"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) if signals.is_quiet() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(signals.into()),
            }
        }
    })
}

/// Checks for Python signals, such as an interrupt, while a call waits without the GIL.
#[derive(Default)]
pub(crate) struct Signals {
    asked: Option<Instant>,
    raised: Option<PyErr>,
}

impl Signals {
    /// The time between two checks.
    const PERIOD: Duration = Duration::from_millis(20);

    /// Checks for signals, at most once per `PERIOD`. Returns whether no signal handler has raised an exception so
    /// far.
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

    /// Returns whether a signal handler has raised an exception.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.is_some()
    }

    /// Returns the exception that a signal handler has raised.
    pub(crate) fn into_raised(self) -> Option<PyErr> {
        self.raised
    }
}

impl From<Signals> for Fault {
    fn from(signals: Signals) -> Fault {
        signals.raised.map_or_else(|| Fault::state("interrupted"), Fault::Python)
    }
}

/// A `green_ctx` value in a Python object. `Held` drops the value without the GIL.
pub(crate) struct Held<T: Send>(Option<T>);

impl<T: Send> Held<T> {
    pub(crate) fn new(value: T) -> Held<T> {
        Held(Some(value))
    }

    /// Returns the value. The caller must drop the value without the GIL.
    pub(crate) fn into_inner(mut self) -> T {
        match self.0.take() {
            Some(value) => value,
            None => unreachable!("only `into_inner` and `drop` take the value"),
        }
    }
}

impl<T: Send> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => unreachable!("only `into_inner` and `drop` take the value"),
        }
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let value = &mut self.0;
        if value.is_none() {
            return;
        }
        // While the interpreter shuts down there is no GIL to release, and the field's own destructor drops the
        // value.
        let _ended = Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

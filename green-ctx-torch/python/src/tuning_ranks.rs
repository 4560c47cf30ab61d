//! Ranks of a process group that tune together, over the group's store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use green_ctx::tune::{RankStore, Ranks, RanksError, StoreError};
use parking_lot::Mutex;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;

use crate::code::Code;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::tuner::of_request;

/// What ends a search: an interrupt, or whatever `progress` raised. Locked for a moment.
pub(crate) type End = Arc<Mutex<Option<PyErr>>>;

/// This process as one of a group's ranks, until what they do together has ended.
#[pyclass(frozen, module = "green_ctx_torch._native")]
pub(crate) struct _Ranks {
    rank: usize,
    /// Nothing while it is in use.
    ranks: Mutex<Option<Ranks<Store>>>,
    end: End,
    aborted: Arc<AtomicBool>,
    /// Whether all ranks are asked for the same: what is wrong later on is no argument.
    compared: AtomicBool,
}

#[pymethods]
impl _Ranks {
    /// `store` has `set`, `get`, `delete` and `abort`; the timeout is in seconds.
    #[new]
    fn new(store: Py<PyAny>, rank: usize, ranks: usize, timeout: f64) -> PyResult<_Ranks> {
        let Ok(timeout) = Duration::try_from_secs_f64(timeout) else {
            return Err(Fault::value(format!("a timeout of {timeout} s is no time")).into());
        };
        let (end, aborted) = (End::default(), Arc::<AtomicBool>::default());
        let store = Store { object: store, end: Arc::clone(&end), aborted: Arc::clone(&aborted) };
        let ranks = Mutex::new(Some(Ranks::new(store, rank, ranks, timeout)));
        Ok(_Ranks { rank, ranks, end, aborted, compared: AtomicBool::new(false) })
    }

    /// This rank's number.
    #[getter]
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// ValueError on every rank where descriptions and their values are not the same on all.
    fn compare(&self, py: Python<'_>, asked: Vec<(String, String)>) -> PyResult<()> {
        blocking(py, || self.with(|ranks| ranks.compare(&asked)))?;
        self.compared.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives a text to all ranks, and returns those of all.
    fn share(&self, py: Python<'_>, text: &str) -> PyResult<Vec<String>> {
        blocking(py, || self.with(|ranks| ranks.share(text)))
    }

    /// Calls a function until it returns True, such as an event's `query`, and gives up where another rank has
    /// failed.
    fn wait(&self, py: Python<'_>, is_done: Py<PyAny>) -> PyResult<()> {
        blocking(py, || {
            let mut is_done = || {
                let done = Python::try_attach(|py| is_done.bind(py).run(())?.is_truthy());
                Ok(done
                    .unwrap_or_else(|| Err(PyRuntimeError::new_err("the interpreter is ending")))?)
            };
            self.with(|ranks| ranks.wait(&mut is_done))
        })
    }

    /// Says to the other ranks that this one has failed, and whether with wrong arguments.
    fn fail(&self, py: Python<'_>, reason: &str, is_request: bool) {
        let is_request = is_request && !self.compared.load(Ordering::Relaxed);
        py.detach(|| {
            let _in_use = self.with(|ranks| {
                ranks.fail(reason, is_request);
                Ok(())
            });
        });
    }
}

impl _Ranks {
    /// Where what ends a search is noted: the ranks then fail.
    pub(crate) fn end(&self) -> End {
        Arc::clone(&self.end)
    }

    /// Uses the ranks, without the GIL, and makes an exception of their errors.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&mut Ranks<Store>) -> Result<T, RanksError>,
    ) -> Result<T, Fault> {
        self.lend(call)?.map_err(|error| self.fault(error))
    }

    /// Uses the ranks, without the GIL.
    pub(crate) fn lend<T>(&self, call: impl FnOnce(&mut Ranks<Store>) -> T) -> Result<T, Fault> {
        let taken = self.ranks.lock().take();
        let Some(mut ranks) = taken else {
            return Err(Fault::state("another thread tunes with this group"));
        };
        let result = call(&mut ranks);
        *self.ranks.lock() = Some(ranks);
        Ok(result)
    }

    /// The exception for what the ranks found instead of an outcome.
    pub(crate) fn fault(&self, error: RanksError) -> Fault {
        let mut text = error.to_string();
        if self.aborted.load(Ordering::Relaxed) {
            text.push_str(
                ". The group's communicators were aborted: destroy the group, and make another one",
            );
        }
        match error {
            RanksError::Differs { .. } | RanksError::Rank { is_request: true, .. } => {
                Fault::value(text)
            }
            RanksError::Request(error) => of_request(error),
            RanksError::Store(cause) | RanksError::Failed { cause, .. } => raised(cause, &text),
            _ => Fault::state(text),
        }
    }
}

/// What Python raised, or an error that it caused. Interrupts and the like pass as they are.
fn raised(cause: StoreError, text: &str) -> Fault {
    match cause.downcast::<PyErr>() {
        Ok(raised) => Python::attach(|py| {
            if !raised.is_instance_of::<PyException>(py) {
                return Fault::Python(*raised);
            }
            let error = PyRuntimeError::new_err(format!("{text}: {raised}"));
            error.set_cause(py, Some(*raised));
            Fault::Python(error)
        }),
        Err(cause) => {
            let (mut text, mut source) = (format!("{text}: {cause}"), cause.source());
            while let Some(error) = source {
                text = format!("{text}: {error}");
                source = error.source();
            }
            Fault::state(text)
        }
    }
}

/// The group's store, as Python has it.
pub(crate) struct Store {
    object: Py<PyAny>,
    end: End,
    aborted: Arc<AtomicBool>,
}

impl Store {
    fn call<T: Send>(
        &self,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, StoreError> {
        match Python::try_attach(|py| call(self.object.bind(py))) {
            Some(result) => Ok(result?),
            None => Err("the interpreter is ending".into()),
        }
    }
}

impl RankStore for Store {
    fn set(&mut self, key: &str, text: &str) -> Result<(), StoreError> {
        self.call(|store| store.run_method("set", (key, text)).map(drop))
    }

    fn get(&mut self, keys: &[String], wait: Duration) -> Result<Vec<Option<String>>, StoreError> {
        // What ends the search on this rank ends it on all. Its text needs the GIL, and so no lock is held.
        let ended = self.end.lock().take();
        if let Some(error) = ended {
            let text = error.to_string();
            self.end.lock().get_or_insert(error);
            return Err(text.into());
        }
        self.call(|store| store.run_method("get", (keys, wait.as_secs_f64()))?.extract())
    }

    fn delete(&mut self, key: &str) -> Result<(), StoreError> {
        self.call(|store| store.run_method("delete", (key,)).map(drop))
    }

    fn abort(&mut self) {
        self.aborted.store(true, Ordering::Relaxed);
        // What cannot be aborted goes on, and its rank says so.
        let _ = self.call(|store| store.run_method("abort", ()).map(drop));
    }
}

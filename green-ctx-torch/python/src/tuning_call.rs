//! Calls of Python functions by the tuner, and the exceptions that these functions raise.

use std::collections::BTreeMap;
use std::sync::Arc;

use green_ctx::{Stream, context::Context};
use green_ctx_tune::{JobError, Progress};
use parking_lot::Mutex;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::capture::Captured;
use crate::code::Code;
use crate::torch::Handle;

/// The exceptions of Python functions that run during a search, on any thread, and the graphs of compiled functions. The
/// mutexes are locked only briefly, and without the GIL.
pub(crate) struct Raised {
    /// The last exception of each job. The search leaves out each arm in which a job fails.
    jobs: Mutex<Vec<Option<PyErr>>>,
    /// The exception that ends the search: an interrupt, or an exception that `progress` raised.
    end: Mutex<Option<PyErr>>,
    /// The graphs of compiled functions in the search's contexts, by the contexts' handles. They are released together
    /// with this value, so they hold no SMs and no memory after the search.
    captured: Mutex<BTreeMap<usize, Captured>>,
}

impl Raised {
    pub(crate) fn of(jobs: usize) -> Raised {
        let jobs = Mutex::new((0..jobs).map(|_| None).collect());
        Raised { jobs, end: Mutex::default(), captured: Mutex::default() }
    }

    /// Notes that Python functions are called with a stream of this context. A `Captured` that is dropped releases the
    /// context's graphs, so none is made for a context that is noted already.
    fn note_context(&self, context: &Context) {
        let raw_context = context.as_raw().addr();
        self.captured.lock().entry(raw_context).or_insert_with(|| Captured { raw_context });
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.end.lock().is_some()
    }

    pub(crate) fn ended(&self) -> Option<PyErr> {
        self.end.lock().take()
    }

    fn note(&self, place: usize, error: Option<PyErr>) {
        if let Some(last) = self.jobs.lock().get_mut(place) {
            *last = error;
        }
    }

    pub(crate) fn of_job(&self, place: usize) -> Option<PyErr> {
        self.jobs.lock().get_mut(place)?.take()
    }

    fn ends(&self, error: PyErr) {
        self.end.lock().get_or_insert(error);
    }

    /// Calls `progress`. Returns whether the search continues.
    pub(crate) fn tells(&self, progress: Option<&Py<PyAny>>, now: &Progress<'_>) -> bool {
        let Some(progress) = progress else { return true };
        let answered = Python::try_attach(|py| {
            let answer = progress.bind(py).run((TuningProgress::of(now),))?;
            Ok(answer.is_none() || answer.is_truthy()?)
        });
        match answered {
            Some(Ok(goes_on)) => goes_on,
            Some(Err(error)) => {
                self.ends(error);
                false
            }
            None => false,
        }
    }
}

/// Wraps a Python function that takes a stream's address. The result can be called on any thread.
pub(crate) fn called(
    function: Py<PyAny>,
    raised: Arc<Raised>,
    place: usize,
) -> impl FnMut(&Stream) -> Result<(), JobError> + Send + 'static {
    move |stream| {
        let raw = Handle::of(stream);
        raised.note_context(stream.context());
        let answered = Python::try_attach(|py| {
            let called = raw.give(py).and_then(|raw| function.bind(py).run((raw,)));
            called.map(drop).map_err(|error| {
                let passes = !error.is_instance_of::<PyException>(py);
                (error.to_string(), passes, error)
            })
        });
        match answered {
            Some(Ok(())) => {
                // An earlier exception does not explain a later failure.
                raised.note(place, None);
                Ok(())
            }
            Some(Err((text, passes, error))) => {
                match passes {
                    true => raised.ends(error),
                    false => raised.note(place, Some(error)),
                }
                Err(text.into())
            }
            None => Err("the interpreter is ending".into()),
        }
    }
}

/// The progress of a search.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct TuningProgress {
    /// The current step of the search.
    #[pyo3(get)]
    step: String,
    /// The fraction of the budget that is spent, from 0 to 1.
    #[pyo3(get)]
    spent: f64,
    /// The number of measurement blocks so far.
    #[pyo3(get)]
    blocks: usize,
    /// A description of the best arm so far; None if there is no best arm yet.
    #[pyo3(get)]
    best: Option<String>,
    line: String,
}

impl TuningProgress {
    fn of(progress: &Progress<'_>) -> TuningProgress {
        TuningProgress {
            step: progress.step.to_owned(),
            spent: progress.spent,
            blocks: progress.blocks,
            best: progress.best.clone(),
            line: green_ctx_report::progress_line(progress),
        }
    }
}

#[pymethods]
impl TuningProgress {
    /// Returns a progress bar of at most 100 characters, as the command draws it.
    fn __str__(&self) -> &str {
        &self.line
    }

    fn __repr__(&self) -> String {
        format!("<TuningProgress {:.0} %, {}>", 100.0 * self.spent, self.step)
    }
}

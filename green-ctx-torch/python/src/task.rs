//! Tasks of asyncio: what one has entered is not current while another runs.

use green_ctx::{Stream, context::Context};
use green_ctx_torch::{Torch, scope};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::argument::modules;
use crate::fault::Fault;
use crate::gil::{Held, blocking};

/// A partition that a task has entered. The context variable of `green_ctx_torch._tasks` holds them.
#[pyclass(frozen, module = "green_ctx_torch._native")]
pub(crate) struct Entry {
    context: Held<Context>,
    stream: Held<Stream>,
    raw_context: usize,
}

#[pymethods]
impl Entry {
    /// The driver's handle of the context, a CUcontext.
    #[getter]
    fn raw_context(&self) -> usize {
        self.raw_context
    }
}

/// Notes that the thread has entered a partition, where a task of asyncio runs on it.
pub(crate) fn entered(
    py: Python<'_>,
    context: &Context,
    stream: &Stream,
    raw_context: usize,
) -> PyResult<()> {
    if !is_loop_running(py)? {
        return Ok(());
    }
    blocking(py, || Ok(scope::task::own_innermost()?))?;
    let (context, stream) = (Held::new(context.clone()), Held::new(stream.clone()));
    tasks(py)?.call_method1(intern!(py, "entered"), (Entry { context, stream, raw_context },))?;
    Ok(())
}

/// Notes that the thread has left a partition. `of_task` says whether a task had entered the one that was
/// entered last.
pub(crate) fn left(py: Python<'_>, raw_context: usize, of_task: bool) -> PyResult<()> {
    if of_task && is_loop_running(py)? {
        tasks(py)?.call_method1(intern!(py, "left"), (raw_context,))?;
    }
    Ok(())
}

fn tasks(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "green_ctx_torch._tasks"))
}

/// Whether asyncio runs on this thread. It is not imported for that.
fn is_loop_running(py: Python<'_>) -> PyResult<bool> {
    static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(running) = RUNNING.get(py) {
        return Ok(!running.bind(py).call0()?.is_none());
    }
    let events = modules(py)?.get_item(intern!(py, "asyncio.events"))?;
    let Some(events) = events else { return Ok(false) };
    // Not there while the module is being imported.
    let Some(running) = events.getattr_opt(intern!(py, "_get_running_loop"))? else {
        return Ok(false);
    };
    let is_running = !running.call0()?.is_none();
    let _same = RUNNING.set(py, running.unbind());
    Ok(is_running)
}

/// Whether the partition that this thread entered last was entered by a task.
#[pyfunction]
pub(crate) fn _task_entered() -> bool {
    scope::task::is_innermost_of_task()
}

/// Makes current what a task has entered, in the place of what another task left.
#[pyfunction]
pub(crate) fn _task_resume(py: Python<'_>, entries: Vec<Py<Entry>>) -> PyResult<()> {
    blocking(py, || {
        scope::task::suspend();
        if entries.is_empty() {
            return Ok(());
        }
        let entries = entries.iter().map(|entry| {
            let entry = entry.get();
            (&*entry.context, &*entry.stream)
        });
        Ok(scope::task::resume(&Torch::find().map_err(Fault::from)?, entries)?)
    })
}

/// Puts aside what tasks have entered.
#[pyfunction]
pub(crate) fn _task_suspend(py: Python<'_>) {
    py.detach(scope::task::suspend);
}

//! The warning that torch gives for `set_context` and `pop_context` from 2.14 on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use pyo3::exceptions::PyFutureWarning;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};

const MESSAGE: &std::ffi::CStr = c"GreenContext.set_context and GreenContext.pop_context are \
    deprecated since torch 2.14; write `with context:`, which does the same, or use the streams of \
    GreenContext.Stream() with torch.cuda.stream";

/// How many calls look up whether their line has been warned of. That takes a tenth of what the call
/// itself does, and a program that has come so far has seen its warnings.
const CALLS: u32 = 256;

/// The filters that the last calls were made under. `warnings.catch_warnings` has a list of its own.
struct Seen {
    filters: Py<PyList>,
    len: usize,
    /// How many calls still look.
    left: AtomicU32,
}

static SEEN: ArcSwapOption<Seen> = ArcSwapOption::const_empty();

/// Whether `set_context` had nothing to look up last.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// Warns of the line that calls `set_context`, as Python's filters say: by default once for each line.
pub(crate) fn warn_of_set(py: Python<'_>) -> PyResult<()> {
    SETTLED.store(false, Ordering::Relaxed);
    let settled = warn(py)?;
    SETTLED.store(settled, Ordering::Relaxed);
    Ok(())
}

/// Warns of the line that calls `pop_context` in the same way, unless `set_context` was past all warnings.
pub(crate) fn warn_of_pop(py: Python<'_>) -> PyResult<()> {
    if !SETTLED.load(Ordering::Relaxed) {
        warn(py)?;
    }
    Ok(())
}

/// Returns whether nothing was looked up.
fn warn(py: Python<'_>) -> PyResult<bool> {
    let Some(filters) = filters(py)? else { return raise(py).map(|()| false) };
    let seen = SEEN.load();
    let same = |seen: &&Arc<Seen>| seen.filters.is(&filters) && seen.len == filters.len();
    let Some(seen) = seen.as_ref().filter(same) else {
        raise(py)?;
        let (len, left) = (filters.len(), AtomicU32::new(CALLS));
        SEEN.store(Some(Arc::new(Seen { filters: filters.unbind(), len, left })));
        return Ok(false);
    };
    let left = seen.left.load(Ordering::Relaxed);
    if left > 0 {
        raise(py)?;
        seen.left.store(left - 1, Ordering::Relaxed);
    }
    Ok(left == 0)
}

/// An error where the filters make one of the warning.
#[cold]
fn raise(py: Python<'_>) -> PyResult<()> {
    PyErr::warn(py, &py.get_type::<PyFutureWarning>(), MESSAGE, 1)
}

/// Python's filters of warnings.
fn filters(py: Python<'_>) -> PyResult<Option<Bound<'_, PyList>>> {
    static WARNINGS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let warnings = WARNINGS.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import(intern!(py, "warnings"))?.dict().unbind())
    })?;
    let filters = warnings.bind(py).get_item(intern!(py, "filters"))?;
    Ok(filters.and_then(|filters| filters.cast_into().ok()))
}

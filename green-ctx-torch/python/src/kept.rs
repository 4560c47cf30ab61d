//! Python objects that are made when they are first asked for.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Returns what a cell holds, and makes it the first time.
///
/// Making it runs Python code, which may be a signal's handler that asks for the same. So the cell is not locked
/// while it is made. If two callers make it, the first one's stays.
pub(crate) fn once<'a, T: Send + Sync>(
    py: Python<'_>,
    cell: &'a PyOnceLock<T>,
    make: impl FnOnce() -> PyResult<T>,
) -> PyResult<&'a T> {
    if let Some(kept) = cell.get(py) {
        return Ok(kept);
    }
    let fresh = make()?;
    Ok(cell.get_or_init(py, || fresh))
}

/// What is kept, made the first time. Making it runs Python, so that two threads may both make it, and the
/// first one's stays; nobody waits.
pub(crate) fn kept(
    py: Python<'_>,
    cell: &OnceLock<Py<PyAny>>,
    make: impl FnOnce() -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    if let Some(kept) = cell.get() {
        return Ok(kept.clone_ref(py));
    }
    let fresh = make()?;
    let _ours = cell.set(fresh.clone_ref(py));
    Ok(cell.get().unwrap_or(&fresh).clone_ref(py))
}

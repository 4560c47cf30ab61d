//! Python objects that are made when they are first asked for.

use std::sync::OnceLock;

use pyo3::prelude::*;

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

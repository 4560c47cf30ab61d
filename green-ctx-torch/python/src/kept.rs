//! Python objects that are created on first use.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Returns the value of a cell, and creates it on first use.
///
/// Creating the value runs Python code, which may be a signal handler that calls this function for the same cell.
/// Therefore the cell is not locked while the value is created. If two callers each create a value, the first one is
/// stored in the cell.
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

/// Returns the object in a cell, and creates it on first use. Creating the object runs Python code, so two threads
/// may each create an object. The first object is stored in the cell, and no thread waits.
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

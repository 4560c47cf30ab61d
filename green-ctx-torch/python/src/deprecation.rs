//! The warning that torch gives for `set_context` and `pop_context` from 2.14 on.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyFutureWarning;
use pyo3::prelude::*;

const MESSAGE: &std::ffi::CStr = c"GreenContext.set_context and GreenContext.pop_context are \
    deprecated since torch 2.14: inside, torch's default stream is another stream than outside. Write \
    `with context:`, which changes the current stream alone, or use the streams of GreenContext.Stream() with \
    torch.cuda.stream";

/// How many calls still look up whether their line has been warned of. That takes a tenth of what the call
/// itself does, and a program that has come so far has seen its warnings.
static LEFT: AtomicU32 = AtomicU32::new(1000);

/// Warns of the line that makes the call, as Python's filters say: by default once for each line.
pub(crate) fn warn(py: Python<'_>) -> PyResult<()> {
    let left = LEFT.load(Ordering::Relaxed);
    if left == 0 {
        return Ok(());
    }
    LEFT.store(left - 1, Ordering::Relaxed);
    // An error where the filters make one of it.
    PyErr::warn(py, &py.get_type::<PyFutureWarning>(), MESSAGE, 1)
}

//! The deprecation warning of `set_context` and `pop_context`. torch deprecates these methods too, from version 2.14
//! on.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyFutureWarning;
use pyo3::prelude::*;

const MESSAGE: &std::ffi::CStr = c"GreenContext.set_context and GreenContext.pop_context are \
    deprecated since torch 2.14: torch's default stream is a different stream inside the context. Write \
    `with context:`, which changes the current stream only, or use the streams of GreenContext.Stream() with \
    torch.cuda.stream";

/// The number of further calls that issue the warning. For each warning, Python checks whether the caller's line has
/// already warned. This check takes a tenth of the time of the call itself. After 1000 calls, a program has seen its
/// warnings.
static LEFT: AtomicU32 = AtomicU32::new(1000);

/// Issues the warning for the line of the caller. Python's warning filters apply, which by default show the warning
/// once per line.
pub(crate) fn warn(py: Python<'_>) -> PyResult<()> {
    let left = LEFT.load(Ordering::Relaxed);
    if left == 0 {
        return Ok(());
    }
    LEFT.store(left - 1, Ordering::Relaxed);
    // This returns an error if the filters turn the warning into an exception.
    PyErr::warn(py, &py.get_type::<PyFutureWarning>(), MESSAGE, 1)
}

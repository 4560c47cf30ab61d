//! The native part of the Python module `green_ctx_torch`.

use pyo3::prelude::*;

#[pymodule]
mod _native {}

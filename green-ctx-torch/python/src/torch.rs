//! What is asked of PyTorch's Python side, when it is first needed: the module imports without it.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::gil::Held;

/// Keeps alive what a torch stream stands on.
#[pyclass(frozen, module = "green_ctx_torch._native")]
struct Owner {
    _kept: Held<green_ctx::Stream>,
}

/// A `torch.cuda.ExternalStream` of a stream, which lives at least as long as that object.
pub(crate) fn external_stream(
    py: Python<'_>,
    raw: usize,
    stream: &green_ctx::Stream,
) -> PyResult<Py<PyAny>> {
    let torch = py.import("torch").map_err(|error| {
        let missing = PyImportError::new_err(
            "torch is needed for a torch stream, and cannot be imported; install it, or use the \
             raw address or __cuda_stream__",
        );
        missing.set_cause(py, Some(error));
        missing
    })?;
    let options = PyDict::new(py);
    options.set_item("device", stream.context().device().ordinal())?;
    let class = torch.getattr("cuda")?.getattr("ExternalStream")?;
    let made = class.call((raw,), Some(&options))?;
    // torch owns no external stream, and would use it after its end.
    made.setattr(
        "_green_ctx_owner",
        Owner { _kept: Held::new(stream.clone()) }.into_pyobject(py)?,
    )?;
    Ok(made.unbind())
}

//! Streams of partitions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::gil::Held;
use crate::torch;

/// One more stream of a partition. The partition's SMs stay taken as long as it lives.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct Stream {
    stream: Held<green_ctx::Stream>,
    raw: usize,
    priority: i32,
    torch: PyOnceLock<Py<PyAny>>,
}

impl Stream {
    /// Of a stream whose handle and priority were asked for already.
    pub(crate) fn new(stream: green_ctx::Stream, raw: usize, priority: i32) -> Stream {
        Stream { stream: Held::new(stream), raw, priority, torch: PyOnceLock::new() }
    }
}

#[pymethods]
impl Stream {
    /// The driver's handle, a CUstream.
    #[getter]
    fn raw(&self) -> usize {
        self.raw
    }

    /// The priority that the driver gave it; lower numbers run first.
    #[getter]
    fn priority(&self) -> i32 {
        self.priority
    }

    /// The stream as a torch.cuda.ExternalStream, made when first asked for.
    #[getter]
    fn torch(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        kept(py, &self.torch, || torch::external_stream(py, self.raw, &self.stream))
    }

    /// The protocol by which other libraries take a stream: version and address.
    fn __cuda_stream__(&self) -> (u32, usize) {
        (0, self.raw)
    }

    fn __repr__(&self) -> String {
        format!("<Stream {:#x}>", self.raw)
    }
}

/// What is kept, made the first time. `PyOnceLock` would have other threads wait while it is made.
pub(crate) fn kept(
    py: Python<'_>,
    cell: &PyOnceLock<Py<PyAny>>,
    make: impl FnOnce() -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    if let Some(kept) = cell.get(py) {
        return Ok(kept.clone_ref(py));
    }
    let fresh = make()?;
    // Another thread may have been first while Python ran.
    let _ours = cell.set(py, fresh.clone_ref(py));
    Ok(cell.get(py).unwrap_or(&fresh).clone_ref(py))
}

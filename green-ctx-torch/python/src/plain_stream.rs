//! Streams of the primary context, for tuning verdicts that do not use partitions.

use std::sync::OnceLock;

use green_ctx::StreamOptions;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::argument::{DeviceId, Whole};
use crate::device::device;
use crate::gil::{Held, blocking};
use crate::kept::kept;
use crate::request::nearest;
use crate::torch;

/// A stream of the primary context with a priority.
#[pyclass(frozen, module = "green_ctx_torch._native")]
pub(crate) struct _PlainStream {
    native: Held<green_ctx::Stream>,
    raw: usize,
    stream: OnceLock<Py<PyAny>>,
}

#[pymethods]
impl _PlainStream {
    #[new]
    fn new(py: Python<'_>, ordinal: DeviceId, priority: Whole) -> PyResult<_PlainStream> {
        let options = StreamOptions::default().priority(nearest(priority.0));
        let ordinal = ordinal.ordinal(py)?;
        let made =
            blocking(py, || Ok(device(ordinal)?.primary_context()?.create_stream(options)?))?;
        let raw = made.as_raw().addr();
        Ok(_PlainStream { native: Held::new(made), raw, stream: OnceLock::new() })
    }

    /// The driver's handle of the stream, a CUstream.
    #[getter]
    fn raw_stream(&self) -> usize {
        self.raw
    }

    /// The stream as a torch.cuda.ExternalStream. The first access creates this object.
    #[getter]
    fn stream(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        kept(py, &self.stream, || torch::external_stream(py, self.raw, &self.native))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.stream.get())
    }
}

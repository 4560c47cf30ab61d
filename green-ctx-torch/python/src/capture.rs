//! The functions that `green_ctx_torch._captures` calls to capture torch's graphs in partitions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx::{Driver, Stream, StreamOptions, context::Context, graph::RelaxedCapture};
use green_ctx_torch::{Torch, scope};
use pyo3::prelude::*;

use crate::argument::Whole;
use crate::code::Code;
use crate::fault::{Fault, unsigned};
use crate::gil::blocking;
use crate::made;
use crate::torch::{self, Handle};

/// Returns the partition that torch's current stream on this thread belongs to, if there is one.
fn of_current_stream() -> Result<Option<Context>, Fault> {
    // If torch is missing or too old, nothing is submitted through it.
    let Ok(torch) = Torch::find() else { return Ok(None) };
    let Ok(raw) = torch.current_stream_here() else { return Ok(None) };
    of_stream(raw)
}

/// Returns the partition that a stream of torch belongs to, if there is one.
fn of_stream(raw: *mut c_void) -> Result<Option<Context>, Fault> {
    Ok(find_green(raw)?.map(|stream| stream.context().clone()))
}

/// Returns the stream with this handle, if the stream belongs to a partition.
pub(crate) fn find_green(raw: *mut c_void) -> Result<Option<Stream>, Fault> {
    if raw.is_null() {
        return Ok(None);
    }
    Ok(Driver::load()?.find_stream(raw.cast()).filter(|stream| stream.context().is_green()))
}

/// Returns the partition that this thread entered last. Plain streams that it entered are in no partition.
fn entered() -> Option<Context> {
    scope::innermost().filter(Context::is_green)
}

/// Returns the partition that this thread has entered, or else the partition of torch's current stream.
fn here() -> Result<Option<Context>, Fault> {
    entered().map_or_else(of_current_stream, |context| Ok(Some(context)))
}

fn address(context: &Context) -> usize {
    context.as_raw().addr()
}

/// Returns the driver's handle of the context of the current partition, or 0 if there is no current partition. The
/// current partition is the one that this thread has entered, or else the one of torch's current stream.
#[pyfunction]
pub(crate) fn _partition_here(py: Python<'_>) -> PyResult<usize> {
    blocking(py, || Ok(here()?.as_ref().map_or(0, address)))
}

/// Returns the number of SMs available to torch's current stream of `device` on the calling thread. Returns None if
/// the stream is not in a partition.
#[pyfunction]
pub(crate) fn current_sm_count(py: Python<'_>, device: Whole) -> PyResult<Option<u32>> {
    blocking(py, || {
        Ok(of_torchs_stream(device)?.and_then(|context| Some(context.group()?.sm_count())))
    })
}

/// Returns the floor, in SMs, of the partition to which torch's current stream of `device` on the calling thread
/// belongs. Returns None if the stream is not in a partition.
#[pyfunction]
pub(crate) fn current_floor(py: Python<'_>, device: Whole) -> PyResult<Option<u32>> {
    blocking(py, || Ok(of_torchs_stream(device)?.map(|context| made::floor_of(&context))))
}

/// Returns the partition that torch's current stream of a device belongs to.
fn of_torchs_stream(device: Whole) -> Result<Option<Context>, Fault> {
    let Ok(torch) = Torch::find() else { return Ok(None) };
    of_stream(torch.current_stream(unsigned("a device", device.0)?)?)
}

/// Creates a stream in the current partition, and returns it as a torch.cuda.ExternalStream. Returns None if there is
/// no current partition. `_partition_here` describes the current partition.
#[pyfunction]
pub(crate) fn _stream_here(py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
    let made = blocking(py, || {
        here()?.map(|context| Handle::create(&context, StreamOptions::default())).transpose()
    })?;
    made.map(|(stream, raw)| torch::external_stream(py, raw, &stream)).transpose()
}

/// Describes where a capture takes place that torch has just begun on its current stream.
///
/// Returns two values. The first is the driver's handle of the context in which the graph's kernels must run, or 0 if
/// the context does not belong to a partition. If torch's current stream is not in that partition, the second value is
/// a new stream of the partition. Otherwise it is None.
#[pyfunction]
pub(crate) fn _capture_begins(py: Python<'_>) -> PyResult<(usize, Option<Py<PyAny>>)> {
    let (home, made) = blocking(py, || {
        if let Some(context) = of_current_stream()? {
            return Ok((address(&context), None));
        }
        let Some(context) = entered() else { return Ok((0, None)) };
        // Not the partition's first stream, to which other threads may submit during the capture.
        Ok((address(&context), Some(Handle::create(&context, StreamOptions::default())?)))
    })?;
    let made = made.map(|(stream, raw)| torch::external_stream(py, raw, &stream)).transpose()?;
    Ok((home, made))
}

/// Calls a function in CUDA's relaxed capture mode, in which captures on this thread and other threads do not
/// restrict the function's CUDA calls.
#[pyfunction]
pub(crate) fn _relaxed(py: Python<'_>, call: Py<PyAny>) -> PyResult<()> {
    blocking(py, || {
        let driver = Driver::load()?;
        let _relaxed = RelaxedCapture::enter(&driver)?;
        Python::attach(|py| call.bind(py).run(()).map(drop)).map_err(Fault::Python)
    })
}

/// Whether torch.compile has captured graphs in a partition so far.
static IN_PARTITIONS: AtomicBool = AtomicBool::new(false);

/// Records that torch.compile has captured a graph in a partition.
#[pyfunction]
pub(crate) fn _compiled_in_partition() {
    IN_PARTITIONS.store(true, Ordering::Relaxed);
}

/// The graphs that torch.compile captured in a partition. The graphs are released when the partition is closed or
/// dropped.
pub(crate) struct Captured {
    pub(crate) raw_context: usize,
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !IN_PARTITIONS.load(Ordering::Relaxed) {
            return;
        }
        // While the interpreter shuts down, skip this: the end of the process releases everything.
        let _ended = Python::try_attach(|py| {
            // An exception may be set when the partition is dropped. It is saved and restored.
            let raised = PyErr::take(py);
            torch::close_captures(py, self.raw_context);
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

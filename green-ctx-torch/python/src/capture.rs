//! Where torch's graphs are captured: what `green_ctx_torch._captures` asks.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx::{Driver, Stream, StreamOptions, context::Context, graph::RelaxedCapture};
use green_ctx_torch::{Torch, scope};
use pyo3::prelude::*;

use crate::argument::Whole;
use crate::code::Code;
use crate::fault::{Fault, unsigned};
use crate::gil::{Held, blocking};
use crate::made;
use crate::torch;

/// The partition that torch's work of this thread goes to now, by torch's current stream alone.
fn of_current_stream() -> Result<Option<Context>, Fault> {
    // Without torch, or with one that is too old, nothing is submitted through it.
    let Ok(torch) = Torch::find() else { return Ok(None) };
    let Ok(raw) = torch.current_stream_here() else { return Ok(None) };
    of_stream(raw)
}

/// The partition of a stream that torch has, if it is of one.
fn of_stream(raw: *mut c_void) -> Result<Option<Context>, Fault> {
    Ok(find_green(raw)?.map(|stream| stream.context().clone()))
}

/// The stream of a partition behind a handle that torch has, if it is one.
pub(crate) fn find_green(raw: *mut c_void) -> Result<Option<Stream>, Fault> {
    if raw.is_null() {
        return Ok(None);
    }
    Ok(Driver::load()?.find_stream(raw.cast()).filter(|stream| stream.context().is_green()))
}

/// The partition that this thread is in, or else that torch's current stream is of.
fn here() -> Result<Option<Context>, Fault> {
    scope::innermost().map_or_else(of_current_stream, |context| Ok(Some(context)))
}

fn address(context: &Context) -> usize {
    context.as_raw().addr()
}

/// The driver's handle of the context of the partition that this thread, or torch's current stream, is in;
/// 0 for none.
#[pyfunction]
pub(crate) fn _partition_here(py: Python<'_>) -> PyResult<usize> {
    blocking(py, || Ok(here()?.as_ref().map_or(0, address)))
}

/// The SMs that torch's work on this thread's current stream of a device can use, of a partition; None for
/// none.
#[pyfunction]
pub(crate) fn current_sm_count(py: Python<'_>, device: Whole) -> PyResult<Option<u32>> {
    blocking(py, || {
        Ok(of_torchs_stream(device)?.and_then(|context| Some(context.group()?.sm_count())))
    })
}

/// The SMs that nobody but torch's work on this thread's current stream of a device may use, of a partition; None for
/// none.
#[pyfunction]
pub(crate) fn current_floor(py: Python<'_>, device: Whole) -> PyResult<Option<u32>> {
    blocking(py, || Ok(of_torchs_stream(device)?.map(|context| made::floor_of(&context))))
}

/// The partition of torch's current stream of a device.
fn of_torchs_stream(device: Whole) -> Result<Option<Context>, Fault> {
    let Ok(torch) = Torch::find() else { return Ok(None) };
    of_stream(torch.current_stream(unsigned("a device", device.0)?)?)
}

/// A new stream of that partition, as a torch.cuda.ExternalStream; None for none.
#[pyfunction]
pub(crate) fn _stream_here(py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
    let made = blocking(py, || {
        let Some(context) = here()? else { return Ok(None) };
        let stream = context.create_stream(StreamOptions::default())?;
        stream.keep_alive()?;
        Ok(Some((stream.as_raw().addr(), Held::new(stream))))
    })?;
    made.map(|(raw, stream)| torch::external_stream(py, raw, &stream)).transpose()
}

/// Notes that torch has begun to capture its current stream. Where the thread is in a partition that the
/// stream is not of, what torch submits goes there from now on, as a part of the capture.
///
/// Returns the driver's handle of the context that the graph's kernels run in, 0 for none of a partition, and
/// whether the partition was entered for the capture.
#[pyfunction]
pub(crate) fn _capture_begins(py: Python<'_>) -> PyResult<(usize, bool)> {
    blocking(py, || {
        if let Some(context) = of_current_stream()? {
            return Ok((address(&context), false));
        }
        let Some(context) = scope::innermost() else { return Ok((0, false)) };
        // Not the partition's first stream, which other threads may submit to meanwhile.
        let stream = context.create_stream(StreamOptions::default())?;
        scope::enter(&Torch::find()?, &stream)?;
        Ok((address(&context), true))
    })
}

/// Leaves the partition that was entered for a capture, before that ends.
#[pyfunction]
pub(crate) fn _capture_ends(py: Python<'_>, raw_context: usize) -> PyResult<()> {
    blocking(py, || {
        let innermost = scope::innermost().filter(|context| address(context) == raw_context);
        innermost.map_or(Ok(()), |context| Ok(scope::leave(&context)?))
    })
}

/// Calls a function while captures, those of other threads included, forbid this thread nothing.
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

/// Notes that it does.
#[pyfunction]
pub(crate) fn _compiled_in_partition() {
    IN_PARTITIONS.store(true, Ordering::Relaxed);
}

/// What torch.compile captured in a partition, which is given up with the partition.
pub(crate) struct Captured {
    pub(crate) raw_context: usize,
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !IN_PARTITIONS.load(Ordering::Relaxed) {
            return;
        }
        // Where the interpreter is ending, the process gives everything up.
        let _ended = Python::try_attach(|py| {
            // A partition can be dropped while an exception is raised.
            let raised = PyErr::take(py);
            torch::close_captures(py, self.raw_context);
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

//! The memset that follows each graph launch on a stream of a partition.
//!
//! Synchronising the primary context does not wait for a graph in a partition. `cudaDeviceSynchronize` and `cudaFree`
//! return while the graph runs, and torch's allocator would unmap memory that the graph still uses (recorded on an
//! H200, driver 580.159.04: `tests/conformance`, `graph/primary-context-waits-for-…`). Synchronising the primary
//! context does wait for a memset on the same stream, and the memset waits for the graph.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx::{Device, DeviceBuffer, Stream, call};
use green_ctx_torch::{Torch, scope};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::capture::find_green;
use crate::fault::Fault;
use crate::gil::blocking;

/// The size of a device's scratch memory, in bytes. Different streams write to different bytes if possible, so that a
/// race detector does not report these writes.
const LEN: usize = 4096;

/// The scratch memory of each device. The memory is never freed.
static SCRATCH: Mutex<Vec<(Device, DeviceBuffer<u8>)>> = Mutex::new(Vec::new());

/// Submits a memset to a stream, so that synchronising the primary context also waits for the graphs launched on the
/// stream so far.
pub(crate) fn cover(stream: &Stream) -> Result<(), Fault> {
    let address = scratch(stream)?;
    // SAFETY: `address` is in a buffer of `SCRATCH`, which is never freed, and its bytes are never read. `stream`
    // is alive.
    let filled = unsafe {
        call!(
            stream.context().device().driver().api(),
            cuMemsetD8Async(address, 0, 1, stream.as_raw())
        )
    };
    Ok(filled?)
}

/// Returns the address of the byte that a stream writes to.
fn scratch(stream: &Stream) -> Result<u64, Fault> {
    let device = stream.context().device();
    // Handles are aligned to 16 bytes.
    let offset = (stream.as_raw().addr() >> 4) % LEN;
    let mut buffers = SCRATCH.lock();
    if let Some((_, buffer)) = buffers.iter().find(|(known, _)| known == device) {
        return Ok(buffer.as_raw() + offset as u64);
    }
    let buffer = DeviceBuffer::zeroed(device, LEN)?;
    let address = buffer.as_raw() + offset as u64;
    buffers.push((device.clone(), buffer));
    Ok(address)
}

/// Submits the memset after torch has launched a graph on its current stream. If this thread is in a partition, the
/// memset goes to torch's current stream of that partition's device.
#[pyfunction]
pub(crate) fn _graph_replayed(py: Python<'_>) -> PyResult<()> {
    blocking(py, || {
        let torch = Torch::find()?;
        let raw = match scope::innermost() {
            Some(context) => torch.current_stream(context.device().ordinal())?,
            None => torch.current_stream_here()?,
        };
        find_green(raw)?.as_ref().map_or(Ok(()), cover)
    })
}

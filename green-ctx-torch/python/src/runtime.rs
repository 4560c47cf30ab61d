//! Replacements for the functions of `torch.cuda.cudart()` that do not use the CUDA runtime.

use std::ffi::c_void;
use std::ptr;

use green_ctx::Stream;
use green_ctx_torch::runtime::{self, ErrorCode};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::argument::{DeviceId, Whole};
use crate::device::device;
use crate::fault::{Fault, unsigned};
use crate::gil::blocking;
use crate::partition::Partition;
use crate::torch::Handle;

/// Returns the name of an error code, such as cudaErrorInvalidValue for 1. Returns None for a code that CUDA 13.5
/// does not define.
#[pyfunction]
pub(crate) fn error_name(code: Whole) -> Option<&'static str> {
    // No error code is as large as this substitute for numbers outside `u32`.
    ErrorCode(u32::try_from(code.0).unwrap_or(u32::MAX)).name()
}

/// Returns a short description of an error code.
#[pyfunction]
pub(crate) fn error_text(code: Whole) -> &'static str {
    ErrorCode(u32::try_from(code.0).unwrap_or(u32::MAX)).text()
}

/// Starts data collection by the profiler under which the program runs. Without a profiler, the call does nothing.
#[pyfunction]
#[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
pub(crate) fn profiler_start(py: Python<'_>, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || Ok(runtime::profiler_start(&self::device(device)?)?))
}

/// Stops data collection by the profiler under which the program runs.
#[pyfunction]
#[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
pub(crate) fn profiler_stop(py: Python<'_>, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || Ok(runtime::profiler_stop(&self::device(device)?)?))
}

/// Returns the free memory and the total memory of a device, in bytes.
#[pyfunction]
#[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
pub(crate) fn memory_info(py: Python<'_>, device: DeviceId) -> PyResult<(u64, u64)> {
    let device = device.ordinal(py)?;
    let memory = blocking(py, || Ok(runtime::memory_info(&self::device(device)?)?))?;
    Ok((memory.free, memory.total))
}

/// Page-locks host memory. The memory must stay in place until it is unregistered.
///
/// `flags` is a combination of the flags of cudaHostRegister: 1 for all contexts (portable), 2 for mapped memory, 4
/// for memory of an I/O device, and 8 for read-only memory.
#[pyfunction]
#[pyo3(signature = (address, bytes, flags=Whole(0), device=DeviceId::Current),
    text_signature = "(address, bytes, flags=0, device=None)")]
pub(crate) fn host_register(
    py: Python<'_>,
    address: Whole,
    bytes: Whole,
    flags: Whole,
    device: DeviceId,
) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || {
        let (begin, bytes) = (memory(address)?, unsigned("a size", bytes.0)?);
        if bytes == 0 {
            return Err(Fault::value(
                "0 bytes cannot be registered; give the size of the memory, as in 1 << 20",
            ));
        }
        let flags = unsigned("a set of flags", flags.0)?;
        let device = self::device(device)?;
        // SAFETY: this function's documentation requires that the memory exists and stays in place until it is
        // unregistered.
        Ok(unsafe { runtime::host_register(&device, begin, bytes, flags) }?)
    })
}

/// Unregisters the host memory at an address. No work on a device may still use the memory.
#[pyfunction]
#[pyo3(signature = (address, device=DeviceId::Current),
    text_signature = "(address, device=None)")]
pub(crate) fn host_unregister(py: Python<'_>, address: Whole, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || {
        let (begin, device) = (memory(address)?, self::device(device)?);
        // SAFETY: this function's documentation requires that no work uses the memory.
        Ok(unsafe { runtime::host_unregister(&device, begin) }?)
    })
}

/// The streams that `stream_create` created and `stream_destroy` has not destroyed. This mutex is locked only without
/// the GIL.
static CREATED: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

/// Creates a stream in a partition, or in a device's primary context, and returns its handle, a CUstream. The SMs of
/// the partition are not free until `stream_destroy` destroys the stream.
#[pyfunction]
#[pyo3(signature = (partition=None, device=DeviceId::Current),
    text_signature = "(partition=None, device=None)")]
pub(crate) fn stream_create(
    py: Python<'_>,
    partition: Option<Bound<'_, Partition>>,
    device: DeviceId,
) -> PyResult<usize> {
    let named = if let DeviceId::Ordinal(named) = device { Some(named) } else { None };
    let device = device.ordinal(py)?;
    let live = partition.map(|partition| partition.get().live()).transpose()?;
    let made = blocking(py, move || {
        let context = match live {
            Some(live) => {
                let own = live.context().device().ordinal();
                if let Some(named) = named.filter(|named| *named != i64::from(own)) {
                    return Err(Fault::value(format!(
                        "device is {named}, but partition {} is on device {own}; leave device out",
                        live.name()
                    )));
                }
                live.context().clone()
            }
            None => self::device(device)?.primary_context()?,
        };
        let raw = runtime::create_stream(&context)?;
        // SAFETY: `raw` was just created in this context, and only `stream_destroy` ends the result's life.
        let stream = unsafe { Stream::from_raw_owned(&context, raw.cast()) }?;
        let made = Handle::of(&stream);
        CREATED.lock().push(stream);
        Ok(made)
    })?;
    made.give(py)
}

/// Destroys a stream that `stream_create` created. The stream must not be used afterwards. Work already submitted to
/// the stream continues.
#[pyfunction]
#[pyo3(signature = (stream, device=DeviceId::Current),
    text_signature = "(stream, device=None)")]
pub(crate) fn stream_destroy(py: Python<'_>, stream: Whole, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || {
        let (raw, device): (usize, _) = (unsigned("a stream", stream.0)?, self::device(device)?);
        let mut created = CREATED.lock();
        let is_it =
            |stream: &Stream| stream.as_raw().addr() == raw && *stream.context().device() == device;
        let place = created.iter().position(is_it).ok_or_else(|| {
            Fault::value(format!(
                "stream {raw:#x} was not created by stream_create on this device; give a result of stream_create, and \
                 drop the objects that own other streams"
            ))
        })?;
        let destroyed = created.swap_remove(place);
        drop(created);
        drop(destroyed);
        Ok(())
    })
}

fn memory(Whole(address): Whole) -> Result<*mut c_void, Fault> {
    match unsigned("an address", address)? {
        0 => {
            Err(Fault::value("address 0 is not valid; give the address of the memory's first byte"))
        }
        address => Ok(ptr::without_provenance_mut(address)),
    }
}

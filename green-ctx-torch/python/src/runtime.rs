//! What `torch.cuda.cudart()` offers, without the CUDA runtime.

use std::ffi::c_void;
use std::ptr;

use green_ctx::stream::DefaultStream;
use green_ctx_torch::runtime::{self, ErrorCode};
use pyo3::prelude::*;

use crate::argument::{DeviceId, Whole};
use crate::device::device;
use crate::fault::{Fault, unsigned};
use crate::gil::blocking;
use crate::partition::Partition;

/// The name of an error code, cudaErrorInvalidValue for 1; None for one that CUDA 13.5 does not have.
#[pyfunction]
pub(crate) fn error_name(code: Whole) -> Option<&'static str> {
    // No code is as large as what stands here for the others.
    ErrorCode(u32::try_from(code.0).unwrap_or(u32::MAX)).name()
}

/// What an error code means, in a few words.
#[pyfunction]
pub(crate) fn error_text(code: Whole) -> &'static str {
    ErrorCode(u32::try_from(code.0).unwrap_or(u32::MAX)).text()
}

/// Has the profiler that the program runs under collect from now on; without one nothing happens.
#[pyfunction]
#[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
pub(crate) fn profiler_start(py: Python<'_>, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || Ok(runtime::profiler_start(&self::device(device)?)?))
}

/// Has the profiler that the program runs under collect no longer.
#[pyfunction]
#[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
pub(crate) fn profiler_stop(py: Python<'_>, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || Ok(runtime::profiler_stop(&self::device(device)?)?))
}

/// The bytes of a device's memory that are free, and that there are.
#[pyfunction]
#[pyo3(signature = (device=DeviceId::Current), text_signature = "(device=None)")]
pub(crate) fn memory_info(py: Python<'_>, device: DeviceId) -> PyResult<(u64, u64)> {
    let device = device.ordinal(py)?;
    let memory = blocking(py, || Ok(runtime::memory_info(&self::device(device)?)?))?;
    Ok((memory.free, memory.total))
}

/// Page-locks memory of the host, which must stay where it is until it is unregistered. The flags are
/// cudaHostRegister's: 1 for all contexts, 2 mapped, 4 of a device, 8 only read.
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
        // SAFETY: the memory is there and stays there, as this function's documentation demands.
        Ok(unsafe { runtime::host_register(&device, begin, bytes, flags) }?)
    })
}

/// Ends what host_register did for an address. No work on a device may use the memory any more.
#[pyfunction]
#[pyo3(signature = (address, device=DeviceId::Current),
    text_signature = "(address, device=None)")]
pub(crate) fn host_unregister(py: Python<'_>, address: Whole, device: DeviceId) -> PyResult<()> {
    let device = device.ordinal(py)?;
    blocking(py, || {
        let (begin, device) = (memory(address)?, self::device(device)?);
        // SAFETY: nothing uses the memory, as this function's documentation demands.
        Ok(unsafe { runtime::host_unregister(&device, begin) }?)
    })
}

/// Makes a stream of a partition, or of a device outside of partitions, and returns its handle, a
/// CUstream. It is the caller's to destroy, before the partition is closed.
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
    blocking(py, move || {
        let stream = match live {
            Some(live) => {
                let own = live.context().device().ordinal();
                if let Some(named) = named.filter(|named| *named != i64::from(own)) {
                    return Err(Fault::value(format!(
                        "device is {named}, and partition {} is of device {own}; leave device out",
                        live.name()
                    )));
                }
                runtime::create_stream(live.context())
            }
            None => runtime::create_stream(&self::device(device)?.primary_context()?),
        }?;
        Ok(stream.addr())
    })
}

/// Destroys a stream that stream_create made, which nothing may use afterwards. What was submitted to
/// it goes on.
#[pyfunction]
#[pyo3(signature = (stream, device=DeviceId::Current),
    text_signature = "(stream, device=None)")]
pub(crate) fn stream_destroy(py: Python<'_>, stream: Whole, device: DeviceId) -> PyResult<()> {
    let Whole(stream) = stream;
    let device = device.ordinal(py)?;
    blocking(py, || {
        let raw: *mut c_void = ptr::without_provenance_mut(unsigned("a stream", stream)?);
        if DefaultStream::from_raw(raw.cast()).is_some() {
            return Err(Fault::value(format!(
                "{stream} is a default stream, which stays; give what stream_create returned"
            )));
        }
        let device = self::device(device)?;
        if device.driver().find_stream(raw.cast()).is_some() {
            return Err(Fault::value(format!(
                "stream {stream:#x} ends with the object that it is of; drop that, or close its \
                 partition"
            )));
        }
        // SAFETY: no object stands for it, and the rest is as this function's documentation demands.
        Ok(unsafe { runtime::destroy_stream(&device, raw) }?)
    })
}

fn memory(Whole(address): Whole) -> Result<*mut c_void, Fault> {
    match unsigned("an address", address)? {
        0 => {
            Err(Fault::value("there is no memory at address 0; give the address of its first byte"))
        }
        address => Ok(ptr::without_provenance_mut(address)),
    }
}

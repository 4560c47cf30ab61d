//! The order of entering, for torch's CUDA sanitizer (`TORCH_CUDA_SANITIZER=1`).
//!
//! The sanitizer follows torch's own events, and the driver's events that entering records are none of them. Where
//! it is enabled, torch's events record the same order once more.

use pyo3::intern;
use pyo3::prelude::*;

use crate::argument::modules;

/// torch's current stream of a device, while the sanitizer is enabled.
pub(crate) fn current_stream(py: Python<'_>, device: u32) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(module) = modules(py)?.get_item(intern!(py, "torch.cuda._sanitizer"))? else {
        return Ok(None);
    };
    if !module.getattr("cuda_sanitizer")?.getattr("enabled")?.is_truthy()? {
        return Ok(None);
    }
    ask(py, device).map(Some)
}

/// Reports that torch's current stream waits for a stream that was current.
pub(crate) fn waits_for(former: Option<Bound<'_, PyAny>>, device: u32) -> PyResult<()> {
    let Some(former) = former else { return Ok(()) };
    let current = ask(former.py(), device)?;
    current.call_method1(intern!(former.py(), "wait_stream"), (former,)).map(drop)
}

fn ask(py: Python<'_>, device: u32) -> PyResult<Bound<'_, PyAny>> {
    let cuda = py.import(intern!(py, "torch.cuda"))?;
    cuda.call_method1(intern!(py, "current_stream"), (device,))
}

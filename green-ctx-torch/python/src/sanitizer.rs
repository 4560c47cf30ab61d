//! The order of entering, for torch's CUDA sanitizer (`TORCH_CUDA_SANITIZER=1`).
//!
//! The sanitizer follows torch's own events, and the driver's events that entering records are none of them. Where
//! it is enabled, torch's events record the same order once more.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::intern;
use pyo3::prelude::*;

use crate::argument::modules;
use crate::code::{Code, import};

/// How many modules were imported when the sanitizer was last found missing. Looking for it each time would take a
/// thirtieth of what entering does.
static WITHOUT: AtomicUsize = AtomicUsize::new(0);

/// torch's current stream of a device, while the sanitizer is enabled.
pub(crate) fn current_stream(py: Python<'_>, device: u32) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = modules(py)?;
    let imported = modules.len();
    if imported == WITHOUT.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let Some(module) = modules.get_item(intern!(py, "torch.cuda._sanitizer"))? else {
        WITHOUT.store(imported, Ordering::Relaxed);
        return Ok(None);
    };
    let sanitizer = module.getattr_opt(intern!(py, "cuda_sanitizer"))?;
    let enabled =
        sanitizer.map(|sanitizer| sanitizer.getattr_opt(intern!(py, "enabled"))).transpose()?;
    let Some(enabled) = enabled.flatten() else {
        import(py, "green_ctx_torch._seams")?.run_method("without_sanitizer", ())?;
        return Ok(None);
    };
    if enabled.is_truthy()? { ask(py, device).map(Some) } else { Ok(None) }
}

/// Reports that torch's current stream waits for a stream that was current.
pub(crate) fn waits_for(former: Option<Bound<'_, PyAny>>, device: u32) -> PyResult<()> {
    let Some(former) = former else { return Ok(()) };
    let current = ask(former.py(), device)?;
    current.run_method(intern!(former.py(), "wait_stream"), (former,)).map(drop)
}

fn ask(py: Python<'_>, device: u32) -> PyResult<Bound<'_, PyAny>> {
    let cuda = import(py, "torch.cuda")?;
    cuda.run_method(intern!(py, "current_stream"), (device,))
}

//! The ordering of work when a partition is entered or left, made visible to torch's CUDA sanitizer
//! (`TORCH_CUDA_SANITIZER=1`).
//!
//! The sanitizer follows torch's own events. Entering a partition records events of the driver, which the sanitizer
//! does not see. If the sanitizer is enabled, this module orders the same work again with torch's events.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::intern;
use pyo3::prelude::*;

use crate::argument::modules;
use crate::code::{Code, import};

/// The number of imported modules at the last look-up that did not find the sanitizer. While this number stays the
/// same, no new look-up is needed. Each look-up takes a thirtieth of the time of entering a partition.
static WITHOUT: AtomicUsize = AtomicUsize::new(0);

/// Returns torch's current stream of a device if the sanitizer is enabled.
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

/// Makes torch's current stream wait for the previously current stream, with torch's own events.
pub(crate) fn waits_for(former: Option<Bound<'_, PyAny>>, device: u32) -> PyResult<()> {
    let Some(former) = former else { return Ok(()) };
    let current = ask(former.py(), device)?;
    current.run_method(intern!(former.py(), "wait_stream"), (former,)).map(drop)
}

fn ask(py: Python<'_>, device: u32) -> PyResult<Bound<'_, PyAny>> {
    let cuda = import(py, "torch.cuda")?;
    cuda.run_method(intern!(py, "current_stream"), (device,))
}

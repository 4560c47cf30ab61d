//! What is asked of PyTorch's Python side, when it is first needed: the module imports without it.

use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx_torch::{Torch, TorchError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::argument::{self, modules};
use crate::code::{Code, import};
use crate::fault::Fault;
use crate::gil::{Held, blocking};
use crate::kept::once;

/// Keeps alive what a torch stream depends on.
#[pyclass(frozen, module = "green_ctx_torch._native")]
struct Owner {
    _kept: Held<green_ctx::Stream>,
}

/// A `torch.cuda.ExternalStream` of a stream, which lives at least as long as that object.
pub(crate) fn external_stream(
    py: Python<'_>,
    raw: usize,
    stream: &green_ctx::Stream,
) -> PyResult<Py<PyAny>> {
    let torch = module(py)?;
    let options = PyDict::new(py);
    options.set_item("device", stream.context().device().ordinal())?;
    let class = torch.getattr("cuda")?.getattr("ExternalStream")?;
    let made = class.run_with((raw,), &options)?;
    // torch owns no external stream, and would use it after its end.
    let owner = Owner { _kept: Held::new(stream.clone()) }.into_pyobject(py)?;
    made.setattr("_green_ctx_owner", owner)?;
    // What torch captures there is to stay there.
    install_captures(py)?;
    Ok(made.unbind())
}

/// libtorch's functions in this process; imports torch where they are not there yet.
pub(crate) fn libtorch(py: Python<'_>) -> PyResult<Torch> {
    if let Some(torch) = Torch::found() {
        install_captures(py)?;
        return Ok(torch);
    }
    let find = || match Torch::find() {
        Ok(torch) => Ok(Some(torch)),
        Err(TorchError::NotLoaded) => Ok(None),
        Err(error) => Err(Fault::from(error)),
    };
    let torch = match blocking(py, find)? {
        Some(torch) => torch,
        None => {
            module(py)?;
            blocking(py, || Ok(Torch::find()?))?
        }
    };
    install_captures(py)?;
    Ok(torch)
}

const CAPTURES_MODULE: &str = "green_ctx_torch._captures";

/// Whether torch's captures are wrapped.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Gives up the graphs of compiled functions that were captured in a context.
pub(crate) fn close_captures(py: Python<'_>, raw_context: usize) {
    // It is loaded. Where it cannot be found any more, the interpreter is ending.
    let Ok(captures) = import(py, CAPTURES_MODULE) else { return };
    if let Err(error) = captures.run_method("close", (raw_context,)) {
        error.write_unraisable(py, None);
    }
}

/// Refuses to enter a partition while torch.export records operations, since the exported program has no block.
pub(crate) fn refuse_export(py: Python<'_>) -> PyResult<()> {
    // The module's names: asking the module takes longer.
    static NAMES: PyOnceLock<Option<Py<PyDict>>> = PyOnceLock::new();
    let find = || {
        let owner = import(py, "green_ctx_torch._seams")?.run_method("exporting", ())?;
        if owner.is_none() {
            return PyResult::Ok(None);
        }
        Ok(Some(owner.getattr("__dict__")?.cast_into::<PyDict>()?.unbind()))
    };
    let Some(names) = once(py, &NAMES, find)? else { return Ok(()) };
    match names.bind(py).get_item(intern!(py, "_is_exporting_flag"))? {
        Some(flag) if flag.is_truthy()? => Err(Fault::state(
            "torch.export records operations and no blocks, so that the exported program would run on all \
             SMs; export the function without the block, and call the exported program in one",
        )
        .into()),
        _ => Ok(()),
    }
}

/// Wraps torch's captures, so that graphs are captured where the thread is. The first call does it.
fn install_captures(py: Python<'_>) -> PyResult<()> {
    if CAPTURES.load(Ordering::Relaxed) {
        return Ok(());
    }
    import(py, CAPTURES_MODULE)?.run_method("install", ())?;
    CAPTURES.store(true, Ordering::Relaxed);
    Ok(())
}

/// Wraps torch's captures where torch is imported: a raw stream that is handed out may be captured next.
pub(crate) fn expect_captures(py: Python<'_>) -> PyResult<()> {
    match CAPTURES.load(Ordering::Relaxed) || argument::torch(py)?.is_none() {
        true => Ok(()),
        false => install_captures(py),
    }
}

/// Frees what torch keeps for streams of partitions that are closed.
pub(crate) fn release_workspaces(py: Python<'_>) -> PyResult<()> {
    if argument::torch(py)?.is_none() {
        return Ok(());
    }
    import(py, "green_ctx_torch._workspaces")?.run_method("release", ()).map(drop)
}

fn module(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    import_or(py, "use the raw stream, which is there without")
}

/// torch, or an error that says what to do instead of installing it.
pub(crate) fn import_or<'py>(py: Python<'py>, instead: &str) -> PyResult<Bound<'py, PyAny>> {
    // The import statement's machinery takes longer than all else that a stream costs.
    if let Some(torch) = modules(py)?.get_item(intern!(py, "torch"))?
        && !torch.is_none()
    {
        return Ok(torch);
    }
    import(py, "green_ctx_torch._seams")?.run_method("import_torch", (instead,))
}

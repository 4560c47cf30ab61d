//! The functions of PyTorch's Python API that this crate uses. These functions import torch only when torch is
//! needed.

use std::sync::atomic::{AtomicBool, Ordering};

use green_ctx::{Stream, StreamOptions, context::Context};
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

/// Keeps the stream of a torch stream object alive.
#[pyclass(frozen, module = "green_ctx_torch._native")]
struct Owner {
    _kept: Held<Stream>,
}

/// The driver's handle of a stream, for Python code. It is read without the GIL, because the read adds the handle to a
/// locked registry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) fn of(stream: &Stream) -> Handle {
        Handle(stream.as_raw().addr())
    }

    /// Creates a stream whose handle stays valid for the rest of the process, so that torch can use it at any time.
    pub(crate) fn create(
        context: &Context,
        options: StreamOptions,
    ) -> Result<(Held<Stream>, Handle), Fault> {
        let stream = context.create_stream(options)?;
        stream.keep_alive()?;
        let raw = Handle::of(&stream);
        Ok((Held::new(stream), raw))
    }

    /// Returns a number that identifies the stream. Only [`give`](Handle::give) returns the handle to Python code.
    pub(crate) fn key(self) -> usize {
        self.0
    }

    /// Returns the address. The caller may capture and replay graphs on the stream next, so this first wraps torch's
    /// capture functions, if torch is imported.
    pub(crate) fn give(self, py: Python<'_>) -> PyResult<usize> {
        if !CAPTURES.load(Ordering::Relaxed) && argument::torch(py)?.is_some() {
            install_captures(py)?;
        }
        Ok(self.0)
    }
}

/// Returns a `torch.cuda.ExternalStream` for a stream. The stream lives at least as long as the returned object.
pub(crate) fn external_stream(py: Python<'_>, raw: Handle, stream: &Stream) -> PyResult<Py<PyAny>> {
    let options = PyDict::new(py);
    options.set_item("device", stream.context().device().ordinal())?;
    let class = module(py)?.getattr("cuda")?.getattr("ExternalStream")?;
    let made = class.run_with((raw.give(py)?,), &options)?;
    // torch does not own external streams, and would use this one after its end.
    let owner = Owner { _kept: Held::new(stream.clone()) }.into_pyobject(py)?;
    made.setattr("_green_ctx_owner", owner)?;
    Ok(made.unbind())
}

/// Returns the functions of the libtorch that this process has loaded. Imports torch if it is not loaded.
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

/// Whether torch's capture functions are wrapped.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Releases the graphs that functions compiled with torch.compile captured in a context.
pub(crate) fn close_captures(py: Python<'_>, raw_context: usize) {
    // The module is loaded. If it cannot be found, the interpreter is shutting down.
    let Ok(captures) = import(py, CAPTURES_MODULE) else { return };
    if let Err(error) = captures.run_method("close", (raw_context,)) {
        error.write_unraisable(py, None);
    }
}

/// Refuses to enter a partition while torch.export records operations, because the exported program would not
/// contain the block.
pub(crate) fn refuse_export(py: Python<'_>) -> PyResult<()> {
    // The module's `__dict__`, because looking up an attribute of the module takes longer.
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
            "torch.export records operations but no `with` blocks, so the exported program would run on all \
             SMs; export the function without the block, and call the exported program inside one",
        )
        .into()),
        _ => Ok(()),
    }
}

/// Wraps torch's capture functions on the first call. The wrapped functions capture a graph in the partition that the
/// capturing thread is in.
fn install_captures(py: Python<'_>) -> PyResult<()> {
    if CAPTURES.load(Ordering::Relaxed) {
        return Ok(());
    }
    import(py, CAPTURES_MODULE)?.run_method("install", ())?;
    CAPTURES.store(true, Ordering::Relaxed);
    Ok(())
}

/// Frees the workspaces that torch keeps for streams of closed partitions.
pub(crate) fn release_workspaces(py: Python<'_>) -> PyResult<()> {
    if argument::torch(py)?.is_none() {
        return Ok(());
    }
    import(py, "green_ctx_torch._workspaces")?.run_method("release", ()).map(drop)
}

fn module(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    import_or(py, "use the raw stream, which works without torch")
}

/// Returns the torch module. If torch is not installed, the error advises the caller to install torch, or to do
/// `instead`.
pub(crate) fn import_or<'py>(py: Python<'py>, instead: &str) -> PyResult<Bound<'py, PyAny>> {
    // An import statement takes longer than everything else in creating a stream.
    if let Some(torch) = modules(py)?.get_item(intern!(py, "torch"))?
        && !torch.is_none()
    {
        return Ok(torch);
    }
    import(py, "green_ctx_torch._seams")?.run_method("import_torch", (instead,))
}

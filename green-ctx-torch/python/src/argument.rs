//! Arguments from Python: whole numbers, names, pairs and devices.

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

use crate::code::{Code, import};
use crate::device;
use crate::fault::{Fault, kind};
use crate::kept::once;

/// An integer argument. An integer outside the range of `i64` becomes `i64::MIN` or `i64::MAX`, which every range
/// check rejects.
#[derive(Clone, Copy)]
pub(crate) struct Whole(pub(crate) i64);

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Whole> {
        if object.is_exact_instance_of::<PyInt>()
            && let Ok(whole) = object.extract()
        {
            return Ok(Whole(whole));
        }
        let wrong = || {
            let kind = object.get_type();
            let kind = kind.name().map_or_else(|_| kind.to_string(), |name| name.to_string());
            PyTypeError::new_err(format!("expected a whole number such as 16, got {kind}"))
        };
        let whole = index(&object, wrong)?;
        match whole.extract() {
            Ok(whole) => Ok(Whole(whole)),
            Err(_) if whole.lt(0)? => Ok(Whole(i64::MIN)),
            Err(_) => Ok(Whole(i64::MAX)),
        }
    }
}

/// Converts an object to a Python int by calling its method `__index__`. NumPy integers have this method too. Returns
/// the error `wrong` for a `bool`, and for an object without `__index__`.
pub(crate) fn index<'py>(
    object: &Bound<'py, PyAny>,
    wrong: impl Fn() -> PyErr,
) -> PyResult<Bound<'py, PyAny>> {
    if object.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    // An interrupt, for example, does not mean that the type is wrong.
    let whole = object
        .run_method("__index__", ())
        .map_err(|error| or_passed(object.py(), error, &wrong))?;
    if whole.is_instance_of::<PyInt>() { Ok(whole) } else { Err(wrong()) }
}

/// Selects the exception to raise after the Python code of an argument raised `error`. For an ordinary exception, the
/// result is `wrong`. For an interrupt, or another `BaseException` that is not an `Exception`, the result is `error`
/// itself.
pub(crate) fn or_passed(py: Python<'_>, error: PyErr, wrong: impl FnOnce() -> PyErr) -> PyErr {
    if error.is_instance_of::<PyException>(py) { wrong() } else { error }
}

/// Returns the beginning of a value's `repr` for messages, or `...` if `repr` raises an exception.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> PyResult<String> {
    /// The maximum length in characters.
    const SHOWN: usize = 60;
    let value = match object.repr() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(error) if error.is_instance_of::<PyException>(object.py()) => "...".to_owned(),
        Err(error) => return Err(error),
    };
    Ok(match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value,
    })
}

/// A text argument that must be one of a few words. Text that is not valid Unicode equals none of these words.
pub(crate) struct Word(pub(crate) String);

impl FromPyObject<'_, '_> for Word {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Word> {
        match object.cast::<PyString>() {
            Ok(text) => Ok(Word(text.to_string_lossy().into_owned())),
            Err(_) => Err(unexpected(&object, "expected a str")),
        }
    }
}

/// Reads the name of a partition, plan or job: non-empty Unicode text without NUL characters, because a NUL ends a C
/// string.
pub(crate) fn name(of: &str, object: &Bound<'_, PyAny>) -> PyResult<String> {
    let Ok(text) = object.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!(
            "the name of a {of} must be a str such as \"decode\", but {} is of type {}",
            shown(object)?,
            kind(object)
        )));
    };
    let wrong = match text.to_str() {
        Err(_) => "is not valid Unicode",
        Ok("") => "is empty",
        Ok(known) if known.contains('\0') => "contains a NUL character",
        Ok(known) => return Ok(known.to_owned()),
    };
    let reason = format!("the name {} of a {of} {wrong}; use one such as \"decode\"", text.repr()?);
    Err(Fault::value(reason).into())
}

/// Reads the items of a mapping, or pairs in a form that `dict` accepts. `expected` is the beginning of the error
/// message, such as `partition takes names and SMs, as in partition({"decode": 16})`.
pub(crate) fn pairs<'py>(
    object: &Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let wrong = || unexpected(object, expected);
    if object.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    let items = match object.hasattr("items")? {
        true => object.run_method("items", ())?,
        false => object.clone(),
    };
    let mut all = Vec::new();
    let py = object.py();
    for pair in items.try_iter().map_err(|error| or_passed(py, error, wrong))? {
        let pair = pair?;
        if pair.is_instance_of::<PyString>() {
            return Err(wrong());
        }
        let both = pair.try_iter().map_err(|error| or_passed(py, error, wrong))?;
        // The iterator may be endless.
        let both = both.take(3).collect::<PyResult<Vec<_>>>()?;
        let both: [_; 2] = both.try_into().map_err(|_| wrong())?;
        all.push(both.into());
    }
    Ok(all)
}

/// Returns a `TypeError` that states what is expected and what the caller passed.
pub(crate) fn unexpected(object: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    if object.is_none() {
        return PyTypeError::new_err(format!("{expected}, got None"));
    }
    match shown(object) {
        Ok(value) => PyTypeError::new_err(format!("{expected}, got the {} {value}", kind(object))),
        Err(raised) => raised,
    }
}

/// A device argument: a number, `"cuda:1"`, a `torch.device`, or None for the current device.
#[derive(Clone, Copy)]
pub(crate) enum DeviceId {
    /// torch's current device. The current device is 0 if torch is not imported or has not initialised CUDA, because
    /// changing torch's device initialises CUDA.
    Current,
    Ordinal(i64),
}

impl DeviceId {
    pub(crate) fn ordinal(self, py: Python<'_>) -> PyResult<i64> {
        let DeviceId::Ordinal(ordinal) = self else { return current(py) };
        Ok(ordinal)
    }

    /// Parses `cuda` or `cuda:1`.
    fn read(text: &str) -> Option<DeviceId> {
        match text.strip_prefix("cuda")?.strip_prefix(':') {
            None if text == "cuda" => Some(DeviceId::Current),
            Some(ordinal) if ordinal.bytes().all(|byte| byte.is_ascii_digit()) => {
                ordinal.parse().ok().map(DeviceId::Ordinal)
            }
            _ => None,
        }
    }
}

/// Returns the ordinal of torch's current device.
fn current(py: Python<'_>) -> PyResult<i64> {
    if device::is_single() {
        return Ok(0);
    }
    // torch does not return to the state before CUDA was initialised, so its function can be kept.
    static ASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(ask) = ASK.get(py) {
        return ask.bind(py).run(())?.extract();
    }
    let Some(torch) = torch(py)? else { return Ok(0) };
    let cuda = torch.getattr(intern!(py, "cuda"))?;
    if !cuda.run_method(intern!(py, "is_initialized"), ())?.is_truthy()? {
        return Ok(0);
    }
    // `current_device` calls this function. Calling it directly avoids checks that take longer than everything else
    // here.
    let native = torch.getattr_opt(intern!(py, "_C"))?;
    let native =
        native.map(|native| native.getattr_opt(intern!(py, "_cuda_getDevice"))).transpose()?;
    let Some(ask) = native.flatten() else {
        return cuda.run_method(intern!(py, "current_device"), ())?.extract();
    };
    let device = ask.run(())?.extract()?;
    let _first = ASK.set(py, ask.unbind());
    Ok(device)
}

/// Returns torch if the program has imported it. Also returns `None` while the import is still running, because
/// torch's modules are incomplete until it ends.
pub(crate) fn torch(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let torch = modules(py)?.get_item(intern!(py, "torch"))?;
    let Some(torch) = torch.filter(|torch| !torch.is_none()) else { return Ok(None) };
    let spec = torch.getattr_opt(intern!(py, "__spec__"))?;
    let importing = spec.map(|spec| spec.getattr_opt(intern!(py, "_initializing"))).transpose()?;
    let is_there = match importing.flatten() {
        Some(importing) if importing.is_truthy()? => false,
        _ => torch.hasattr(intern!(py, "cuda"))?,
    };
    Ok(is_there.then_some(torch))
}

/// Returns `sys.modules`.
pub(crate) fn modules(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = once(py, &MODULES, || {
        let modules = import(py, "sys")?.getattr(intern!(py, "modules"))?;
        Ok(modules.cast_into::<PyDict>()?.unbind())
    })?;
    Ok(modules.bind(py))
}

impl<'py> FromPyObject<'_, 'py> for DeviceId {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<DeviceId> {
        if object.is_none() {
            return Ok(DeviceId::Current);
        }
        if object.is_exact_instance_of::<PyInt>() {
            return Ok(DeviceId::Ordinal(object.extract::<Whole>()?.0));
        }
        let ordinal = |object: &Bound<'_, PyAny>| {
            const EXPECTED: &str =
                "a device must be a whole number such as 1, \"cuda:1\" or torch.device(\"cuda:1\")";
            let whole = index(object, || unexpected(object, EXPECTED))?;
            Ok(DeviceId::Ordinal(whole.extract::<Whole>()?.0))
        };
        let none = |text: &str| {
            let text = if text.is_empty() { "an empty name" } else { text };
            let known = "use a device such as 1, \"cuda:1\" or torch.device(\"cuda:1\")";
            PyErr::from(Fault::value(format!("{text} is not a CUDA device; {known}")))
        };
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_string_lossy();
            return DeviceId::read(&text).ok_or_else(|| none(&text));
        }
        // A torch.device.
        if object.hasattr("type")? && object.hasattr("index")? {
            let (kind, index) = (object.getattr("type")?.str()?, object.getattr("index")?);
            return match (kind == "cuda", index.is_none()) {
                (false, _) => Err(none(&kind.to_string_lossy())),
                (true, true) => Ok(DeviceId::Current),
                (true, false) => ordinal(&index),
            };
        }
        ordinal(&object)
    }
}

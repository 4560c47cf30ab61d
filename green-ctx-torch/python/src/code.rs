//! Calls of Python code from Rust.
//!
//! When the interpreter ends, Python up to 3.13 ends a daemon thread wherever it next wants the GIL, by
//! `pthread_exit`, which unwinds the thread's stack and aborts the process in Rust code that catches panics. Python
//! code can want the GIL at any of its steps. So a thread that ends in Python code which was called from here stops
//! for good and does not unwind further. From Python 3.14 on all such threads do, and PyO3 does the same where it
//! takes the GIL itself. Clippy refuses PyO3's own ways to call Python (clippy.toml). Python code that an object's end
//! runs, such as the callback of a weak reference, does not come through here; what this module makes has none.
#![allow(unsafe_code, reason = "calls the interpreter so that unwinding can be met")]

use std::hint::black_box;
use std::time::Duration;
use std::{mem, ptr, thread};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{BoundObject, ffi};

type Object = *mut ffi::PyObject;

/// An interpreter's function that unwinds. PyO3 declares that it does not, and a second declaration of the same name
/// would not count: so the compiler must not see which function it is.
macro_rules! unwinding {
    ($function:ident($($kind:ty),*)) => {{
        // SAFETY: an ABI that allows unwinding takes the same arguments in the same way.
        let function = unsafe {
            mem::transmute::<
                unsafe extern "C" fn($($kind),*) -> Object,
                unsafe extern "C-unwind" fn($($kind),*) -> Object,
            >(ffi::$function)
        };
        black_box(function)
    }};
}

/// Stops a thread that unwinds.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
}

/// Stops the thread if the interpreter ends it within `work`, which must not panic.
fn stopping<T>(work: impl FnOnce() -> T) -> T {
    let stop = Stop;
    let result = work();
    mem::forget(stop);
    result
}

/// Calls of Python objects.
pub(crate) trait Code<'py> {
    /// Calls the object.
    fn run<A>(&self, arguments: A) -> PyResult<Bound<'py, PyAny>>
    where
        A: IntoPyObject<'py, Target = PyTuple>;

    /// Calls the object with keywords too.
    fn run_with<A>(&self, arguments: A, named: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>>
    where
        A: IntoPyObject<'py, Target = PyTuple>;

    /// Calls a method.
    fn run_method<N, A>(&self, name: N, arguments: A) -> PyResult<Bound<'py, PyAny>>
    where
        N: IntoPyObject<'py, Target = PyString>,
        A: IntoPyObject<'py, Target = PyTuple>;
}

impl<'py> Code<'py> for Bound<'py, PyAny> {
    fn run<A>(&self, arguments: A) -> PyResult<Bound<'py, PyAny>>
    where
        A: IntoPyObject<'py, Target = PyTuple>,
    {
        call(self, arguments, None)
    }

    fn run_with<A>(&self, arguments: A, named: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>>
    where
        A: IntoPyObject<'py, Target = PyTuple>,
    {
        call(self, arguments, Some(named))
    }

    fn run_method<N, A>(&self, name: N, arguments: A) -> PyResult<Bound<'py, PyAny>>
    where
        N: IntoPyObject<'py, Target = PyString>,
        A: IntoPyObject<'py, Target = PyTuple>,
    {
        call(&self.getattr(name)?, arguments, None)
    }
}

fn call<'py, A>(
    callable: &Bound<'py, PyAny>,
    arguments: A,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>>
where
    A: IntoPyObject<'py, Target = PyTuple>,
{
    let py = callable.py();
    let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
    let arguments = arguments.as_borrowed();
    let callable = callable.as_ptr();
    let result = if named.is_none() && arguments.is_empty() {
        let call = unwinding!(PyObject_CallNoArgs(Object));
        // SAFETY: the object is alive; the GIL is held.
        stopping(|| unsafe { call(callable) })
    } else {
        let named = named.map_or(ptr::null_mut(), Bound::as_ptr);
        let call = unwinding!(PyObject_Call(Object, Object, Object));
        // SAFETY: the objects are alive, the second is a tuple and the third a dictionary or null; the GIL is held.
        stopping(|| unsafe { call(callable, arguments.as_ptr(), named) })
    };
    // SAFETY: the result is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, result) }
}

/// The module of a name, imported where it was not.
pub(crate) fn import<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let name = PyString::intern(py, name);
    let import = unwinding!(PyImport_Import(Object));
    // SAFETY: the name is a string; the GIL is held.
    let result = stopping(|| unsafe { import(name.as_ptr()) });
    // SAFETY: the result is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, result) }
}

//! Calls of Python code from Rust.
//!
//! Up to Python 3.13, an interpreter that shuts down ends every daemon thread when the thread next takes the GIL. The
//! interpreter calls `pthread_exit`, which unwinds the thread's stack. Rust code that catches panics then aborts the
//! process. Python code can take the GIL at any point. Therefore this module stops the unwinding: if the interpreter
//! ends a thread inside Python code called from this module, the thread sleeps forever. From Python 3.14 on, the
//! interpreter itself puts such threads to sleep. PyO3 does the same with a thread that takes the GIL through PyO3.
//!
//! The configuration of Clippy (clippy.toml) forbids PyO3's own functions for calling Python code. Python code that
//! runs when an object is dropped, such as the callback of a weak reference, is not called through this module.
//! Dropping an object of this crate runs no Python code.
#![allow(unsafe_code, reason = "calls the interpreter through functions that may unwind")]

use std::hint::black_box;
use std::time::Duration;
use std::{mem, ptr, thread};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{BoundObject, ffi};

type Object = *mut ffi::PyObject;

/// Returns a C function of the interpreter, with a type that allows the function to unwind. PyO3 declares the
/// function as one that does not unwind, and a second declaration of the same name would have no effect. Therefore
/// `black_box` hides from the compiler which function is called.
macro_rules! unwinding {
    ($function:ident($($kind:ty),*)) => {{
        // SAFETY: both ABIs pass arguments and results in the same way. `C-unwind` only adds that the function may
        // unwind.
        let function = unsafe {
            mem::transmute::<
                unsafe extern "C" fn($($kind),*) -> Object,
                unsafe extern "C-unwind" fn($($kind),*) -> Object,
            >(ffi::$function)
        };
        black_box(function)
    }};
}

/// A value that puts the thread to sleep forever when it is dropped. [`stopping`] lets the drop happen only while the
/// thread unwinds.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
}

/// Runs `work`, which must not panic. If the interpreter ends the thread inside `work`, the thread sleeps forever.
fn stopping<T>(work: impl FnOnce() -> T) -> T {
    let stop = Stop;
    let result = work();
    mem::forget(stop);
    result
}

/// Ways to call a Python object.
pub(crate) trait Code<'py> {
    /// Calls the object.
    fn run<A>(&self, arguments: A) -> PyResult<Bound<'py, PyAny>>
    where
        A: IntoPyObject<'py, Target = PyTuple>;

    /// Calls the object with keyword arguments.
    fn run_with<A>(&self, arguments: A, named: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>>
    where
        A: IntoPyObject<'py, Target = PyTuple>;

    /// Calls a method of the object.
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
        // SAFETY: `callable` comes from a live `Bound` of the caller, which also proves that the GIL is held.
        stopping(|| unsafe { call(callable) })
    } else {
        let named = named.map_or(ptr::null_mut(), Bound::as_ptr);
        let call = unwinding!(PyObject_Call(Object, Object, Object));
        // SAFETY: all pointers come from live `Bound`s, which also prove that the GIL is held. `arguments` is a
        // tuple, and `named` a dictionary or null, as `PyObject_Call` requires.
        stopping(|| unsafe { call(callable, arguments.as_ptr(), named) })
    };
    // SAFETY: both calls return a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, result) }
}

/// Returns the frame of the Python function that calls this module, if there is one.
pub(crate) fn frame(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: `py` proves that the GIL is held.
    let frame = unsafe { ffi::PyEval_GetFrame() };
    // SAFETY: the function returns a borrowed reference, or null without an exception.
    unsafe { Bound::from_borrowed_ptr_or_opt(py, frame.cast()) }
}

/// Imports the module with this name, and returns it.
pub(crate) fn import<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let name = PyString::intern(py, name);
    let import = unwinding!(PyImport_Import(Object));
    // SAFETY: `name` is a live string object, and `py` proves that the GIL is held.
    let result = stopping(|| unsafe { import(name.as_ptr()) });
    // SAFETY: `PyImport_Import` returns a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, result) }
}

//! Mappings from names to Python objects, with the methods of `collections.abc.Mapping`.

use crate::code::import;
use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyMapping};

/// Objects of one kind by name, in the order of the request.
pub(crate) struct Named {
    /// The word that messages use for one object, such as `partition`.
    kind: &'static str,
    objects: Py<PyDict>,
}

impl Named {
    pub(crate) fn new(kind: &'static str, objects: Bound<'_, PyDict>) -> Named {
        Named { kind, objects: objects.unbind() }
    }

    /// Returns the dictionary.
    pub(crate) fn objects<'py>(&self, py: Python<'py>) -> &Bound<'py, PyDict> {
        self.objects.bind(py)
    }

    /// Returns the dictionary, for the garbage collector.
    pub(crate) fn as_py(&self) -> &Py<PyDict> {
        &self.objects
    }

    /// Returns the names, separated by commas.
    pub(crate) fn names(&self, py: Python<'_>) -> String {
        let names = self.objects(py).keys();
        names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn item(&self, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = name.py();
        if let Some(found) = self.objects(py).get_item(name)? {
            return Ok(found.unbind());
        }
        let (kind, names) = (self.kind, self.names(py));
        let reason = format!("there is no {kind} {}; the {kind}s are {names}", name.str()?);
        Err(PyKeyError::new_err(reason))
    }

    pub(crate) fn len(&self, py: Python<'_>) -> usize {
        self.objects(py).len()
    }

    pub(crate) fn iter<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.objects(py).try_iter()
    }
}

/// Makes a class with `__getitem__`, `__len__` and `__iter__` a mapping, with the other methods of
/// `collections.abc.Mapping`.
pub(crate) fn make_mapping<T: PyTypeInfo>(py: Python<'_>) -> PyResult<()> {
    let mapping = import(py, "collections.abc")?.getattr("Mapping")?;
    for method in ["__contains__", "get", "items", "keys", "values"] {
        py.get_type::<T>().setattr(method, mapping.getattr(method)?)?;
    }
    PyMapping::register::<T>(py)
}

/// Returns the error for copying or pickling an object that owns driver handles. The message ends with `instead`,
/// which suggests an alternative to the caller.
pub(crate) fn not_copied(what: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{what} cannot be copied or pickled, because it belongs to this process and its driver; {instead}"
    ))
}

/// The prefix of the name under which a plan set holds its SMs.
const SET: &str = "PlanSet of ";

/// Returns the name under which a plan set holds its SMs. This name lists the partitions of the set.
pub(crate) fn set_name(partitions: impl Iterator<Item = String>) -> String {
    let mut names = Vec::new();
    for name in partitions {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    format!("{SET}{}", names.join(", "))
}

/// Returns whether the holder of SMs with this name is a plan set.
pub(crate) fn is_set(holder: &str) -> bool {
    holder.starts_with(SET)
}

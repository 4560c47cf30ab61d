//! Python objects by name, with what `collections.abc.Mapping` has.

use crate::code::Code;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};

/// Objects of one kind by name, in the order in which they were asked for.
pub(crate) struct Named {
    /// What an object is called in messages.
    kind: &'static str,
    objects: Py<PyDict>,
}

impl Named {
    pub(crate) fn new(kind: &'static str, objects: Bound<'_, PyDict>) -> Named {
        Named { kind, objects: objects.unbind() }
    }

    /// The dictionary itself.
    pub(crate) fn objects<'py>(&self, py: Python<'py>) -> &Bound<'py, PyDict> {
        self.objects.bind(py)
    }

    /// The dictionary, for the garbage collector.
    pub(crate) fn as_py(&self) -> &Py<PyDict> {
        &self.objects
    }

    /// The names in a sentence.
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
        let reason = format!("there is no {kind} {}; there are {names}", name.str()?);
        Err(PyKeyError::new_err(reason))
    }

    pub(crate) fn get(
        &self,
        name: &Bound<'_, PyAny>,
        default: Option<Py<PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.objects(name.py()).get_item(name)?.map(Bound::unbind).or(default))
    }

    pub(crate) fn len(&self, py: Python<'_>) -> usize {
        self.objects(py).len()
    }

    pub(crate) fn iter<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.objects(py).try_iter()
    }

    pub(crate) fn contains(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.objects(name.py()).contains(name)
    }

    /// A view of the dictionary, by the name of the method that makes it.
    pub(crate) fn view<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyAny>> {
        self.objects(py).run_method(method, ())
    }
}

/// The error for copying or pickling what holds something of the driver's; it says what to do instead.
pub(crate) fn not_copied(what: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{what} cannot be copied or pickled, since it is of this process and its driver; {instead}"
    ))
}

/// The start of the name of the SMs of each set of plans.
const SET: &str = "PlanSet of ";

/// The name of a set's SMs in messages, made of the names that the program gave to the partitions.
pub(crate) fn set_name(partitions: impl Iterator<Item = String>) -> String {
    let mut names = Vec::new();
    for name in partitions {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    format!("{SET}{}", names.join(", "))
}

/// Whether a holder of SMs is a set of plans.
pub(crate) fn is_set(holder: &str) -> bool {
    holder.starts_with(SET)
}

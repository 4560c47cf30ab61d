//! `{"decode": 16, "prefill": "rest"}`: which partitions there are to be.

use green_ctx::{SplitRequest, resource::Granularity};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::argument;
use crate::fault::{Fault, kind};

/// What stands for all SMs that the others leave.
const REST: &str = "rest";

/// Names and how many SMs each is to have, in the order given.
pub(crate) struct Division {
    groups: Vec<(String, Count)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    Sms(u32),
    Rest,
}

impl Division {
    /// Reads a mapping, or pairs as `dict` takes them.
    pub(crate) fn read(division: &Bound<'_, PyAny>) -> PyResult<Division> {
        const EXPECTED: &str =
            "a division names its partitions, as in {\"decode\": 16, \"prefill\": \"rest\"}";
        let mut groups: Vec<(String, Count)> = Vec::new();
        for (name, count) in argument::pairs(division, EXPECTED)? {
            let name = argument::name("partition", &name)?;
            if groups.iter().any(|(known, _)| *known == name) {
                return Err(Fault::value(format!("two partitions are named {name}")).into());
            }
            let count = Count::read(&name, &count)?;
            let rest = groups.iter().find(|(_, known)| count == Count::Rest && *known == count);
            if let Some((first, _)) = rest {
                let reason = format!("both {first} and {name} ask for the rest; one can have it");
                return Err(Fault::value(reason).into());
            }
            groups.push((name, count));
        }
        Ok(Division { groups })
    }

    /// As the library asks for it.
    pub(crate) fn request(&self, fine: bool) -> SplitRequest {
        let granularity = if fine { Granularity::Fine } else { Granularity::Coarse };
        let request = SplitRequest::new().granularity(granularity);
        self.groups.iter().fold(request, |request, (name, count)| match count {
            Count::Sms(count) => request.group(name.as_str(), *count),
            Count::Rest => request.rest(name.as_str()),
        })
    }

    /// The name of the partition that takes the rest.
    pub(crate) fn rest(&self) -> Option<&str> {
        let rest = self.groups.iter().find(|(_, count)| *count == Count::Rest);
        rest.map(|(name, _)| name.as_str())
    }

    /// The names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.groups.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Where a name stands.
    pub(crate) fn place(&self, name: &str) -> usize {
        self.groups.iter().position(|(known, _)| known == name).unwrap_or(self.groups.len())
    }
}

impl Count {
    fn read(name: &str, count: &Bound<'_, PyAny>) -> PyResult<Count> {
        if let Ok(text) = count.cast::<PyString>() {
            if text == REST {
                return Ok(Count::Rest);
            }
            let reason = format!(
                "group {name} asks for {}; a count is a number of SMs, or \"rest\" for all that \
                 remain",
                text.repr()?
            );
            return Err(Fault::value(reason).into());
        }
        let whole = || -> PyResult<Bound<'_, PyAny>> {
            if count.is_instance_of::<PyBool>() {
                return Err(PyTypeError::new_err("a bool"));
            }
            // Whatever stands for a whole number does, NumPy's too.
            count.call_method0("__index__")
        };
        let whole = whole().map_err(|_| {
            PyTypeError::new_err(format!(
                "group {name} asks for a {}; a count is a whole number of SMs, or \"rest\"",
                kind(count)
            ))
        })?;
        if let Ok(count) = whole.extract::<u32>() {
            return Ok(Count::Sms(count));
        }
        let wrong = if whole.lt(0)? { "ask for 1 or more" } else { "no device has as many" };
        Err(Fault::value(format!("group {name} asks for {whole} SMs; {wrong}")).into())
    }
}

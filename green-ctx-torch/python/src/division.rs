//! Divisions: the names of partitions and their shares, as in `{"decode": 16, "prefill": "rest"}`.

use green_ctx::{Share, SplitRequest, resource::Granularity};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::argument;
use crate::fault::{Fault, kind};
use crate::share;

/// An example of a division for error messages.
const EXAMPLE: &str = "{\"decode\": 16, \"prefill\": \"rest\"}";

/// Names of partitions with their shares, in the caller's order.
pub(crate) struct Division {
    groups: Vec<(String, Share)>,
}

impl Division {
    /// Reads the division that `function` takes: a mapping, or pairs in a form that `dict` accepts.
    pub(crate) fn of_call(function: &str, division: &Bound<'_, PyAny>) -> PyResult<Division> {
        Division::read(
            division,
            &format!("{function} takes names and SMs, as in {function}({EXAMPLE})"),
        )
    }

    /// Reads the division of the plan with this name.
    pub(crate) fn of_plan(plan: &str, division: &Bound<'_, PyAny>) -> PyResult<Division> {
        Division::read(division, &format!("plan {plan} takes names and SMs, as in {EXAMPLE}"))
    }

    fn read(division: &Bound<'_, PyAny>, expected: &str) -> PyResult<Division> {
        let mut groups: Vec<(String, Share)> = Vec::new();
        let pairs = argument::pairs(division, expected)?;
        if pairs.is_empty() {
            let reason = format!("a split needs at least one group, as in {EXAMPLE}");
            return Err(Fault::value(reason).into());
        }
        for (name, count) in pairs {
            let name = argument::name("partition", &name)?;
            if groups.iter().any(|(known, _)| *known == name) {
                let reason = format!("two partitions are named {name}; give each a different name");
                return Err(Fault::value(reason).into());
            }
            let share = share_of(&name, &count)?;
            let rest = groups.iter().find(|(_, known)| share == Share::REST && *known == share);
            if let Some((first, _)) = rest {
                let reason =
                    format!("both {first} and {name} ask for the rest; only one can have it");
                return Err(Fault::value(reason).into());
            }
            groups.push((name, share));
        }
        Ok(Division { groups })
    }

    /// Converts the division to a request of the `green_ctx` crate.
    pub(crate) fn request(&self, fine: bool) -> SplitRequest {
        let granularity = if fine { Granularity::Fine } else { Granularity::Coarse };
        let request = SplitRequest::new().granularity(granularity);
        self.groups
            .iter()
            .fold(request, |request, (name, share)| request.group(name.as_str(), *share))
    }

    /// Returns the name of the partition that takes the rest.
    pub(crate) fn rest(&self) -> Option<&str> {
        let rest = self.groups.iter().find(|(_, share)| *share == Share::REST);
        rest.map(|(name, _)| name.as_str())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.groups.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the position of a name in the division. The position of an unknown name is after the last one.
    pub(crate) fn place(&self, name: &str) -> usize {
        self.groups.iter().position(|(known, _)| known == name).unwrap_or(self.groups.len())
    }
}

/// Reads a group's share: a count, text such as "32.." or "rest", or a `Share`.
fn share_of(name: &str, asked: &Bound<'_, PyAny>) -> PyResult<Share> {
    if let Ok(share) = asked.cast::<share::Share>() {
        return Ok(share.get().0);
    }
    if let Ok(text) = asked.cast::<PyString>() {
        let share = share::Share::parse(&text.to_string_lossy());
        return Ok(share.map_err(|error| Fault::value(format!("group {name}: {error}")))?.0);
    }
    let whole = argument::index(asked, || {
        PyTypeError::new_err(format!(
            "group {name} has a value of type {}; ask for a whole number of SMs, a share such as \
             \"32..\" or \"..100\", or \"rest\"",
            kind(asked)
        ))
    })?;
    if let Ok(count) = whole.extract::<u32>() {
        return Ok(Share::from(count));
    }
    let wrong = match whole.lt(0)? {
        true => "ask for 1 or more",
        false => "no device has that many, so ask for fewer",
    };
    let whole = argument::shown(&whole)?;
    Err(Fault::value(format!("group {name} asks for {whole} SMs; {wrong}")).into())
}

//! Jobs and requests of the tuner, as Python code describes them.

use std::collections::BTreeMap;
use std::time::Duration;

use green_ctx_tune::{ArmKind, Arrival, Goal, Profile, RequestError};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::argument::{self, or_passed, unexpected};
use crate::fault::Fault;

/// The name, the arrival and the key of a job.
pub(crate) type Described<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Reads a job without its work.
pub(crate) fn profile((name, arrival, key): &Described<'_>) -> PyResult<Profile> {
    let name = argument::name("job", name)?;
    let wrong = |error: &dyn std::fmt::Display| Fault::value(format!("{name}: {error}"));
    let arrival = match arrival.cast::<PyString>() {
        _ if arrival.is_none() => None,
        Ok(text) => Some(text.to_string_lossy().parse().map_err(|error| wrong(&error))?),
        Err(_) => {
            let expected = || {
                let known =
                    "must be text such as \"closed:2\", or a list of seconds, such as [0.0, 0.5]";
                unexpected(arrival, &format!("the arrival of {name} {known}"))
            };
            let moments = arrival
                .try_iter()
                .map_err(|error| or_passed(arrival.py(), error, expected))?
                .map(|moment| number(&moment?, expected))
                .collect::<PyResult<Vec<f64>>>()?;
            Some(Arrival::trace(moments).map_err(|error| wrong(&error))?)
        }
    };
    let Ok(key) = key.cast::<PyString>() else {
        let expected = format!("the key of {name} must be text, such as a model and a batch size");
        return Err(unexpected(key, &expected));
    };
    let profile = Profile::new(name).key(key.to_string_lossy());
    Ok(arrival.into_iter().fold(profile, Profile::arrival))
}

/// Reads a goal as text, and the weights of jobs.
pub(crate) fn goal(text: &Bound<'_, PyAny>, weights: Option<&Bound<'_, PyAny>>) -> PyResult<Goal> {
    let Ok(name) = text.cast::<PyString>() else {
        return Err(unexpected(text, "a goal must be text, such as \"throughput\""));
    };
    let goal: Goal = name
        .to_string_lossy()
        .parse()
        .map_err(|error: RequestError| Fault::value(error.to_string()))?;
    let Some(given) = weights else { return Ok(goal) };
    if !matches!(goal, Goal::Throughput { .. }) {
        let reason =
            format!("weights apply to the goal throughput only; leave them out for {goal}");
        return Err(Fault::value(reason).into());
    }
    const EXPECTED: &str = "weights maps names of jobs to numbers, as in {\"decode\": 2.0}";
    let weights = argument::pairs(given, EXPECTED)?.into_iter().map(|(name, weight)| {
        let weight = number(&weight, || unexpected(&weight, EXPECTED))?;
        Ok((argument::name("job", &name)?, weight))
    });
    // Sorted by name, so that files do not depend on the order in the program.
    let weights: BTreeMap<String, f64> = weights.collect::<PyResult<_>>()?;
    Ok(Goal::Throughput { weights: weights.into_iter().collect() })
}

/// Reads a number. An integer that no float can represent becomes infinity.
fn number(object: &Bound<'_, PyAny>, wrong: impl FnOnce() -> PyErr) -> PyResult<f64> {
    match object.extract() {
        Ok(number) => Ok(number),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Ok(f64::INFINITY),
        Err(error) => Err(or_passed(object.py(), error, wrong)),
    }
}

/// Reads a budget in seconds.
pub(crate) fn seconds(budget: &Bound<'_, PyAny>) -> PyResult<Duration> {
    const EXPECTED: &str = "a budget must be a number of seconds, such as 10";
    let seconds = number(budget, || unexpected(budget, EXPECTED))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(budget) if !budget.is_zero() => Ok(budget),
        _ => {
            let reason =
                format!("a budget of {seconds} s cannot be used; give seconds, such as 10");
            Err(Fault::value(reason).into())
        }
    }
}

/// Reads the name of a kind of arm, or several names.
pub(crate) fn kinds(names: &Bound<'_, PyAny>) -> PyResult<Vec<ArmKind>> {
    let known = || ArmKind::ALL.map(ArmKind::as_str).join(", ");
    let expected = || {
        let example = "leave_out lists kinds of arms, as in [\"sequential\"]";
        unexpected(names, &format!("{example}; the kinds are {}", known()))
    };
    let kind = |name: &Bound<'_, PyAny>| -> PyResult<ArmKind> {
        let Ok(text) = name.cast::<PyString>() else { return Err(expected()) };
        text.to_string_lossy()
            .parse()
            .map_err(|error: RequestError| Fault::value(error.to_string()).into())
    };
    if names.is_instance_of::<PyString>() {
        return Ok(vec![kind(names)?]);
    }
    let names = names.try_iter().map_err(|error| or_passed(names.py(), error, expected))?;
    names.map(|name| kind(&name?)).collect()
}

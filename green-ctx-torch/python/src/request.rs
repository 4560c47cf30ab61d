//! The arguments of `partition` and `dry_run`: a division, and options for each partition.

use green_ctx::resource::{self, LocalityDomain, PerGroup};
use green_ctx::{Device, SplitRequest};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::argument::{self, Whole, unexpected};
use crate::division::Division;
use crate::fault::{Fault, unsigned};
use crate::workqueue::Workqueue;

/// The keyword arguments. Each argument except `fine` is one value for all partitions, or a mapping from names to
/// values.
pub(crate) struct Keywords<'a, 'py> {
    pub(crate) fine: bool,
    pub(crate) coscheduled: Option<&'a Bound<'py, PyAny>>,
    pub(crate) preferred_coscheduled: Option<&'a Bound<'py, PyAny>>,
    pub(crate) backfill: Option<&'a Bound<'py, PyAny>>,
    pub(crate) locality_domain: Option<&'a Bound<'py, PyAny>>,
    pub(crate) supplemental: Option<&'a Bound<'py, PyAny>>,
    pub(crate) workqueue: Option<&'a Bound<'py, PyAny>>,
    pub(crate) priority: Option<&'a Bound<'py, PyAny>>,
}

/// A division, and the options of each partition.
pub(crate) struct Request {
    pub(crate) division: Division,
    split: SplitRequest,
    workqueues: Option<Values<Workqueue>>,
    priorities: Option<Values<i32>>,
}

impl Request {
    /// Reads the arguments of the function with this name.
    pub(crate) fn read(
        function: &str,
        division: &Bound<'_, PyAny>,
        keywords: &Keywords<'_, '_>,
    ) -> PyResult<Request> {
        let division = Division::of_call(function, division)?;
        let mut split = division.request(keywords.fine);
        let mut structured = None;
        if let Some(given) = keywords.coscheduled {
            let counts =
                Values::read("coscheduled", &division, given, |one| count("coscheduled", one))?;
            split = split.coscheduled(counts.per_group("coscheduled", &division, Some(0))?);
            structured = Some("coscheduled");
        }
        if let Some(given) = keywords.preferred_coscheduled {
            let what = "preferred_coscheduled";
            let counts = Values::read(what, &division, given, |one| count(what, one))?;
            split = split.preferred_coscheduled(counts.per_group(what, &division, Some(0))?);
            structured = Some(what);
        }
        if let Some(given) = keywords.backfill {
            let flags = Values::read("backfill", &division, given, |one| flag("backfill", one))?;
            split = split.backfill(flags.per_group("backfill", &division, Some(false))?);
            structured = Some("backfill");
        }
        if let Some(given) = keywords.locality_domain {
            let domains = Values::read("locality_domain", &division, given, domain)?;
            split = split.locality_domain(domains.per_group("locality_domain", &division, None)?);
            structured = Some("locality_domain");
        }
        if let Some(given) = keywords.supplemental {
            let what = "supplemental";
            let flags = Values::read(what, &division, given, |one| flag(what, one))?;
            split = split.supplemental(flags.per_group(what, &division, Some(false))?);
            structured = Some(what);
        }
        if let (true, Some(what)) = (keywords.fine, structured) {
            let reason = format!(
                "fine cannot be combined with {what}; leave fine out, and use coscheduled to choose how \
                 many SMs are scheduled together"
            );
            return Err(Fault::value(reason).into());
        }
        let workqueues = keywords
            .workqueue
            .map(|given| Values::read("workqueue", &division, given, Workqueue::read));
        let priorities =
            keywords.priority.map(|given| Values::read("priority", &division, given, priority));
        let (workqueues, priorities) = (workqueues.transpose()?, priorities.transpose()?);
        Ok(Request { division, split, workqueues, priorities })
    }

    /// Returns the request in the form that the `green_ctx` crate takes.
    pub(crate) fn split(&self) -> SplitRequest {
        self.split.clone()
    }

    /// Returns the workqueue configurations by partition name. This function is called before any SMs are taken, so
    /// that an invalid configuration fails first.
    pub(crate) fn workqueues(
        &self,
        device: &Device,
    ) -> green_ctx::Result<Vec<(String, resource::Workqueue)>> {
        let Some(workqueues) = &self.workqueues else { return Ok(Vec::new()) };
        let names = self.division.names().into_iter();
        let asked = names.filter_map(|name| workqueues.of(&name).map(|queue| (name, queue)));
        asked.map(|(name, queue)| Ok((name, queue.configure(device)?))).collect()
    }

    /// Returns the priority of a partition's stream.
    pub(crate) fn priority(&self, name: &str) -> i32 {
        self.priorities.as_ref().and_then(|priorities| priorities.of(name)).unwrap_or(0)
    }
}

/// One value for all partitions, or values by name.
enum Values<T> {
    All(T),
    Named(Vec<(String, T)>),
}

impl<T: Copy> Values<T> {
    /// Reads one value, or a mapping from names of the division to values.
    fn read(
        what: &str,
        division: &Division,
        given: &Bound<'_, PyAny>,
        read: impl Fn(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> PyResult<Values<T>> {
        if !given.hasattr("items")? {
            return Ok(Values::All(read(given)?));
        }
        let (names, mut named) = (division.names(), Vec::new());
        let expected = format!("{what} takes one value, or a mapping from names to values");
        for (name, value) in argument::pairs(given, &expected)? {
            let name = argument::name("partition", &name)?;
            if !names.contains(&name) {
                let reason = format!(
                    "{what} names {name}, which the request does not contain; the partitions are {}",
                    names.join(", ")
                );
                return Err(Fault::value(reason).into());
            }
            named.push((name, read(&value)?));
        }
        Ok(Values::Named(named))
    }

    fn of(&self, name: &str) -> Option<T> {
        match self {
            Values::All(value) => Some(*value),
            Values::Named(named) => {
                named.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
            }
        }
    }

    /// Returns the values for a split: one for each group except the rest, which is not a group of the split.
    fn per_group(
        self,
        what: &str,
        division: &Division,
        default: Option<T>,
    ) -> Result<PerGroup<T>, Fault> {
        let named = match &self {
            Values::All(value) => return Ok(PerGroup::from(*value)),
            Values::Named(named) => named,
        };
        if let Some(rest) = division.rest()
            && named.iter().any(|(name, _)| name == rest)
        {
            return Err(Fault::value(format!(
                "{what} cannot be set for {rest}, which takes the SMs that the others leave; ask for a count"
            )));
        }
        let names = division.names().into_iter().filter(|name| Some(&**name) != division.rest());
        let value = |name: String| {
            self.of(&name).or(default).ok_or_else(|| {
                Fault::value(format!(
                    "{what} is given for some partitions but not for {name}; name all partitions"
                ))
            })
        };
        Ok(PerGroup::from(names.map(value).collect::<Result<Vec<T>, _>>()?))
    }
}

fn count(what: &str, given: &Bound<'_, PyAny>) -> PyResult<u32> {
    let expected = format!("{what} must be a number of SMs such as 16, or a mapping by name");
    let whole = argument::index(given, || unexpected(given, &expected))?;
    Ok(unsigned(what, whole.extract::<Whole>()?.0)?)
}

fn flag(what: &str, given: &Bound<'_, PyAny>) -> PyResult<bool> {
    let expected = format!("{what} must be True or False, or a mapping by name");
    given.cast::<PyBool>().map(|flag| flag.is_true()).map_err(|_| unexpected(given, &expected))
}

fn domain(given: &Bound<'_, PyAny>) -> PyResult<LocalityDomain> {
    const EXPECTED: &str =
        "locality_domain must be the number of a domain or \"any\", or a mapping by name";
    if let Ok(text) = given.cast::<PyString>() {
        return match &*text.to_string_lossy() {
            "any" => Ok(LocalityDomain::Any),
            _ => Err(Fault::value(format!("{EXPECTED}, got {}", text.repr()?)).into()),
        };
    }
    let whole = argument::index(given, || unexpected(given, EXPECTED))?;
    Ok(LocalityDomain::Id(unsigned("locality_domain", whole.extract::<Whole>()?.0)?))
}

fn priority(given: &Bound<'_, PyAny>) -> PyResult<i32> {
    const EXPECTED: &str = "priority must be a whole number such as -1, or a mapping by name";
    let Whole(priority) = argument::index(given, || unexpected(given, EXPECTED))?.extract()?;
    Ok(nearest(priority))
}

/// Clamps a priority to the range of `i32`, the type that the driver takes. The driver then clamps the priority to
/// its own range.
pub(crate) fn nearest(priority: i64) -> i32 {
    i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX })
}

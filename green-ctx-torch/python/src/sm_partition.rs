//! The drop-in replacement for `torch.cuda.green_contexts.SMPartition`: a description of SMs that no context has
//! taken.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PySequence, PyString, PyTuple};

use crate::argument::{DeviceId, Whole, index, shown};
use crate::description::{Description, Group};
use crate::fault::Fault;
use crate::gil::blocking;
use crate::locality;

/// Some SMs of a device, described but not reserved. A GreenContext that is created from the description takes the
/// SMs.
///
/// `SMPartition.from_device()` describes all SMs of a device, `split` describes parts of them, and
/// `GreenContext.sm_partition` describes those of a context. Two contexts cannot be open at the same time if both
/// come from the same SMPartition, or if one comes from an SMPartition and the other from a part of it.
#[pyclass(frozen, subclass, weakref, module = "green_ctx_torch.green_contexts")]
pub(crate) struct SMPartition(Arc<Description>);

impl SMPartition {
    pub(crate) fn new(description: Arc<Description>) -> SMPartition {
        SMPartition(description)
    }

    pub(crate) fn description(&self) -> &Arc<Description> {
        &self.0
    }
}

#[pymethods]
impl SMPartition {
    /// Describes all SMs of a device. `device_id=None` selects torch's current device.
    #[staticmethod]
    #[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
    fn from_device(py: Python<'_>, device_id: DeviceId) -> PyResult<SMPartition> {
        let ordinal = device_id.ordinal(py)?;
        blocking(py, move || Ok(SMPartition(Description::of_device(ordinal)?)))
    }

    /// The device's ordinal.
    #[getter]
    fn device_id(&self) -> u32 {
        self.0.device()
    }

    /// The number of SMs.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.0.sm_count()
    }

    /// The number of SMs that are scheduled together, so that clusters fit on them.
    #[getter]
    fn coscheduled_sm_count(&self) -> u32 {
        self.0.coscheduled()
    }

    /// The requested locality domain, or None. Raises RuntimeError if the driver is older than CUDA 13.4.
    #[getter]
    fn locality_domain_id(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        blocking(py, || {
            locality::ensure_known()?;
            Ok(self.0.locality_domain())
        })
    }

    /// Divides the SMs into groups. Returns two values: a tuple of the groups, and the remaining SMs. The second
    /// value is None if no SMs remain.
    ///
    /// Each argument is one value, or a sequence with one value per group. `num_sms` is never rounded. `num_sms=0`
    /// takes as many SMs as can be scheduled together, which is 120 of the 132 SMs of an H200.
    ///
    /// A split by `num_sms` alone needs CUDA 12.5, and on 12.4 equal counts. The other arguments need 13.1, and locality domains
    /// need CUDA 13.4. These other arguments have not run on hardware yet, and apply only to a split of all SMs of a
    /// device. While a context uses a group of such a split, all other contexts of the device must use groups of the
    /// same split.
    ///
    /// Raises ValueError if a value is not a count, a flag or a domain, or if sequences differ in length. Raises
    /// RuntimeError if the device cannot give the groups.
    #[pyo3(signature = (*, num_sms=Argument::default(), coscheduled_sm_count=Argument::default(),
        preferred_coscheduled_sm_count=Argument::default(), backfill=Argument::default(),
        locality_domain_ids=Argument::default()),
        text_signature = "($self, *, num_sms=0, coscheduled_sm_count=0, \
        preferred_coscheduled_sm_count=0, backfill=False, locality_domain_ids=None)")]
    fn split<'py>(
        &self,
        py: Python<'py>,
        num_sms: Argument<'py>,
        coscheduled_sm_count: Argument<'py>,
        preferred_coscheduled_sm_count: Argument<'py>,
        backfill: Argument<'py>,
        locality_domain_ids: Argument<'py>,
    ) -> PyResult<(Bound<'py, PyTuple>, Option<SMPartition>)> {
        let groups = Options {
            num_sms,
            coscheduled_sm_count,
            preferred_coscheduled_sm_count,
            backfill,
            locality_domain_ids,
        }
        .read()?;
        let (groups, rest) = blocking(py, || self.0.split(&groups))?;
        let groups = groups.into_iter().map(|group| SMPartition(group).into_pyobject(py));
        let groups = PyTuple::new(py, groups.collect::<PyResult<Vec<_>>>()?)?;
        Ok((groups, rest.map(SMPartition)))
    }

    fn __repr__(&self) -> String {
        format!("<SMPartition: {} SMs of device {}>", self.0.sm_count(), self.0.device())
    }
}

/// An argument that the caller may leave out. An explicit None counts as a value.
#[derive(Default)]
pub(crate) struct Argument<'py>(Option<Bound<'py, PyAny>>);

impl<'py> FromPyObject<'_, 'py> for Argument<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Argument<'py>> {
        Ok(Argument(Some(object.to_owned())))
    }
}

/// The arguments of a split. Each argument is one value for all groups, or a sequence with one value per group.
pub(crate) struct Options<'py> {
    pub(crate) num_sms: Argument<'py>,
    pub(crate) coscheduled_sm_count: Argument<'py>,
    pub(crate) preferred_coscheduled_sm_count: Argument<'py>,
    pub(crate) backfill: Argument<'py>,
    pub(crate) locality_domain_ids: Argument<'py>,
}

impl Options<'_> {
    /// Reads the requested groups.
    pub(crate) fn read(&self) -> PyResult<Vec<Group>> {
        const DOMAINS: &str = "locality_domain_ids";
        let num_sms = Values::read("num_sms", &self.num_sms, count)?;
        let coscheduled = Values::read("coscheduled_sm_count", &self.coscheduled_sm_count, count)?;
        let preferred = &self.preferred_coscheduled_sm_count;
        let preferred = Values::read("preferred_coscheduled_sm_count", preferred, count)?;
        let backfill = Values::read("backfill", &self.backfill, flag)?;
        let domains = Values::read(DOMAINS, &self.locality_domain_ids, domain)?;
        let lengths = [
            num_sms.len("num_sms"),
            coscheduled.len("coscheduled_sm_count"),
            preferred.len("preferred_coscheduled_sm_count"),
            backfill.len("backfill"),
            domains.len(DOMAINS),
        ];
        let mut lengths = lengths.into_iter().flatten();
        let first = lengths.next();
        if let (Some((what, len)), Some((other, differs))) =
            (first, lengths.find(|(_, len)| first.is_some_and(|(_, first)| first != *len)))
        {
            return Err(Fault::value(format!(
                "{what} is given for {len} groups and {other} for {differs}; give one value for all, or \
                 sequences of the same length"
            ))
            .into());
        }
        let groups = first.map_or(1, |(_, len)| len);
        if groups == 0 {
            let reason = "a split needs at least one group, as in num_sms=(16, 24)";
            return Err(Fault::value(reason).into());
        }
        let group = |place| Group {
            sm_count: num_sms.of(place),
            coscheduled: coscheduled.of(place),
            preferred: preferred.of(place),
            backfill: backfill.of(place),
            locality_domain: domains.of(place),
        };
        let all: Vec<Group> = (0..groups).map(group).collect();
        let takes_rest = |group: &Group| group.sm_count == 0 && group.backfill;
        match all[..groups - 1].iter().position(takes_rest) {
            Some(place) => Err(Fault::value(format!(
                "group {place} takes all remaining SMs, with num_sms=0 and backfill=True, but other groups \
                 follow; put it last, or give it a count"
            ))
            .into()),
            None => Ok(all),
        }
    }
}

/// The maximum number of groups, which is larger than the number of SMs of any device.
const GROUPS: usize = 4096;

/// One value for all groups, or one per group.
enum Values<T> {
    All(T),
    Each(Vec<T>),
}

impl<T: Copy + Default> Values<T> {
    fn read(
        what: &str,
        given: &Argument<'_>,
        read: impl Fn(&str, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> PyResult<Values<T>> {
        let Some(given) = &given.0 else { return Ok(Values::All(T::default())) };
        let is_text = given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>();
        match given.cast::<PySequence>() {
            Ok(values) if !is_text => {
                // A range may be longer than memory allows.
                let values = values.try_iter()?.take(GROUPS + 1).map(|value| read(what, &value?));
                let values = values.collect::<PyResult<Vec<T>>>()?;
                if values.len() > GROUPS {
                    let reason = format!("{what} lists more than {GROUPS} groups; ask for fewer");
                    return Err(Fault::value(reason).into());
                }
                Ok(Values::Each(values))
            }
            _ => Ok(Values::All(read(what, given)?)),
        }
    }

    /// Returns the argument's name and the number of groups, if the argument is a sequence.
    fn len(&self, what: &'static str) -> Option<(&'static str, usize)> {
        match self {
            Values::All(_) => None,
            Values::Each(values) => Some((what, values.len())),
        }
    }

    fn of(&self, place: usize) -> T {
        match self {
            Values::All(value) => *value,
            Values::Each(values) => values.get(place).copied().unwrap_or_default(),
        }
    }
}

/// Reads a whole number that is not negative. A number too large for a `u32` is clamped to `u32::MAX`.
fn count(what: &str, given: &Bound<'_, PyAny>) -> PyResult<u32> {
    let wrong = || match shown(given) {
        Ok(given) => Fault::value(format!(
            "{what} must be a whole number, 0 or greater, such as 16, or a sequence of these, \
             got {given}"
        ))
        .into(),
        Err(raised) => raised,
    };
    let Whole(count) = index(given, wrong)?.extract()?;
    match count < 0 {
        true => Err(wrong()),
        false => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
    }
}

fn flag(what: &str, given: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(flag) = given.cast::<PyBool>() {
        return Ok(flag.is_true());
    }
    let given = shown(given)?;
    let reason = format!("{what} must be True or False, or a sequence of these, got {given}");
    Err(Fault::value(reason).into())
}

fn domain(what: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    if given.is_none() { Ok(None) } else { count(what, given).map(Some) }
}

//! Dry runs of `partition`.

use std::sync::Arc;

use green_ctx::{Error, Share, resource as library};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::argument::DeviceId;
use crate::device::device;
use crate::fault::Fault;
use crate::gil::blocking;
use crate::partitions::no_rest;
use crate::request::{Keywords, Request};

/// The result of a dry run: the partitions that `partition` would have created at that moment. A dry run takes no
/// SMs, so other code may have taken SMs in the meantime.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct DryRun {
    given: Option<Given>,
    refusal: Option<Refusal>,
}

/// The result for a request that fits.
struct Given {
    groups: Vec<Group>,
    unit: u32,
    remainder: u32,
    free_for_floors: u32,
    quarantined: u32,
}

/// The reason why a request does not fit.
struct Refusal {
    reason: String,
    nearest: Vec<Share>,
}

#[derive(Clone)]
struct Group {
    name: Arc<str>,
    share: Share,
    floor: u32,
    sm_count: u32,
}

#[pymethods]
impl DryRun {
    /// Whether `partition` would create all partitions.
    #[getter]
    fn fits(&self) -> bool {
        self.given.is_some()
    }

    /// The reason why the request does not fit, with the text with which the exception of `partition` would begin. None
    /// if the request fits.
    #[getter]
    fn reason(&self) -> Option<&str> {
        self.refusal.as_ref().map(|refusal| &*refusal.reason)
    }

    /// If the request does not fit: shares that would fit instead, as text, in the order of the request. The list is
    /// empty if the request fits or if no such shares are known.
    #[getter]
    fn nearest(&self) -> Vec<String> {
        let nearest = self.refusal.iter().flat_map(|refusal| &refusal.nearest);
        nearest.map(Share::to_string).collect()
    }

    /// A dict from the name of each partition to the SMs that the partition would get, in the order of the request.
    /// The dict is empty if the request does not fit.
    #[getter]
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let groups = PyDict::new(py);
        for group in self.given.iter().flat_map(|given| &given.groups) {
            groups.set_item(&*group.name, Py::new(py, DryRunGroup(group.clone()))?)?;
        }
        Ok(groups)
    }

    /// The smallest number of SMs that the driver gives at a time; None if the request does not fit.
    #[getter]
    fn unit(&self) -> Option<u32> {
        self.given.as_ref().map(|given| given.unit)
    }

    /// The number of SMs that no partition would use. If one partition takes the rest, this is the number of SMs of
    /// that partition. None if the request does not fit.
    #[getter]
    fn remainder(&self) -> Option<u32> {
        self.given.as_ref().map(|given| given.remainder)
    }

    /// The number of SMs that would remain for the floors of later requests. None if the request does not fit. An
    /// unbounded share ("32..", "..") leaves no SMs for later floors.
    #[getter]
    fn free_for_floors(&self) -> Option<u32> {
        self.given.as_ref().map(|given| given.free_for_floors)
    }

    /// The number of SMs in quarantine; None if the request does not fit. No partition gets these SMs, because the
    /// library could not record the work of the context that used them before. `partition` tries again to record that
    /// work, and can use the SMs if this succeeds. A dry run does not try.
    #[getter]
    fn quarantined(&self) -> Option<u32> {
        self.given.as_ref().map(|given| given.quarantined)
    }

    fn __repr__(&self) -> String {
        let Some(given) = &self.given else {
            return format!("<DryRun: does not fit: {}>", self.reason().unwrap_or_default());
        };
        let groups: Vec<String> = given.groups.iter().map(Group::to_string).collect();
        format!("<DryRun: {}, {} SMs free for floors>", groups.join(", "), given.free_for_floors)
    }
}

/// The SMs that one partition would get.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct DryRunGroup(Group);

#[pymethods]
impl DryRunGroup {
    /// The partition's name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The requested share as text: "16", "32..", "..=100" or "rest".
    #[getter]
    fn share(&self) -> String {
        self.0.share.to_string()
    }

    /// The number of SMs that no other partition may use.
    #[getter]
    fn floor(&self) -> u32 {
        self.0.floor
    }

    /// The number of SMs that the partition may use: its ceiling.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.0.sm_count
    }

    fn __repr__(&self) -> String {
        format!("<DryRunGroup {}>", self.0)
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Group { name, floor, sm_count, .. } = self;
        match floor == sm_count {
            true => write!(f, "{name}: {sm_count} SMs"),
            false => write!(f, "{name}: {floor} to {sm_count} SMs"),
        }
    }
}

/// Computes the partitions that `partition` would create for the same arguments, without taking SMs.
///
///     dry_run({"decode": 17, "prefill": "rest"}).groups["decode"].sm_count   # 24
///
/// If too few SMs are free, or if open partitions divide the device into units of another size, `fits` is False and
/// `reason` explains the cause. An invalid request, such as a share of 0 SMs, raises an exception.
#[pyfunction]
#[pyo3(signature = (division, device=DeviceId::Current, *, fine=false, coscheduled=None,
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None,
    priority=None),
    text_signature = "(division, device=None, *, fine=False, coscheduled=None, \
    preferred_coscheduled=None, backfill=None, locality_domain=None, supplemental=None, workqueue=None, \
    priority=None)")]
#[allow(clippy::too_many_arguments, reason = "Python's keywords")]
pub(crate) fn dry_run(
    py: Python<'_>,
    division: &Bound<'_, PyAny>,
    device: DeviceId,
    fine: bool,
    coscheduled: Option<&Bound<'_, PyAny>>,
    preferred_coscheduled: Option<&Bound<'_, PyAny>>,
    backfill: Option<&Bound<'_, PyAny>>,
    locality_domain: Option<&Bound<'_, PyAny>>,
    supplemental: Option<&Bound<'_, PyAny>>,
    workqueue: Option<&Bound<'_, PyAny>>,
    priority: Option<&Bound<'_, PyAny>>,
) -> PyResult<DryRun> {
    let keywords = Keywords {
        fine,
        coscheduled,
        preferred_coscheduled,
        backfill,
        locality_domain,
        supplemental,
        workqueue,
        priority,
    };
    let request = Request::read("dry_run", division, &keywords)?;
    let device = device.ordinal(py)?;
    blocking(py, move || ask(device, &request))
}

fn ask(ordinal: i64, request: &Request) -> Result<DryRun, Fault> {
    let device = device(ordinal)?;
    request.workqueues(&device)?;
    let sms = device.resources().sm()?;
    let refused = |reason: Fault, nearest| {
        Ok(DryRun { given: None, refusal: Some(Refusal { reason: reason.message(), nearest }) })
    };
    let given = match sms.dry_run(request.split()) {
        Ok(given) => given,
        Err(error @ Error::CutInUse { .. }) => return refused(error.into(), Vec::new()),
        Err(Error::NotEnoughSms(shortage)) => {
            let nearest = shortage.nearest.clone();
            return refused(Error::NotEnoughSms(shortage).into(), nearest);
        }
        Err(error) => return Err(error.into()),
    };
    let library::DryRun { unit, remainder, free_for_floors, quarantined, .. } = given;
    let groups = given.groups.into_iter().map(|group| {
        let library::GroupSms { name, share, floor, sm_count, .. } = group;
        Group { name, share, floor, sm_count }
    });
    let mut groups: Vec<Group> = groups.collect();
    if let Some(rest) = request.division.rest() {
        if remainder == 0 {
            let given = groups.iter().map(|group| group.sm_count).sum();
            return refused(no_rest(rest, given, sms.sm_count()), Vec::new());
        }
        let (name, share) = (Arc::from(rest), Share::REST);
        groups.push(Group { name, share, floor: remainder, sm_count: remainder });
    }
    groups.sort_by_key(|group| request.division.place(&group.name));
    let given = Given { groups, unit, remainder, free_for_floors, quarantined };
    Ok(DryRun { given: Some(given), refusal: None })
}

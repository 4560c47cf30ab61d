//! Verification of where partitions run: the Python class `Report`, and the function `verify`.

use std::sync::Arc;

use green_ctx::context::Context;
use green_ctx::verify as proof;
use green_ctx_report::Verification;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::argument::{self, DeviceId};
use crate::code::Code;
use crate::device::device;
use crate::fault::Fault;
use crate::gil::{Held, interruptible};
use crate::green_context::GreenContext;
use crate::made::{Known, Opened, Subject, known};
use crate::partition::Partition;
use crate::partition_report::PartitionReport;
use crate::partitions::Partitions;
use crate::plan::{Plan, PlanSet, living as living_of};

/// Returns the open partitions and GreenContexts of a device, including the partitions of active plans.
fn open_on(ordinal: i64) -> Result<Vec<Subject>, Fault> {
    let device = device(ordinal)?;
    let Known { opened, sets } = known();
    let planned = sets.iter().map(|set| living_of(&set.active(), set));
    let planned = planned.collect::<Result<Vec<_>, _>>()?;
    let planned = planned.iter().flatten().map(|live| live.subject());
    let (partitions, green_contexts): (Vec<_>, Vec<_>) =
        opened.iter().partition(|opened| opened.is_partition());
    let subjects = |opened: Vec<&Arc<dyn Opened>>| {
        opened.into_iter().map(|opened| opened.subject()).collect::<Vec<_>>()
    };
    let partitions = subjects(partitions).into_iter().chain(planned);
    let mut open: Vec<_> = partitions.chain(subjects(green_contexts)).collect();
    open.retain(|subject| *subject.context.device() == device);
    if open.is_empty() {
        let reason = format!("no partitions of device {ordinal} are open; make some first");
        return Err(Fault::value(reason));
    }
    Ok(open)
}

/// The SMs that partitions ran on, as the blocks of a probe kernel reported them. Notebooks show the report as a
/// picture.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct Report {
    report: Arc<proof::Report>,
    /// The IDs of the contexts, in the partitions' order.
    ids: Vec<u64>,
}

#[pymethods]
impl Report {
    /// Whether every partition ran on all of its SMs and on no other SMs, and no partition ran on another partition's
    /// floor.
    #[getter]
    fn ok(&self) -> bool {
        self.report.ok()
    }

    /// Whether no SM ran blocks of two partitions.
    #[getter]
    fn disjoint(&self) -> bool {
        self.report.disjoint()
    }

    /// Whether every partition, while it ran alone, used as many SMs as its ceiling allows.
    #[getter]
    fn complete(&self) -> bool {
        self.report.partitions.iter().all(proof::PartitionReport::complete)
    }

    /// Whether there was a moment at which all partitions were running. `ok` does not require this, because separate
    /// SMs do not guarantee that work runs concurrently.
    #[getter]
    fn concurrent(&self) -> bool {
        self.report.concurrent()
    }

    /// Whether no partition ran on another partition's floor.
    #[getter]
    fn floors_kept(&self) -> bool {
        self.report.floors_kept()
    }

    /// The results of the partitions, in the order in which the caller passed them. A partition that was passed twice
    /// appears once. Under a reserve, the last result is that of work outside of partitions, which has no floor.
    #[getter]
    fn partitions(&self) -> Vec<PartitionReport> {
        let number = self.ids.iter().enumerate();
        number.map(|(index, id)| PartitionReport::new(&self.report, index, *id)).collect()
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> u32 {
        self.report.ordinal
    }

    /// The device's name, such as "NVIDIA H200".
    #[getter]
    fn device_name(&self) -> &str {
        &self.report.device_name
    }

    /// The number of SMs of the device.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.report.sm_count
    }

    /// The device's compute capability, such as (9, 0).
    #[getter]
    fn compute_capability(&self) -> (i32, i32) {
        let capability = self.report.compute_capability;
        (capability.major, capability.minor)
    }

    /// Returns the report as JSON, in the format of `green-ctx --json verify`.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_report::to_json(&Verification::of(&self.report)))
    }

    /// Returns a picture as SVG: the SMs, coloured by partition, and a timeline of the blocks.
    fn to_svg(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_report::verification_svg(&self.report))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> String {
        self.to_svg(py)
    }

    fn __repr__(&self) -> String {
        let part = |part: &proof::PartitionReport| {
            format!("{} on {} of {} SMs", part.name, part.observed_sms().len(), part.sm_count)
        };
        let parts: Vec<_> = self.report.partitions.iter().map(part).collect();
        let verdict = if self.report.ok() { "verified" } else { "NOT verified" };
        let simulated = if self.report.driver.is_simulated() { ", simulated" } else { "" };
        let shared = if self.report.disjoint() { "" } else { ", some SMs shared" };
        format!("<Report: {verdict}{simulated}: {}{shared}>", parts.join(", "))
    }
}

/// Runs a probe kernel in several partitions at the same time, and reports the SMs that the blocks of the kernel ran
/// on.
///
///     report = verify(parts)
///     assert report.ok, report
///
/// `partitions` is a partition, a GreenContext, a mapping or an iterable of these, a plan, or a plan set. For a plan
/// set, the active plan is verified. Without `partitions`, all open partitions and GreenContexts of the device are
/// verified, including the contexts of drop-ins. The probe takes about a millisecond; other work on the same SMs
/// makes it take longer.
///
/// Raises ValueError if there is nothing to verify.
#[pyfunction]
#[pyo3(signature = (partitions=None, device=DeviceId::Current),
    text_signature = "(partitions=None, device=None)")]
pub(crate) fn verify(
    py: Python<'_>,
    partitions: Option<&Bound<'_, PyAny>>,
    device: DeviceId,
) -> PyResult<Report> {
    let given = partitions.map(read).transpose()?;
    let named = if let DeviceId::Ordinal(named) = device { Some(named) } else { None };
    let device = device.ordinal(py)?;
    let (report, ids) = interruptible(py, move || {
        let mut subjects: Vec<Subject> = match given {
            Some(given) => given.into_iter().map(Held::into_inner).collect(),
            None => open_on(device)?,
        };
        if let Some(named) = named
            && let Some(other) = subjects
                .iter()
                .find(|Subject { context, .. }| i64::from(context.device().ordinal()) != named)
        {
            return Err(Fault::value(format!(
                "device is {named}, but partition {} is on device {}; leave device out",
                other.name,
                other.context.device().ordinal()
            )));
        }
        // A partition that is probed twice at the same time would seem to share its SMs.
        let mut seen: Vec<Context> = Vec::with_capacity(subjects.len());
        subjects.retain(|Subject { context, .. }| {
            let is_first = !seen.contains(context);
            seen.push(context.clone());
            is_first
        });
        let ids = subjects.iter().map(|subject| subject.context.id());
        let mut ids = ids.collect::<green_ctx::Result<Vec<u64>>>()?;
        let probed = subjects.iter().map(|Subject { context, planned, .. }| match planned {
            Some(part) => proof::Subject::partition(part),
            None => proof::Subject::context(context),
        });
        let mut report =
            proof::subjects(probed.collect::<green_ctx::Result<_>>()?, proof::DEFAULT_STAY)?;
        if report.rest().is_some() {
            let device = self::device(report.ordinal.into())?;
            ids.push(device.primary_context()?.id()?);
        }
        for (part, Subject { name, share, .. }) in report.partitions.iter_mut().zip(subjects) {
            (part.name, part.share) = (name, share);
        }
        Ok((report, ids))
    })?;
    Ok(Report { report: Arc::new(report), ids })
}

/// Reads the argument `partitions` of `verify`.
fn read(given: &Bound<'_, PyAny>) -> PyResult<Vec<Held<Subject>>> {
    const EXPECTED: &str =
        "verify takes partitions, as in verify(parts) or verify([parts[\"decode\"]])";
    let py = given.py();
    let all = |parts: Vec<Py<Partition>>| {
        parts.iter().map(|part| of_partition(part.get())).collect::<PyResult<Vec<_>>>()
    };
    if let Ok(parts) = given.cast::<Partitions>() {
        return all(parts.get().each(py)?);
    }
    if let Ok(plan) = given.cast::<Plan>() {
        return all(plan.get().each(py)?);
    }
    if let Ok(set) = given.cast::<PlanSet>() {
        return all(set.get().active(py)?.get().each(py)?);
    }
    if let Some(subject) = one(given)? {
        return Ok(vec![subject]);
    }
    let parts = match given.hasattr("values")? {
        true => given.run_method("values", ())?,
        false => given.clone(),
    };
    let wrong = || argument::unexpected(given, EXPECTED);
    if given.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    let parts = parts.try_iter().map_err(|error| argument::or_passed(py, error, wrong))?;
    let subject = |part: PyResult<Bound<'_, PyAny>>| {
        let part = part?;
        one(&part)?.ok_or_else(|| argument::unexpected(&part, EXPECTED))
    };
    let subjects = parts.map(subject).collect::<PyResult<Vec<_>>>()?;
    if subjects.is_empty() {
        let reason = "there is nothing to verify; give partitions, as in verify(parts)";
        return Err(Fault::value(reason).into());
    }
    Ok(subjects)
}

/// Returns the subject for a partition or a GreenContext, and `None` for other objects.
fn one(given: &Bound<'_, PyAny>) -> PyResult<Option<Held<Subject>>> {
    if let Ok(part) = given.cast::<Partition>() {
        return of_partition(part.get()).map(Some);
    }
    let Ok(context) = given.cast::<GreenContext>() else { return Ok(None) };
    let open = context.get().live()?;
    Ok(Some(Held::new(open.subject())))
}

/// Returns the context of a partition or a GreenContext, and `None` for other objects. [`Held`] drops the context
/// without the GIL.
pub(crate) fn context(given: &Bound<'_, PyAny>) -> PyResult<Option<Held<Context>>> {
    Ok(one(given)?.map(|subject| Held::new(subject.into_inner().context)))
}

fn of_partition(part: &Partition) -> PyResult<Held<Subject>> {
    // Both are dropped without the GIL, because the partition may be closed in the meantime.
    let live = Held::new(part.live()?);
    Ok(Held::new(live.subject()))
}

//! Proof of where partitions run.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use green_ctx::verify::{self as proof, PartitionReport};
use green_ctx::{Device, context::Context};
use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::argument::DeviceId;
use crate::device::device;
use crate::fault::{Fault, kind};
use crate::gil::{Held, interruptible};
use crate::partition::{Live, Partition};
use crate::partitions::Partitions;
use crate::plan::{Plan, PlanSet, living as living_of};

/// What the module has made, to be found without being asked for. Only taken without the GIL.
static MADE: Mutex<Vec<Made>> = Mutex::new(Vec::new());

enum Made {
    Partition(Weak<Live>),
    Set(Weak<green_ctx::PlanSet>),
}

impl Made {
    fn is_gone(&self) -> bool {
        match self {
            Made::Partition(live) => live.strong_count() == 0,
            Made::Set(set) => set.strong_count() == 0,
        }
    }
}

fn note(made: Made) {
    let mut all = MADE.lock();
    all.retain(|known| !known.is_gone());
    all.push(made);
}

pub(crate) fn note_partition(live: &Arc<Live>) {
    note(Made::Partition(Arc::downgrade(live)));
}

pub(crate) fn note_set(set: &Arc<green_ctx::PlanSet>) {
    note(Made::Set(Arc::downgrade(set)));
}

/// The partitions and sets of plans that are open.
fn open() -> (Vec<Arc<Live>>, Vec<Arc<green_ctx::PlanSet>>) {
    let (mut partitions, mut sets) = (Vec::new(), Vec::new());
    // Handles that turn out to be the last ones end outside of the lock.
    for made in MADE.lock().iter() {
        match made {
            Made::Partition(live) => partitions.extend(live.upgrade()),
            Made::Set(set) => sets.extend(set.upgrade()),
        }
    }
    (partitions, sets)
}

/// The names of a device's partitions that are open, and of those of all its plans.
pub(crate) fn names_on(device: &Device) -> BTreeSet<String> {
    let (partitions, sets) = open();
    let plans: Vec<_> = sets.iter().flat_map(|set| set.plans()).collect();
    let planned = plans.iter().flat_map(|plan| plan.partitions());
    let open = partitions.iter().map(|live| (live.context(), live.name()));
    let all = open.chain(planned.map(|part| (part.context(), part.name())));
    let here = all.filter(|(context, _)| context.device() == device);
    here.map(|(_, name)| name.to_owned()).collect()
}

/// The partitions of a device that are open, and those of active plans.
fn open_on(ordinal: i64) -> Result<Vec<Arc<Live>>, Fault> {
    let device = device(ordinal)?;
    let (partitions, sets) = open();
    let planned = sets.iter().map(|set| living_of(&set.active(), set));
    let planned = planned.collect::<Result<Vec<_>, _>>()?;
    let open = partitions.into_iter().chain(planned.into_iter().flatten());
    let open: Vec<_> = open.filter(|live| *live.context().device() == device).collect();
    if open.is_empty() {
        let reason = format!("no partitions of device {ordinal} are open; make some first");
        return Err(Fault::value(reason));
    }
    Ok(open)
}

/// Where partitions ran, as the blocks of a probe kernel saw it. Notebooks show it as a picture.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct Report {
    report: proof::Report,
}

#[pymethods]
impl Report {
    /// Whether every partition ran on all of its SMs and only there, and nobody else on those that are its
    /// own.
    #[getter]
    fn ok(&self) -> bool {
        self.report.ok()
    }

    /// Whether no SM ran blocks of two partitions.
    #[getter]
    fn disjoint(&self) -> bool {
        self.report.disjoint()
    }

    /// Whether every partition, alone, ran on as many SMs as it was given.
    #[getter]
    fn complete(&self) -> bool {
        self.report.partitions.iter().all(PartitionReport::complete)
    }

    /// Whether there was a time at which every partition was running. No part of `ok`: disjoint SMs
    /// promise no concurrency.
    #[getter]
    fn concurrent(&self) -> bool {
        self.report.concurrent()
    }

    /// The report as JSON, as `green-ctx --json verify` prints it.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_cli::report_json(&self.report))
    }

    /// A picture: the SMs, coloured by partition, over a timeline of blocks.
    fn to_svg(&self, py: Python<'_>) -> String {
        py.detach(|| green_ctx_cli::svg(&self.report))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> String {
        self.to_svg(py)
    }

    fn __repr__(&self) -> String {
        let part = |part: &PartitionReport| {
            format!("{} on {} of {} SMs", part.name, part.observed_sms().len(), part.sm_count)
        };
        let parts: Vec<_> = self.report.partitions.iter().map(part).collect();
        let verdict = if self.report.ok() { "verified" } else { "NOT verified" };
        let shared = if self.report.disjoint() { "" } else { ", some SMs shared" };
        format!("<Report: {verdict}: {}{shared}>", parts.join(", "))
    }
}

/// Runs a probe kernel in partitions at the same time, and reports on which SMs its blocks ran: a
/// millisecond-long look at what really happens. Work that runs there meanwhile makes it take longer.
///
/// Takes partitions, a mapping of them, or a set of plans, of which the active one is looked at;
/// without, all that are open on the device.
#[pyfunction]
#[pyo3(signature = (partitions=None, device=DeviceId::Current),
    text_signature = "(partitions=None, device=None)")]
pub(crate) fn verify(
    py: Python<'_>,
    partitions: Option<&Bound<'_, PyAny>>,
    device: DeviceId,
) -> PyResult<Report> {
    let (given, device) = (partitions.map(read).transpose()?, device.ordinal(py)?);
    let report = interruptible(py, move || {
        let living = match given {
            Some(living) => living.into_iter().map(Held::into_inner).collect(),
            None => open_on(device)?,
        };
        let contexts: Vec<Context> = living.iter().map(|live| live.context().clone()).collect();
        let mut report = proof::contexts(&contexts, proof::DEFAULT_STAY)?;
        // Plans share contexts, which have the name and the share of whichever was prepared first.
        for (part, live) in report.partitions.iter_mut().zip(&living) {
            (part.name, part.share) = (live.name().to_owned(), live.share());
        }
        Ok(report)
    })?;
    Ok(Report { report })
}

/// The partitions that an argument stands for.
fn read(given: &Bound<'_, PyAny>) -> PyResult<Vec<Held<Arc<Live>>>> {
    let py = given.py();
    let live = |part: &Partition| part.live().map(Held::new);
    let all = |parts: Vec<Py<Partition>>| parts.iter().map(|part| live(part.get())).collect();
    if let Ok(part) = given.cast::<Partition>() {
        return Ok(vec![live(part.get())?]);
    }
    if let Ok(parts) = given.cast::<Partitions>() {
        return all(parts.get().each(py)?);
    }
    if let Ok(plan) = given.cast::<Plan>() {
        return all(plan.get().each(py)?);
    }
    if let Ok(set) = given.cast::<PlanSet>() {
        return all(set.get().active(py)?.get().each(py)?);
    }
    let parts = match given.hasattr("values")? {
        true => given.call_method0("values")?,
        false => given.clone(),
    };
    let part = |part: PyResult<Bound<'_, PyAny>>| {
        let part = part?;
        match part.cast::<Partition>() {
            Ok(part) => live(part.get()),
            Err(_) => {
                Err(PyTypeError::new_err(format!("partitions are wanted, not a {}", kind(&part))))
            }
        }
    };
    parts.try_iter()?.map(part).collect()
}

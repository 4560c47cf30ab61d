//! The Python classes `PlanSet` and `Plan`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use green_ctx::{
    Error, Share, SplitRequest,
    plan::{PlanError, SwitchOptions},
    resource::Granularity,
};
use pyo3::exceptions::PyOverflowError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyIterator, PyTuple};

use crate::argument::{self, DeviceId, Whole, or_passed, unexpected};
use crate::device::{check_process, device};
use crate::division::Division;
use crate::fault::Fault;
use crate::gil::{Held, Signals, blocking};
use crate::made;
use crate::named::{Named, not_copied, set_name};
use crate::partition::{Live, Partition, Planned};
use crate::partitions::{Partitions, advise};
use crate::torch;

/// The longest time that a switch waits: a year. A much longer time would make the deadline overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A plan of a `PlanSet`: a mapping from names to the partitions of the plan.
#[pyclass(frozen, mapping, weakref, module = "green_ctx_torch")]
pub(crate) struct Plan {
    name: String,
    /// `None` once the plan's partitions are closed.
    prepared: ArcSwapOption<Held<Arc<green_ctx::Plan>>>,
    partitions: Py<Partitions>,
}

impl Plan {
    /// Closes the partitions.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.prepared.store(None);
        self.partitions.get().end(py)
    }

    pub(crate) fn each(&self, py: Python<'_>) -> PyResult<Vec<Py<Partition>>> {
        self.partitions.get().each(py)
    }

    fn named(&self) -> &Named {
        self.partitions.get().named()
    }
}

#[pymethods]
impl Plan {
    /// The plan's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The partitions by name. Work can be submitted to the partitions while the plan is active.
    #[getter]
    fn partitions(&self, py: Python<'_>) -> Py<Partitions> {
        self.partitions.clone_ref(py)
    }

    fn __getitem__(&self, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.named().item(name)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.named().len(py)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.named().iter(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied(
            "a plan",
            "copy or send the division, {name: part.share for name, part in plan.items()}, and prepare a \
             plan with it",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.partitions)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Plan {}: {}>", self.name(), self.partitions.bind(py).repr()?))
    }
}

/// Several divisions of the same SMs, called plans. One plan is active at a time.
///
///     plans = PlanSet({
///         "day": {"decode": 16, "prefill": "rest"},
///         "night": {"decode": 64, "prefill": "rest"},
///     })
///     with plans.switch("night")["decode"]:
///         y = a @ b
///
/// `plans` maps the name of each plan to a division in the form that `partition` takes. A plan set is a mapping from
/// names to plans, and a plan is a mapping from names to partitions. `with PlanSet(...) as plans:` closes the set at
/// the end of the block.
///
/// The contexts and streams of all plans are created in advance, so a switch costs only a few CUDA events. Initially,
/// the first plan is active. The set holds all free SMs of the device, or `sm_count` of them. `fine` means the same
/// as in `partition`.
///
/// Raises the same exceptions as `partition`. If the call fails, nothing is created.
#[pyclass(frozen, mapping, weakref, module = "green_ctx_torch")]
pub(crate) struct PlanSet {
    /// `None` after `close`.
    open: ArcSwapOption<Held<Arc<green_ctx::PlanSet>>>,
    /// Maps names to [`Plan`] objects.
    plans: Named,
    device: u32,
    sm_count: u32,
    fine: bool,
}

/// The plan to switch to.
enum Wanted {
    Name(String),
    Plan(Held<Arc<green_ctx::Plan>>),
}

impl Wanted {
    fn read(object: &Bound<'_, PyAny>) -> PyResult<Wanted> {
        let Ok(plan) = object.cast::<Plan>() else {
            return Ok(Wanted::Name(argument::name("plan", object)?));
        };
        let plan = plan.get();
        match plan.prepared.load().as_ref() {
            Some(prepared) => Ok(Wanted::Plan(Held::new(Arc::clone(prepared)))),
            None => Err(Fault::closed(format!(
                "plan {} was retired, or its set was closed; prepare it again",
                plan.name
            ))
            .into()),
        }
    }
}

/// A time to wait, in milliseconds.
struct Milliseconds(f64);

impl FromPyObject<'_, '_> for Milliseconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Milliseconds> {
        const EXPECTED: &str = "drain_ms must be a number of milliseconds such as 5 or 0.5";
        let py = object.py();
        if object.is_instance_of::<PyBool>() {
            return Err(unexpected(&object, EXPECTED));
        }
        match object.extract() {
            Ok(milliseconds) => Ok(Milliseconds(milliseconds)),
            // An integer that no float can represent.
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                let infinity = if object.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY };
                Ok(Milliseconds(infinity))
            }
            Err(error) => Err(or_passed(py, error, || unexpected(&object, EXPECTED))),
        }
    }
}

/// The name of a plan, and its division.
struct NamedDivision {
    name: String,
    division: Division,
}

impl NamedDivision {
    fn read(name: &Bound<'_, PyAny>, division: &Bound<'_, PyAny>) -> PyResult<NamedDivision> {
        let name = argument::name("plan", name)?;
        let division = Division::of_plan(&name, division)?;
        Ok(NamedDivision { name, division })
    }

    fn plan(&self, fine: bool) -> green_ctx::PlanRequest {
        green_ctx::PlanRequest::new(self.name.as_str(), self.division.request(fine))
    }

    fn no_rest(&self, rest: &str) -> Fault {
        let name = &self.name;
        Fault::value(format!(
            "no SMs remain for {rest} in plan {name}: the other partitions take all of them"
        ))
    }
}

/// Returns the states of a plan's partitions.
pub(crate) fn living(
    plan: &Arc<green_ctx::Plan>,
    set: &Arc<green_ctx::PlanSet>,
) -> Result<Vec<Arc<Live>>, Fault> {
    let planned = Planned { plan: Arc::downgrade(plan), set: Arc::downgrade(set) };
    let partitions = plan.partitions().iter();
    partitions.map(|part| Ok(Arc::new(Live::planned(part.clone(), planned.clone())?))).collect()
}

impl PlanSet {
    fn set(&self) -> PyResult<Arc<green_ctx::PlanSet>> {
        match self.open.load().as_ref() {
            Some(set) => {
                check_process(set.device())?;
                Ok(Arc::clone(set))
            }
            None => Err(Fault::closed("the plan set is closed; make a new one").into()),
        }
    }

    /// Returns the plans, or an error if the set is closed.
    fn named(&self) -> PyResult<&Named> {
        self.set()?;
        Ok(&self.plans)
    }

    /// Returns the Python object of a plan. An existing object is returned again, so that its streams stay the
    /// same.
    fn object(&self, py: Python<'_>, prepared: Prepared) -> PyResult<Py<Plan>> {
        let Prepared { plan, order } = prepared;
        let plans = self.plans.objects(py);
        if let Some(known) = plans.get_item(plan.name())? {
            let known = known.cast_into::<Plan>()?;
            let is_same = |prepared: &Arc<Held<_>>| Arc::ptr_eq(&***prepared, &plan);
            if known.get().prepared.load().as_ref().is_some_and(is_same) {
                return Ok(known.unbind());
            }
        }
        let set = self.set()?;
        let mut living = blocking(py, || living(&plan, &set))?;
        // Names that are not in `order` (of a plan that another thread prepared) come first, in the library's
        // order.
        living.sort_by_key(|live| order.iter().position(|name| name == live.name()));
        let name = plan.name().to_owned();
        let partitions = Py::new(py, Partitions::new(py, living)?)?;
        let prepared = ArcSwapOption::from_pointee(plan);
        let plan = Py::new(py, Plan { name: name.clone(), prepared, partitions })?;
        plans.set_item(name, &plan)?;
        Ok(plan)
    }
}

#[pymethods]
impl PlanSet {
    #[new]
    #[pyo3(signature = (plans, device=DeviceId::Current, *, sm_count=None, fine=false),
        text_signature = "(plans, device=None, *, sm_count=None, fine=False)")]
    fn new(
        py: Python<'_>,
        plans: &Bound<'_, PyAny>,
        device: DeviceId,
        sm_count: Option<Whole>,
        fine: bool,
    ) -> PyResult<PlanSet> {
        const EXPECTED: &str = "PlanSet takes plans by name, as in \
            PlanSet({\"day\": {\"decode\": 16, \"prefill\": \"rest\"}})";
        let mut divisions = Vec::new();
        for (name, division) in argument::pairs(plans, EXPECTED)? {
            let named = NamedDivision::read(&name, &division)?;
            if divisions.iter().any(|known: &NamedDivision| known.name == named.name) {
                let name = &named.name;
                let reason = format!("two plans are named {name}; give each a different name");
                return Err(Fault::value(reason).into());
            }
            divisions.push(named);
        }
        let device = device.ordinal(py)?;
        let made = py.detach(move || make(device, sm_count, fine, &divisions));
        let (set, prepared) = match made {
            Ok(made) => made,
            Err(fault) => return Err(advise(py, fault, device)?.into()),
        };
        let (device, sm_count) = (set.device().ordinal(), set.sm_count());
        let open = ArcSwapOption::from_pointee(Held::new(set));
        let plans = Named::new("plan", PyDict::new(py));
        let set = PlanSet { open, plans, device, sm_count, fine };
        for prepared in prepared {
            set.object(py, prepared)?;
        }
        Ok(set)
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> u32 {
        self.device
    }

    /// The number of SMs that the plans divide.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.sm_count
    }

    /// The names of the prepared plans.
    #[getter]
    fn plans<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let set = self.set()?;
        let plans = py.detach(move || {
            let names = |plan: &Arc<green_ctx::Plan>| plan.name().to_owned();
            set.plans().iter().map(names).collect::<Vec<_>>()
        });
        PyTuple::new(py, plans)
    }

    /// The active plan.
    #[getter]
    pub(crate) fn active(&self, py: Python<'_>) -> PyResult<Py<Plan>> {
        let set = self.set()?;
        let active = py.detach(move || Prepared::of(Arc::clone(&set.active())));
        self.object(py, active)
    }

    /// Prepares another plan, and returns it. Creates only the contexts and streams that no other plan of the set has
    /// yet.
    fn prepare(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        division: &Bound<'_, PyAny>,
    ) -> PyResult<Py<Plan>> {
        let (set, named, fine) = (self.set()?, NamedDivision::read(name, division)?, self.fine);
        let prepared = blocking(py, move || prepare(&set, &named, fine))?;
        self.object(py, prepared)
    }

    /// Makes a plan active, and returns it. `name` is the name of a plan, or a plan of this set.
    ///
    /// After the switch, work submitted to the new plan's partitions waits on the device for the previous plan's work
    /// on the same SMs. With `fence=False`, the new work does not wait. With `drain_ms`, the host first waits, for at
    /// most this number of milliseconds, until the previous plan's work is done.
    ///
    /// End all blocks of the previous plan first, on this thread and on others. A switch does not end them, and their
    /// later work still runs on the previous plan's SMs, at the same time as the new plan's work.
    ///
    /// Raises RuntimeError if the previous plan's work is not done within `drain_ms`. After this error or an
    /// interrupt, nothing has changed.
    #[pyo3(signature = (name, fence=true, drain_ms=None))]
    fn switch(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        fence: bool,
        drain_ms: Option<Milliseconds>,
    ) -> PyResult<Py<Plan>> {
        let set = self.set()?;
        let wanted = Wanted::read(name)?;
        let mut options = SwitchOptions::default().fence(fence);
        if let Some(Milliseconds(milliseconds)) = drain_ms {
            let at_most = match Duration::try_from_secs_f64(milliseconds / 1e3) {
                Ok(at_most) => at_most.min(LONGEST),
                Err(_) if milliseconds > 0.0 => LONGEST,
                Err(_) => {
                    let reason = format!("drain_ms is {milliseconds}; it must be 0 or more");
                    return Err(Fault::value(reason).into());
                }
            };
            options = options.drain(at_most);
        }
        let active = blocking(py, move || {
            let plan = match &wanted {
                Wanted::Name(name) => set.plan(name)?,
                Wanted::Plan(plan) => Arc::clone(plan),
            };
            let mut signals = Signals::default();
            match set.switch_while(&plan, options, || signals.is_quiet()) {
                Err(PlanError::NotOfThisSet { .. }) => Err(Fault::value(format!(
                    "plan {} belongs to another set or was retired; give the name of a plan of this set",
                    plan.name()
                ))),
                Err(PlanError::GivenUp { .. }) if signals.is_raised() => Err(signals.into()),
                switched => Ok(switched.map(|()| Prepared::of(plan))?),
            }
        })?;
        self.object(py, active)
    }

    /// Removes a plan, which must not be active, and closes its partitions.
    fn retire(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let (set, name) = (self.set()?, argument::name("plan", name)?);
        let retired = name.clone();
        blocking(py, move || Ok(set.retire(&retired)?))?;
        let plans = self.plans.objects(py);
        if let Some(plan) = plans.get_item(&name)? {
            plans.del_item(&name)?;
            plan.cast::<Plan>()?.get().end(py)?;
        }
        Ok(())
    }

    /// Closes the partitions of all plans. The SMs are free again as soon as no thread is inside a partition of the
    /// set, and the program holds none of the objects that `Partition.close` lists. Running work continues, and the
    /// next owner of the SMs waits for that work on the device.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // Not the library's `close`, which waits for all work, and refuses while a stream is held elsewhere. This
        // always ends the set, and gives the same SMs back.
        self.open.store(None);
        let plans = self.plans.objects(py);
        for plan in plans.values() {
            plan.cast::<Plan>()?.get().end(py)?;
        }
        plans.clear();
        torch::release_workspaces(py)
    }

    /// Whether the set is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.load().is_none()
    }

    fn __getitem__(&self, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.named()?.item(name)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.named()?.len(py))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.named()?.iter(py)
    }

    /// Closes the set at the end of the block.
    fn __enter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        this.get().set()?;
        Ok(this)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied(
            "a set of plans",
            "copy or send the divisions that PlanSet was called with, and call it with them",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.plans.as_py())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if self.closed() {
            return Ok("<PlanSet: closed>".to_owned());
        }
        Ok(match self.active(py) {
            Ok(active) => {
                format!("<PlanSet: {} SMs, {} is active>", self.sm_count, active.get().name())
            }
            // A forked child cannot ask for the active plan.
            Err(_) => format!("<PlanSet: {} SMs>", self.sm_count),
        })
    }
}

/// A plan, and the names of its partitions in the order of the request.
struct Prepared {
    plan: Held<Arc<green_ctx::Plan>>,
    order: Vec<String>,
}

impl Prepared {
    /// Wraps a plan that already has a Python object. The order of names is not needed for such a plan.
    fn of(plan: Arc<green_ctx::Plan>) -> Prepared {
        Prepared { plan: Held::new(plan), order: Vec::new() }
    }
}

fn make(
    ordinal: i64,
    sm_count: Option<Whole>,
    fine: bool,
    divisions: &[NamedDivision],
) -> Result<(Arc<green_ctx::PlanSet>, Vec<Prepared>), Fault> {
    let Some((first, others)) = divisions.split_first() else {
        return Err(Fault::value(
            "a plan set needs at least one plan, as in PlanSet({\"day\": {\"decode\": 16}})",
        ));
    };
    let device = device(ordinal)?;
    let granularity = if fine { Granularity::Fine } else { Granularity::Coarse };
    let request = SplitRequest::new().granularity(granularity);
    let name = set_name(divisions.iter().flat_map(|named| named.division.names()));
    let request = match sm_count.map(|Whole(count)| (count, u32::try_from(count))) {
        None => request.rest(name),
        Some((1.., Ok(count))) => request.group(name, count),
        Some((1.., Err(_))) => {
            return Err(Fault::value("sm_count is more than any device has; ask for fewer SMs"));
        }
        Some((count, _)) => {
            return Err(Fault::value(format!("sm_count is {count}; ask for 1 or more")));
        }
    };
    let sms = device.resources().sm()?;
    let split = sms.split(request)?;
    let Some(group) = split.groups.into_iter().chain(split.remainder).next() else {
        // A request for one SM fails with an error that names the holders.
        return Err(match sms.dry_run([1]) {
            Err(Error::NotEnoughSms(mut shortage)) => {
                shortage.requested = vec![Share::REST];
                Error::NotEnoughSms(shortage).into()
            }
            Err(error) => error.into(),
            Ok(_) => Fault::unavailable("no SMs were free a moment ago; try again"),
        });
    };
    if let Some(rest) = first.division.rest()
        && group.dry_run(first.division.request(fine))?.remainder == 0
    {
        return Err(first.no_rest(rest));
    }
    let set = Arc::new(green_ctx::PlanSet::new(group, first.plan(fine)).map_err(PlanError::from)?);
    let active = Arc::clone(&set.active());
    let mut all = vec![prepared(active, first)];
    for named in others {
        all.push(prepare(&set, named, fine)?);
    }
    made::note_set(&set);
    Ok((set, all))
}

fn prepare(set: &green_ctx::PlanSet, named: &NamedDivision, fine: bool) -> Result<Prepared, Fault> {
    let plan = set.prepare(named.plan(fine))?;
    match named.division.rest() {
        Some(rest) if plan.partition(rest).is_none() => {
            set.retire(plan.name())?;
            Err(named.no_rest(rest))
        }
        _ => Ok(prepared(plan, named)),
    }
}

fn prepared(plan: Arc<green_ctx::Plan>, named: &NamedDivision) -> Prepared {
    Prepared { plan: Held::new(plan), order: named.division.names() }
}

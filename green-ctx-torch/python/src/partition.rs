//! The Python class `Partition`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use green_ctx::{
    Share, StreamOptions,
    context::{Context, WeakContext},
    resource::{ShareKind, SmGroup},
};
use green_ctx_torch::Torch;
use green_ctx_torch::scope::{self, Mode};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::argument::Whole;
use crate::capture::Captured;
use crate::device::check_process;
use crate::fault::Fault;
use crate::gil::{Held, blocking};
use crate::kept::kept;
use crate::made::{Opened, Subject};
use crate::named::not_copied;
use crate::request::nearest;
use crate::task;
use crate::torch::{self, Handle};

/// The state of an open partition.
pub(crate) struct Live {
    stream: green_ctx::Stream,
    /// A partition of a plan. While another plan of the same set is active, the partitions of that plan use these SMs.
    planned: Option<(green_ctx::Partition, Planned)>,
    facts: Facts,
}

/// Facts of a partition. They do not change while it is open, and are still known after it was closed.
#[derive(Clone)]
struct Facts {
    name: String,
    share: Option<Share>,
    /// The number of SMs that no other partition may use.
    floor: u32,
    sm_count: u32,
    device: u32,
    raw_context: usize,
    /// Together with the context, identifies the stream when a thread leaves the partition.
    raw_stream: Handle,
}

/// The plan that a partition belongs to, and the set of that plan. The partition does not keep the plan or the plan
/// set alive.
#[derive(Clone, Default)]
pub(crate) struct Planned {
    pub(crate) plan: Weak<green_ctx::Plan>,
    pub(crate) set: Weak<green_ctx::PlanSet>,
}

impl Planned {
    /// Returns the plan and its set, unless the plan was retired or the set is no longer in use.
    fn used(&self) -> Option<(Arc<green_ctx::Plan>, Arc<green_ctx::PlanSet>)> {
        Some((self.plan.upgrade()?, self.set.upgrade()?))
    }

    /// Returns the name of the plan if another plan of its set is active.
    fn inactive(&self) -> Option<String> {
        let (plan, set) = self.used()?;
        (!Arc::ptr_eq(&plan, &set.active())).then(|| plan.name().to_owned())
    }
}

impl Opened for Live {
    /// The subject has the name and the share of this partition. The context can have another name and share, because
    /// several plans can use it: it has those of the plan that was prepared first.
    fn subject(&self) -> Subject {
        let planned = self.planned.as_ref().map(|(part, _)| part.clone());
        let Facts { name, share, .. } = self.facts.clone();
        Subject { context: self.context().clone(), name, share, planned }
    }

    fn is_partition(&self) -> bool {
        true
    }
}

impl Live {
    pub(crate) fn own(context: &Context) -> Result<Live, Fault> {
        Live::with_stream(context, StreamOptions::default())
    }

    /// A partition that was created without a plan.
    pub(crate) fn with_stream(context: &Context, options: StreamOptions) -> Result<Live, Fault> {
        let (stream, group) = (context.create_stream(options)?, context.group());
        let name = group.map_or("", SmGroup::name).to_owned();
        let floor = group.map_or(0, SmGroup::floor);
        Live::new(stream, None, name, group.map(SmGroup::share), floor)
    }

    pub(crate) fn planned(part: green_ctx::Partition, planned: Planned) -> Result<Live, Fault> {
        let (name, share, floor) = (part.name().to_owned(), part.share(), part.floor());
        Live::new(part.stream().clone(), Some((part, planned)), name, Some(share), floor)
    }

    /// A job under a verdict that does not partition. The stream belongs to the primary context.
    pub(crate) fn plain(name: String, stream: green_ctx::Stream) -> Result<Live, Fault> {
        Live::new(stream, None, name, Some(Share::from(..)), 0)
    }

    fn new(
        stream: green_ctx::Stream,
        planned: Option<(green_ctx::Partition, Planned)>,
        name: String,
        share: Option<Share>,
        floor: u32,
    ) -> Result<Live, Fault> {
        // Python code passes the handle to torch, CuPy and other libraries, which never report that they are done
        // with it.
        stream.keep_alive()?;
        let context = stream.context();
        // Without a group, it is the primary context, which has fewer SMs under a reserve.
        let sm_count =
            context.group().map_or_else(|| context.sm_count(), |it| Ok(it.sm_count()))?;
        let (device, raw_context) = (context.device().ordinal(), context.as_raw().addr());
        let raw_stream = Handle::of(&stream);
        let facts = Facts { name, share, floor, sm_count, device, raw_context, raw_stream };
        Ok(Live { stream, planned, facts })
    }

    pub(crate) fn name(&self) -> &str {
        &self.facts.name
    }

    fn shared_with(&self) -> Vec<(String, u32)> {
        let holders = match (&self.planned, self.context().group()) {
            (Some((part, _)), _) => part.shared_with(),
            (None, group) => group.map_or_else(Vec::new, SmGroup::shared_with),
        };
        holders.into_iter().map(|holder| (holder.name.to_string(), holder.sm_count)).collect()
    }

    pub(crate) fn context(&self) -> &Context {
        self.stream.context()
    }

    pub(crate) fn stream(&self) -> &green_ctx::Stream {
        &self.stream
    }

    /// Makes the partition's stream torch's current stream on this thread.
    fn enter(&self, torch: &Torch) -> Result<(), Fault> {
        if let Some(plan) = self.planned.as_ref().and_then(|(_, planned)| planned.inactive()) {
            return Err(Fault::state(format!(
                "partition {} belongs to plan {plan}, which is not active; switch to that plan first",
                self.name()
            )));
        }
        Ok(scope::enter(torch, &self.stream)?)
    }
}

/// A group of a GPU's SMs with a green context, and a stream whose work runs on these SMs only.
///
/// `TuningOutcome.apply` also gives partitions without a green context. Their streams are plain streams, whose work may
/// run on all SMs.
///
/// `with partition:` makes the partition's stream torch's current stream. The CUDA context does not change: torch's
/// default stream and other streams are the same inside the block and outside.
#[pyclass(frozen, weakref, module = "green_ctx_torch")]
pub(crate) struct Partition {
    /// `None` after `close`.
    open: ArcSwapOption<Open>,
    /// The serial number of the partition. Later partitions have higher numbers.
    serial: u64,
    facts: Facts,
    /// Identifies the context when a thread leaves the partition, even after `close`.
    context: WeakContext,
}

/// The number of partitions created so far.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The parts of a partition that `close` drops.
struct Open {
    /// This field is dropped first, while the context is alive.
    _captured: Captured,
    live: Held<Arc<Live>>,
    stream: OnceLock<Py<PyAny>>,
}

impl Partition {
    pub(crate) fn new(live: Arc<Live>) -> Partition {
        let (facts, context) = (live.facts.clone(), live.context().weak());
        let open = Open {
            _captured: Captured { raw_context: facts.raw_context },
            live: Held::new(live),
            stream: OnceLock::new(),
        };
        let serial = MADE.fetch_add(1, Ordering::Relaxed);
        Partition { open: ArcSwapOption::from_pointee(open), serial, facts, context }
    }

    /// Returns the state of the open partition, or an error if the partition is closed.
    pub(crate) fn live(&self) -> PyResult<Arc<Live>> {
        self.with(|open| Arc::clone(&open.live))
    }

    /// Returns the address of the context, even after `close`.
    pub(crate) fn context_address(&self) -> usize {
        self.facts.raw_context
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.facts.device
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.load().is_none()
    }

    pub(crate) fn end(&self) {
        self.open.store(None);
    }

    /// Returns an error if the partition belongs to a plan, which cannot be used without it.
    pub(crate) fn check_unplanned(&self) -> PyResult<()> {
        let open = self.open.load();
        let planned = open.as_ref().and_then(|open| open.live.planned.as_ref());
        match planned.and_then(|(_, planned)| planned.used()) {
            Some((plan, _)) => Err(Fault::state(format!(
                "partition {} belongs to plan {}; retire the plan, or close the plan set",
                self.facts.name,
                plan.name()
            ))
            .into()),
            None => Ok(()),
        }
    }

    fn with<R>(&self, ask: impl FnOnce(&Open) -> R) -> PyResult<R> {
        let open = self.open.load();
        match open.as_ref() {
            Some(open) => {
                check_process(open.live.context().device())?;
                Ok(ask(open))
            }
            None => Err(Fault::closed(format!(
                "partition {} is closed; make a new one with green_ctx_torch.partition",
                self.facts.name
            ))
            .into()),
        }
    }
}

#[pymethods]
impl Partition {
    /// The partition's name.
    #[getter]
    pub(crate) fn name(&self) -> &str {
        &self.facts.name
    }

    /// The requested number of SMs; None if the request was not a plain count.
    #[getter]
    fn requested(&self) -> Option<u32> {
        match self.facts.share?.kind() {
            ShareKind::Count(count) => Some(count),
            ShareKind::Percent(_)
            | ShareKind::Between { .. }
            | ShareKind::Regular
            | ShareKind::Rest => None,
        }
    }

    /// The requested share as text: "16", "32..", "..=100" or "rest".
    #[getter]
    fn share(&self) -> Option<String> {
        self.facts.share.map(|share| share.to_string())
    }

    /// The number of SMs that no other partition may use, for a partition of a plan while that plan is active. A
    /// requested count is rounded up to one that the device can give, and a requested percentage is rounded to a nearby
    /// count.
    #[getter]
    fn floor(&self) -> u32 {
        self.facts.floor
    }

    /// The other partitions that may use SMs of this partition. Each entry is a pair: the name of the other
    /// partition, and the number of SMs that both partitions may use.
    #[getter]
    fn shared_with(&self, py: Python<'_>) -> PyResult<Vec<(String, u32)>> {
        let live = self.live()?;
        blocking(py, move || Ok(live.shared_with()))
    }

    /// The ceiling: the number of SMs that the partition may use, including shared SMs. For an exclusive partition,
    /// the ceiling equals the floor.
    #[getter]
    pub(crate) fn sm_count(&self) -> u32 {
        self.facts.sm_count
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> u32 {
        self.facts.device
    }

    /// Whether the partition is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// The partition's stream as a torch.cuda.ExternalStream. The first access creates this object.
    #[getter]
    fn stream(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.with(|open| {
            let make =
                || torch::external_stream(py, open.live.facts.raw_stream, open.live.stream());
            kept(py, &open.stream, make)
        })?
    }

    /// The driver's handle of the partition's stream, a CUstream.
    #[getter]
    fn raw_stream(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(|open| open.live.facts.raw_stream)?.give(py)
    }

    /// The driver's handle of the partition's context, a CUcontext.
    #[getter]
    pub(crate) fn raw_context(&self) -> PyResult<usize> {
        self.with(|_| self.facts.raw_context)
    }

    /// The driver's ID of the context. Profilers report this ID, and `audit` reports it as `context_id`. Partitions
    /// of several plans share one context, and so one ID, if they have the same SMs. A later partition of the same
    /// SMs may have the same ID too.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        let live = self.live()?;
        blocking(py, move || Ok(live.context().id()?))
    }

    /// Creates another stream in the partition, and returns the stream as a torch.cuda.ExternalStream.
    ///
    /// Work on streams with lower priority numbers runs first. A priority outside the driver's range is clamped to
    /// that range, which is 0 to -5 on an H200. The SMs of the partition are not free while the stream is alive.
    #[pyo3(signature = (priority=Whole(0)), text_signature = "($self, priority=0)")]
    fn create_stream(&self, py: Python<'_>, priority: Whole) -> PyResult<Py<PyAny>> {
        let live = self.live()?;
        let options = StreamOptions::default().priority(nearest(priority.0));
        let (stream, raw) = blocking(py, move || Handle::create(live.context(), options))?;
        torch::external_stream(py, raw, &stream)
    }

    /// Implements the `__cuda_stream__` protocol, through which other libraries obtain the stream. Returns the
    /// protocol version 0 and the stream's address.
    fn __cuda_stream__(&self, py: Python<'_>) -> PyResult<(u32, usize)> {
        Ok((0, self.raw_stream(py)?))
    }

    /// Makes the partition's stream torch's current stream on this thread until the block ends. Work submitted
    /// before the block runs before the block's work, and work submitted after the block runs after it.
    fn __enter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let py = this.py();
        let torch = torch::libtorch(py)?;
        torch::refuse_export(py)?;
        let live = this.get().live()?;
        let key = live.facts.raw_stream.key();
        task::enter(py, live.stream(), Mode::Stream, key, || live.enter(&torch))?;
        Ok(this)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let is_it = |entered: &green_ctx::Stream| {
            // All plain streams have the same context.
            let is_stream = || self.facts.raw_stream == Handle::of(entered);
            self.context.is(entered.context()) && (entered.context().is_green() || is_stream())
        };
        task::leave(py, self.facts.device, self.facts.raw_stream.key(), |owner| {
            Ok(match owner {
                Some(owner) => scope::leave_of_owner(owner, is_it)?,
                None => scope::leave_when_innermost(is_it)?,
            })
        })
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied(
            "a partition",
            "copy or send the division, {part.name: part.share}, and call partition with it",
        ))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.open.load().as_ref().map_or(Ok(()), |open| visit.call(open.stream.get()))
    }

    /// Closes the partition. Its SMs are free again as soon as no thread is inside it, and the program holds no stream
    /// of it, no graph that was moved there, and no MemPool of an `Allocator` with memory that was allocated there. A
    /// torch graph that was captured there does not hold them: after the close, its replay may run on SMs of another
    /// partition.
    ///
    /// Running work continues, and the next partition of these SMs waits for that work on the device. The workspaces
    /// of cuBLAS are freed too, unless a captured torch graph is alive.
    ///
    /// Raises RuntimeError for a partition of a plan, which is closed with the plan.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_unplanned()?;
        self.end();
        torch::release_workspaces(py)
    }

    fn __repr__(&self) -> String {
        let Facts { name, floor, sm_count, device, .. } = &self.facts;
        match (self.is_closed(), floor == sm_count) {
            (true, _) => format!("<Partition {name}: closed>"),
            (false, true) => format!("<Partition {name}: {sm_count} SMs of device {device}>"),
            (false, false) => {
                format!("<Partition {name}: {floor} to {sm_count} SMs of device {device}>")
            }
        }
    }
}

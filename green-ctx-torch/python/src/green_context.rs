//! The drop-in replacement for `torch.cuda.green_contexts.GreenContext`. The context of each `GreenContext` is a
//! partition of this library.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use green_ctx::{
    Error, StreamOptions,
    context::{Context, WeakContext},
    resource::SmGroup,
};
use green_ctx_torch::TorchError;
use green_ctx_torch::scope::{self, Mode, Owner};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::argument::{DeviceId, Whole, Word, unexpected};
use crate::capture::Captured;
use crate::create::{Created, Request};
use crate::deprecation;
use crate::description::{Claim, Description};
use crate::device::check_process;
use crate::fault::Fault;
use crate::gil::{Held, blocking};
use crate::limits::{limits, runtime};
use crate::locality;
use crate::made::{self, Opened, Subject};
use crate::named::not_copied;
use crate::partition::{Live, Partition};
use crate::sm_partition::{Argument, Options, SMPartition};
use crate::task;
use crate::torch::{self, Handle};

/// The maximum number of streams that `Stream()` creates for a context. Later calls return the same streams again in
/// order, as in torch.
const STREAMS: usize = 32;

/// The state of an open context. The context's streams keep the partition alive, but they do not keep this state
/// alive.
pub(crate) struct Open {
    /// This field is dropped first, while the context is alive.
    _captured: Captured,
    context: Context,
    own: OnceLock<Own>,
    /// The claim to the SMs that `sm_partition` describes. While the claim exists, no other context is created on
    /// these SMs.
    claim: OnceLock<Arc<Claim>>,
    /// This mutex is locked only without the GIL.
    given: Mutex<Given>,
}

/// The stream that `set_context` makes torch's current stream.
struct Own {
    stream: green_ctx::Stream,
    raw: Handle,
}

/// The streams that `Stream()` has returned.
#[derive(Default)]
struct Given {
    streams: Vec<green_ctx::Stream>,
    calls: usize,
}

impl Opened for Held<Open> {
    fn subject(&self) -> Subject {
        let context = self.context().clone();
        let (name, share) = (context.label().to_owned(), context.group().map(SmGroup::share));
        Subject { context, name, share, planned: None }
    }

    fn is_partition(&self) -> bool {
        false
    }
}

impl Open {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    fn own(&self) -> Result<&Own, Fault> {
        if let Some(own) = self.own.get() {
            return Ok(own);
        }
        let stream = self.create_stream()?;
        let raw = Handle::of(&stream);
        Ok(self.own.get_or_init(|| Own { stream, raw }))
    }

    /// Creates a stream whose handle stays valid for the rest of the process, so that torch and other libraries can
    /// use the handle at any time.
    fn create_stream(&self) -> Result<green_ctx::Stream, Fault> {
        let stream = self.context.create_stream(StreamOptions::default())?;
        stream.keep_alive()?;
        Ok(stream)
    }

    fn claim(&self) -> Result<&Arc<Claim>, Fault> {
        if let Some(claim) = self.claim.get() {
            return Ok(claim);
        }
        let context = &self.context;
        let (device, sm_count) = (context.device().ordinal(), sm_count(context));
        let claim = Description::of_context(device, sm_count, context.label())?;
        Ok(self.claim.get_or_init(|| claim))
    }

    fn next_stream(&self) -> Result<green_ctx::Stream, Fault> {
        let mut given = self.given.lock();
        let place = given.calls % STREAMS;
        given.calls += 1;
        if let Some(stream) = given.streams.get(place) {
            return Ok(stream.clone());
        }
        let stream = self.create_stream()?;
        given.streams.push(stream.clone());
        Ok(stream)
    }
}

/// A CUDA green context: some of a GPU's SMs for torch's work. No other context or partition uses these SMs, except if
/// this context was created with neither `num_sms` nor `sm_partition`, or by the replacement for FlashInfer.
///
///     context = GreenContext.create(num_sms=16)
///     with context:
///         y = a @ b
///
/// `with context:` makes a stream of the context torch's current stream on this thread. Work submitted before the
/// block runs before the block's work, and work submitted after the block runs after it. Blocks can be nested, even
/// blocks of the same context. A block can also be inside a graph capture. Entering and leaving a block affects only
/// the calling thread. `set_context` and `pop_context` are for programs that already use these methods of torch. Both
/// methods change the thread's CUDA context too.
///
/// The SMs are free again when the object is dropped or closed and the program holds no stream of the context.
#[pyclass(frozen, subclass, weakref, module = "green_ctx_torch")]
pub(crate) struct GreenContext {
    /// Empty until `__init__` has run. A subclass must call `__init__`.
    made: OnceLock<Made>,
}

/// The state that `__init__` creates.
struct Made {
    /// `None` after `close`.
    open: ArcSwapOption<Held<Open>>,
    raw_context: usize,
    /// Identifies the context when a thread leaves the context, even after `close`.
    context: WeakContext,
    requested: Option<u32>,
    sm_count: u32,
    device: u32,
}

fn sm_count(context: &Context) -> u32 {
    context.group().map_or(0, SmGroup::sm_count)
}

impl Made {
    /// Creates the state of an open context. Reads raw handles, so the caller must not hold the GIL.
    fn new(Created { context, requested, claim }: Created) -> Made {
        let device = context.device().ordinal();
        let (raw_context, sm_count) = (context.as_raw().addr(), sm_count(&context));
        let weak = context.weak();
        let claim = claim.map_or_else(OnceLock::new, OnceLock::from);
        let open = Open {
            _captured: Captured { raw_context },
            context,
            own: OnceLock::new(),
            claim,
            given: Mutex::default(),
        };
        let open = Arc::new(Held::new(open));
        made::note(&open);
        let open = ArcSwapOption::new(Some(open));
        Made { open, raw_context, context: weak, requested, sm_count, device }
    }

    fn live(&self) -> Result<Arc<Held<Open>>, Fault> {
        let open = self.open.load_full().ok_or_else(|| {
            Fault::closed("the GreenContext is closed; make a new one with GreenContext.create")
        })?;
        check_process(open.context.device())?;
        Ok(open)
    }
}

impl GreenContext {
    /// Wraps a context. Reads raw handles, so the caller must not hold the GIL.
    pub(crate) fn of(created: Created) -> GreenContext {
        GreenContext { made: OnceLock::from(Made::new(created)) }
    }

    fn made(&self) -> Result<&Made, Fault> {
        self.made.get().ok_or_else(|| {
            Fault::state(
                "the GreenContext has no SMs yet; the __init__ of a subclass must call \
                 super().__init__(num_sms=16) first",
            )
        })
    }

    pub(crate) fn live(&self) -> Result<Arc<Held<Open>>, Fault> {
        self.made()?.live()
    }

    /// Reads the argument `sm_partition`. Returns the description of the given `SMPartition`, if there is one, and
    /// the ordinal of the device.
    fn described(
        py: Python<'_>,
        sm_partition: Option<&Bound<'_, PyAny>>,
        device: DeviceId,
    ) -> PyResult<(Option<Arc<Description>>, i64)> {
        const EXPECTED: &str = "sm_partition must be an SMPartition, such as SMPartition.from_device() or a part of it";
        let Some(given) = sm_partition else { return Ok((None, device.ordinal(py)?)) };
        let given = given.cast::<SMPartition>().map_err(|_| unexpected(given, EXPECTED))?;
        let description = given.get().description();
        let own = i64::from(description.device());
        match device {
            DeviceId::Ordinal(other) if other != own => Err(Fault::value(format!(
                "device_id is {other}, but the SMPartition is on device {own}; leave device_id out"
            ))
            .into()),
            _ => Ok((Some(Arc::clone(description)), own)),
        }
    }

    fn make(py: Python<'_>, request: Request, ordinal: i64) -> PyResult<Made> {
        blocking(py, move || Ok(Made::new(request.create(ordinal)?)))
    }

    /// Makes the context's own stream torch's current stream on this thread.
    fn begin(&self, py: Python<'_>, mode: Mode) -> PyResult<()> {
        let made = self.made()?;
        // Checked first, so that a closed context does not import torch.
        let open = made.live()?;
        let torch = torch::libtorch(py)?;
        torch::refuse_export(py)?;
        let own = match open.own.get() {
            Some(own) => own,
            None => blocking(py, || open.own())?,
        };
        task::enter(py, &own.stream, mode, made.raw_context, || {
            scope::enter_as(&torch, &own.stream, mode).map_err(runtime)
        })
    }

    /// Leaves the context that this thread entered last.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let made = self.made()?;
        task::leave(py, made.device, made.raw_context, |_| made.leave())
    }
}

impl Made {
    /// Leaves the context. Returns whether an asyncio task had entered the context, and the owner of the block.
    fn leave(&self) -> Result<(bool, Owner), Fault> {
        // This does not go through `live`, because a context that was closed inside its block can still be left.
        match scope::leave_innermost(|stream| self.context.is(stream.context())) {
            Err(TorchError::NotInnermost | TorchError::NotEntered) => {}
            Err(forked @ TorchError::Driver(Error::Forked)) => return Err(Fault::Torch(forked)),
            left => return left.map_err(runtime),
        }
        self.live()?;
        Err(Fault::state(match scope::depth() {
            0 => {
                "pop_context called without matching set_context: no context is set on this thread; \
                 call set_context on the same thread first"
            }
            _ => {
                "pop_context called on a context that is not the one set last on this thread; call \
                 pop_context of that one first"
            }
        }))
    }
}

#[pymethods]
impl GreenContext {
    /// Creates a context, as `create` does.
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords),
        text_signature = "(*, num_sms=None, sm_partition=None, workqueue_scope=None, \
        workqueue_concurrency_limit=None, device_id=None)")]
    fn construct(
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> GreenContext {
        GreenContext { made: OnceLock::new() }
    }

    #[pyo3(signature = (*, num_sms=None, sm_partition=None, workqueue_scope=None,
        workqueue_concurrency_limit=None, device_id=DeviceId::Current))]
    fn __init__(
        &self,
        py: Python<'_>,
        num_sms: Option<Whole>,
        sm_partition: Option<&Bound<'_, PyAny>>,
        workqueue_scope: Option<Word>,
        workqueue_concurrency_limit: Option<Whole>,
        device_id: DeviceId,
    ) -> PyResult<()> {
        let (described, ordinal) = GreenContext::described(py, sm_partition, device_id)?;
        let (scope, limit) = (workqueue_scope, workqueue_concurrency_limit);
        let request = Request::read(num_sms, described, scope, limit)?;
        let made = GreenContext::make(py, request, ordinal)?;
        self.made.set(made).map_err(|_| {
            Fault::state("the GreenContext already has its SMs; make another object").into()
        })
    }

    /// Creates a context with `num_sms` SMs, rounded up to a count that the device can give, or with the SMs that an
    /// `SMPartition` describes.
    ///
    /// With `workqueue_scope` alone (CUDA 13.1), the context has no floor. Such a context shares every SM that is in no
    /// floor at the time of its creation. While such a context is open, no SMs are available for new floors, so create
    /// this context last. One of the three is required.
    ///
    /// Accepts the arguments of torch 2.11. The arguments that newer versions added are accepted as keywords.
    /// `device_id=None` selects torch's current device.
    ///
    /// Raises RuntimeError if the device has fewer than `num_sms` SMs, if other partitions hold the SMs, or if the
    /// device does not exist. Raises ValueError for an unknown workqueue scope. If the call fails, no context is
    /// created.
    #[staticmethod]
    #[pyo3(signature = (num_sms=None, device_id=DeviceId::Current, *, sm_partition=None,
        workqueue_scope=None, workqueue_concurrency_limit=None),
        text_signature = "(num_sms=None, device_id=None, *, sm_partition=None, \
        workqueue_scope=None, workqueue_concurrency_limit=None)")]
    fn create(
        py: Python<'_>,
        num_sms: Option<Whole>,
        device_id: DeviceId,
        sm_partition: Option<&Bound<'_, PyAny>>,
        workqueue_scope: Option<Word>,
        workqueue_concurrency_limit: Option<Whole>,
    ) -> PyResult<GreenContext> {
        let (described, ordinal) = GreenContext::described(py, sm_partition, device_id)?;
        let (scope, limit) = (workqueue_scope, workqueue_concurrency_limit);
        let request = Request::read(num_sms, described, scope, limit)?;
        let made = GreenContext::make(py, request, ordinal)?;
        Ok(GreenContext { made: OnceLock::from(made) })
    }

    /// Divides all SMs of a device into groups, as `SMPartition.split` does, and creates a context for each group. If
    /// one context cannot be created, no context is created. The workqueue arguments apply to each context. SMs that
    /// belong to no group stay free.
    #[staticmethod]
    #[pyo3(signature = (*, num_sms=Argument::default(), coscheduled_sm_count=Argument::default(),
        preferred_coscheduled_sm_count=Argument::default(), backfill=Argument::default(),
        locality_domain_ids=Argument::default(), workqueue_scope=None, workqueue_concurrency_limit=None, device_id=DeviceId::Current),
        text_signature = "(*, num_sms=0, coscheduled_sm_count=0, preferred_coscheduled_sm_count=0, \
        backfill=False, locality_domain_ids=None, workqueue_scope=None, \
        workqueue_concurrency_limit=None, device_id=None)")]
    #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
    fn split<'py>(
        py: Python<'py>,
        num_sms: Argument<'py>,
        coscheduled_sm_count: Argument<'py>,
        preferred_coscheduled_sm_count: Argument<'py>,
        backfill: Argument<'py>,
        locality_domain_ids: Argument<'py>,
        workqueue_scope: Option<Word>,
        workqueue_concurrency_limit: Option<Whole>,
        device_id: DeviceId,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let groups = Options {
            num_sms,
            coscheduled_sm_count,
            preferred_coscheduled_sm_count,
            backfill,
            locality_domain_ids,
        }
        .read()?;
        let ordinal = device_id.ordinal(py)?;
        let made = blocking(py, move || {
            let device = Description::of_device(ordinal)?;
            let limit = workqueue_concurrency_limit;
            let request = Request::read(None, Some(Arc::clone(&device)), workqueue_scope, limit)?;
            let (parts, _rest) = device.split(&groups)?;
            let make = |part| Ok(GreenContext::of(request.of_part(part).create(ordinal)?));
            parts.into_iter().map(make).collect::<Result<Vec<_>, Fault>>()
        })?;
        let made = made.into_iter().map(|context| context.into_pyobject(py));
        PyTuple::new(py, made.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the maximum `workqueue_concurrency_limit` that a device accepts. Needs CUDA 13.1.
    #[staticmethod]
    #[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
    fn max_workqueue_concurrency(py: Python<'_>, device_id: DeviceId) -> PyResult<u32> {
        let ordinal = device_id.ordinal(py)?;
        blocking(py, move || {
            let device = limits(ordinal)?.0;
            Ok(device.resources().workqueue().map_err(runtime)?.concurrency_limit())
        })
    }

    /// Makes the context current on this thread, and its own stream torch's current stream. The stream waits for
    /// work already submitted to the previously current stream.
    ///
    /// While the context is current, the handle of a CUDA default stream refers to this context's default stream. So
    /// `torch.cuda.default_stream()` is one stream inside the context and a different stream outside, and no ordering
    /// exists between these two streams. For this reason torch 2.14 deprecated `set_context` and `pop_context`, and
    /// both methods give a FutureWarning. `with context:` changes only the current stream, not the current context.
    ///
    /// Raises RuntimeError if this thread is already in the context.
    fn set_context(&self, py: Python<'_>) -> PyResult<()> {
        deprecation::warn(py)?;
        let made = self.made()?;
        if scope::is_entered(|context| made.context.is(context)) {
            return Err(Fault::state(
                "set_context called twice before pop_context; call pop_context first, or nest \
                 `with context:` blocks",
            )
            .into());
        }
        self.begin(py, Mode::Context)
    }

    /// Restores the context and the stream that were current before `set_context`. The restored stream waits for the
    /// work submitted in the context.
    ///
    /// Deprecated, like `set_context`.
    ///
    /// Raises RuntimeError if the context is not the one that this thread set last. If the call fails, nothing
    /// changes.
    fn pop_context(&self, py: Python<'_>) -> PyResult<()> {
        deprecation::warn(py)?;
        self.end(py)
    }

    fn __enter__<'py>(slf: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        slf.begin(py, Mode::Stream)?;
        Ok(slf)
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.end(py)
    }

    /// Returns a torch.cuda.ExternalStream of the context. A context has at most 32 such streams; later calls return
    /// the same streams again in order, as in torch. Work on these streams is not ordered with work on other streams.
    #[allow(non_snake_case, reason = "the name in torch")]
    fn Stream(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, context) = (this.py(), this.get());
        let (stream, raw) = blocking(py, || {
            let stream = context.live()?.next_stream()?;
            let raw = Handle::of(&stream);
            Ok((Held::new(stream), raw))
        })?;
        let made = torch::external_stream(py, raw, &stream)?;
        // A caller that holds the stream alone, as users of the drop-ins do, also keeps the context alive, so that
        // `verify` finds it.
        made.setattr(py, "_green_ctx_context", this)?;
        Ok(made)
    }

    /// The number of SMs that the context's work can run on. A requested number is rounded up to one that the device
    /// can give.
    #[getter]
    fn sm_count(&self) -> PyResult<u32> {
        Ok(self.made()?.sm_count)
    }

    /// The context's SMs as an SMPartition, which can be split. Once this context is closed, other contexts can be
    /// created from this SMPartition or from parts of it.
    #[getter]
    fn sm_partition(&self, py: Python<'_>) -> PyResult<SMPartition> {
        blocking(py, || Ok(SMPartition::new(Arc::clone(self.live()?.claim()?.description()))))
    }

    /// The requested locality domain, or None. Raises RuntimeError if the driver is older than CUDA 13.4.
    #[getter]
    fn locality_domain_id(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        blocking(py, || {
            locality::ensure_known()?;
            Ok(self.live()?.claim()?.description().locality_domain())
        })
    }

    /// The requested number of SMs; None if no number was requested.
    #[getter]
    fn requested(&self) -> PyResult<Option<u32>> {
        Ok(self.made()?.requested)
    }

    /// The device's ordinal.
    #[getter]
    fn device_id(&self) -> PyResult<u32> {
        Ok(self.made()?.device)
    }

    /// Whether the context is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.made.get().is_none_or(|made| made.open.load().is_none())
    }

    /// The driver's handle of the stream that `set_context` makes current, a CUstream.
    #[getter]
    fn raw_stream(&self, py: Python<'_>) -> PyResult<usize> {
        blocking(py, || Ok(self.live()?.own()?.raw))?.give(py)
    }

    /// The driver's handle of the context, a CUcontext.
    #[getter]
    fn raw_context(&self) -> PyResult<usize> {
        let made = self.made()?;
        made.live()?;
        Ok(made.raw_context)
    }

    /// The driver's ID of the context. Profilers report this ID, and `audit` reports it as `context_id`. A later
    /// partition of the same SMs may have the same context and ID.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        blocking(py, || Ok(self.live()?.context.id()?))
    }

    /// The context's SMs as a Partition, for `verify`, `retarget` and streams with other priorities.
    #[getter]
    fn partition(&self, py: Python<'_>) -> PyResult<Partition> {
        blocking(py, || {
            let live = Live::own(&self.live()?.context)?;
            Ok(Partition::new(Arc::new(live)))
        })
    }

    /// Implements the `__cuda_stream__` protocol, through which other libraries obtain the stream. Returns the
    /// protocol version 0 and the stream's address.
    fn __cuda_stream__(&self, py: Python<'_>) -> PyResult<(u32, usize)> {
        Ok((0, self.raw_stream(py)?))
    }

    /// Closes the context. Its SMs are free again as soon as the program holds no stream of the context and no thread
    /// is in the context. A thread in a closed context can still call `pop_context`, which restores the previous
    /// context and stream.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(made) = self.made.get() {
            made.open.store(None);
        }
        torch::release_workspaces(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copied("a GreenContext", "call GreenContext.create with the same arguments"))
    }

    fn __repr__(&self) -> String {
        match self.made.get().filter(|made| made.open.load().is_some()) {
            None => "<GreenContext: closed>".to_owned(),
            Some(Made { sm_count, device, .. }) => {
                format!("<GreenContext: {sm_count} SMs of device {device}>")
            }
        }
    }
}

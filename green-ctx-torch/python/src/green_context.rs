//! `torch.cuda.green_contexts.GreenContext`, on partitions that own their SMs.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use green_ctx::{
    StreamOptions,
    context::{Context, WeakContext},
    resource::SmGroup,
};
use green_ctx_torch::{Torch, scope};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::argument::{DeviceId, Whole};
use crate::fault::Fault;
use crate::gil::{Held, blocking};
use crate::partition::{Live, Partition};
use crate::provision::{Request, limits, runtime};
use crate::report;
use crate::task;
use crate::torch;

/// After so many streams of a context the first comes again, as in torch.
const STREAMS: usize = 32;

/// What a context is as long as it is not closed. Streams keep the partition, not this.
pub(crate) struct Open {
    context: Context,
    own: OnceLock<Own>,
    /// Only taken without the GIL.
    given: Mutex<Given>,
}

/// The stream that `set_context` makes torch's current one.
struct Own {
    stream: green_ctx::Stream,
    raw: usize,
}

/// The streams that `Stream()` gave out.
#[derive(Default)]
struct Given {
    streams: Vec<green_ctx::Stream>,
    calls: usize,
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
        let raw = stream.as_raw().addr();
        Ok(self.own.get_or_init(|| Own { stream, raw }))
    }

    /// A stream that torch, and whoever else gets its handle, can use to the end.
    fn create_stream(&self) -> Result<green_ctx::Stream, Fault> {
        let stream = self.context.create_stream(StreamOptions::default())?;
        stream.keep_alive()?;
        Ok(stream)
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

/// A CUDA green context: some of a GPU's SMs, which nobody else has unless no count was asked for, for
/// torch's work.
///
/// `set_context` submits what torch does on this thread to the context, until `pop_context`. Both keep
/// the order: what was submitted before comes first. Calls nest, one context within itself too, and
/// each thread has its own. They can stand within the capture of a graph. `with context:` does both.
///
/// The SMs are free again when the object and its streams are gone, or after `close`.
#[pyclass(frozen, module = "green_ctx_torch")]
pub(crate) struct GreenContext {
    /// `None` once it is closed.
    open: ArcSwapOption<Held<Open>>,
    raw_context: usize,
    /// By which it is found where it is set, after closing too.
    context: WeakContext,
    requested: Option<u32>,
    sm_count: u32,
    device: u32,
}

impl GreenContext {
    /// Of a context that was made for so many SMs. Reads raw handles, so without the GIL.
    pub(crate) fn new(context: Context, requested: Option<u32>) -> GreenContext {
        let device = context.device().ordinal();
        let (raw_context, sm_count) =
            (context.as_raw().addr(), context.group().map_or(0, SmGroup::sm_count));
        let weak = context.weak();
        let open = Open { context, own: OnceLock::new(), given: Mutex::default() };
        let open = Arc::new(Held::new(open));
        report::note_green_context(&open);
        let open = ArcSwapOption::new(Some(open));
        GreenContext { open, raw_context, context: weak, requested, sm_count, device }
    }

    fn make(py: Python<'_>, request: Request, device: DeviceId) -> PyResult<GreenContext> {
        let ordinal = device.ordinal(py)?;
        blocking(py, move || {
            let context = request.create(ordinal)?;
            Ok(GreenContext::new(context, request.sm_count()))
        })
    }

    pub(crate) fn live(&self) -> Result<Arc<Held<Open>>, Fault> {
        self.open.load_full().ok_or_else(|| {
            Fault::state("the GreenContext is closed; make a new one with GreenContext.create")
        })
    }

    fn enter(&self, py: Python<'_>, torch: &Torch) -> PyResult<()> {
        let open = self.live()?;
        blocking(py, || scope::enter(torch, &open.context, &open.own()?.stream).map_err(runtime))?;
        let own = open.own()?;
        task::entered(py, &open.context, &own.stream, self.raw_context)
    }

    fn leave(&self) -> Result<(), Fault> {
        // Not asked of `live`: a context that was closed while it is set can be left.
        let innermost = scope::innermost();
        let set = innermost.filter(|context| self.context.is(context));
        if let Some(context) = set {
            return scope::leave(&context).map_err(runtime);
        }
        self.live()?;
        Err(Fault::state(match scope::depth() {
            0 => {
                "pop_context without set_context: no context is set on this thread; call \
                 set_context on the same thread first"
            }
            _ => {
                "pop_context of a context that is not the one set last on this thread; call \
                 pop_context of that one first"
            }
        }))
    }
}

#[pymethods]
impl GreenContext {
    /// Creates a context, as `create` does; torch 2.15 has this form.
    #[new]
    #[pyo3(signature = (*, num_sms=None, workqueue_scope=None, workqueue_concurrency_limit=None,
        device_id=DeviceId::Current),
        text_signature = "(*, num_sms=None, workqueue_scope=None, \
        workqueue_concurrency_limit=None, device_id=None)")]
    fn construct(
        py: Python<'_>,
        num_sms: Option<Whole>,
        workqueue_scope: Option<&str>,
        workqueue_concurrency_limit: Option<Whole>,
        device_id: DeviceId,
    ) -> PyResult<GreenContext> {
        let request = Request::read(num_sms, workqueue_scope, workqueue_concurrency_limit)?;
        GreenContext::make(py, request, device_id)
    }

    /// Creates a context of at least `num_sms` SMs, rounded up as the driver does. Without `num_sms`
    /// it has no SMs of its own: it uses those that no other context or partition has when it is
    /// created, beside whoever else does. While it lives nobody gets SMs of their own, so create it
    /// last.
    ///
    /// Takes the arguments of torch 2.11, and by keyword those of torch 2.12. `device_id=None` is
    /// torch's current device.
    ///
    /// RuntimeError for a count that the device does not have or that others hold, and for a device
    /// that is not there; ValueError for an unknown workqueue scope. Nothing is created then.
    #[staticmethod]
    #[pyo3(signature = (num_sms=None, device_id=DeviceId::Current, *, workqueue_scope=None,
        workqueue_concurrency_limit=None),
        text_signature = "(num_sms=None, device_id=None, *, workqueue_scope=None, \
        workqueue_concurrency_limit=None)")]
    fn create(
        py: Python<'_>,
        num_sms: Option<Whole>,
        device_id: DeviceId,
        workqueue_scope: Option<&str>,
        workqueue_concurrency_limit: Option<Whole>,
    ) -> PyResult<GreenContext> {
        let request = Request::read(num_sms, workqueue_scope, workqueue_concurrency_limit)?;
        GreenContext::make(py, request, device_id)
    }

    /// The greatest `workqueue_concurrency_limit` of a device. Needs CUDA 13.1.
    #[staticmethod]
    #[pyo3(signature = (device_id=DeviceId::Current), text_signature = "(device_id=None)")]
    fn max_workqueue_concurrency(py: Python<'_>, device_id: DeviceId) -> PyResult<u32> {
        let ordinal = device_id.ordinal(py)?;
        blocking(py, move || {
            let device = limits(ordinal)?.0;
            Ok(device.resources().workqueue().map_err(runtime)?.concurrency_limit())
        })
    }

    /// Makes the context current on this thread, and a stream of its own torch's current one. That
    /// stream waits for what was submitted to the one that was current.
    fn set_context(&self, py: Python<'_>) -> PyResult<()> {
        // First: a closed context is no reason to import torch.
        self.live()?;
        let torch = torch::libtorch(py)?;
        self.enter(py, &torch)
    }

    /// Puts back what was current before `set_context`. The stream that was waits for what was
    /// submitted in the context.
    ///
    /// RuntimeError where the context is not the one that this thread set last; nothing changes then.
    fn pop_context(&self, py: Python<'_>) -> PyResult<()> {
        let of_task = scope::task::is_innermost_of_task();
        blocking(py, || self.leave())?;
        task::left(py, self.raw_context, of_task)
    }

    fn __enter__<'py>(slf: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        slf.set_context(py)?;
        Ok(slf)
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.pop_context(py)
    }

    /// A torch.cuda.ExternalStream of the context. There are at most 32, which then come again in
    /// order, as torch's do. Other streams do not wait for it, nor it for them.
    #[allow(non_snake_case, reason = "the name in torch")]
    fn Stream(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, context) = (this.py(), this.get());
        let (stream, raw) = blocking(py, || {
            let stream = context.live()?.next_stream()?;
            let raw = stream.as_raw().addr();
            Ok((Held::new(stream), raw))
        })?;
        let made = torch::external_stream(py, raw, &stream)?;
        // Whoever keeps the stream alone, as users of the drop-ins do, keeps a context that `verify`
        // finds.
        made.setattr(py, "_green_ctx_context", this)?;
        Ok(made)
    }

    /// The SMs that its work can run on: as many as were asked for, or the next count that the device
    /// can give.
    #[getter]
    fn sm_count(&self) -> u32 {
        self.sm_count
    }

    /// The SMs that were asked for; None where it has none of its own.
    #[getter]
    fn requested(&self) -> Option<u32> {
        self.requested
    }

    /// The device's ordinal.
    #[getter]
    fn device_id(&self) -> u32 {
        self.device
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.load().is_none()
    }

    /// The driver's handle of the stream that `set_context` makes current, a CUstream.
    #[getter]
    fn raw_stream(&self, py: Python<'_>) -> PyResult<usize> {
        blocking(py, || Ok(self.live()?.own()?.raw))
    }

    /// The driver's handle of the context, a CUcontext.
    #[getter]
    fn raw_context(&self) -> PyResult<usize> {
        self.live()?;
        Ok(self.raw_context)
    }

    /// The context's number: unique in the process, never used again, and the `context_id` of an
    /// `audit`.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        blocking(py, || Ok(self.live()?.context.id()?))
    }

    /// The same SMs as a Partition, for `verify`, `retarget` and streams of other priorities.
    #[getter]
    fn partition(&self, py: Python<'_>) -> PyResult<Partition> {
        blocking(py, || {
            let live = Live::own(self.live()?.context.clone())?;
            Ok(Partition::new(Arc::new(live)))
        })
    }

    /// The protocol by which other libraries take a stream: version and address.
    fn __cuda_stream__(&self, py: Python<'_>) -> PyResult<(u32, usize)> {
        Ok((0, self.raw_stream(py)?))
    }

    /// Gives the SMs back, as soon as no stream of the context is held any more and it is set
    /// nowhere. Where it is set, `pop_context` puts back what was current all the same.
    fn close(&self) {
        self.open.store(None);
    }

    fn __repr__(&self) -> String {
        match self.closed() {
            true => "<GreenContext: closed>".to_owned(),
            false => {
                let device = self.device;
                format!("<GreenContext: {} SMs of device {device}>", self.sm_count)
            }
        }
    }
}

//! Direct driver calls, and unsafe calls of green-ctx.

use std::ptr;
use std::sync::Arc;

use green_ctx::sys::{CUcontext, CUgraph, CUresult, CUstream, CUstreamCaptureMode};
use green_ctx::{
    DeviceBuffer, Driver, Error, Kernel, LaunchConfig, Result, Stream, StreamOptions,
    context::Context, graph::GraphExec, stream::DefaultStream,
};

use crate::account::Partition;

/// More blocks than any part has SMs, so that a launch shows all SMs of its context. Few enough for a
/// cooperative launch.
const GRID: u32 = 160;

fn ok(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Error::Driver { call, status }) }
}

/// Launches the kernel in a stream.
pub(crate) fn launch(stream: &Stream, kernel: &Kernel, nanoseconds: u64) -> Result<()> {
    // SAFETY: the argument matches the kernel's parameter, and the kernel touches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(GRID, 32), (nanoseconds,)) }
}

/// Attributes of a launch besides its shape.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Special {
    /// All blocks run at the same time.
    Cooperative,
    /// The blocks of a cluster run at the same time.
    Cluster,
    /// The kernel may start before the previous one in the stream has ended.
    Dependent,
}

/// Launches the kernel in a stream with a launch attribute.
pub(crate) fn launch_special(
    stream: &Stream,
    kernel: &Kernel,
    nanoseconds: u64,
    special: Special,
) -> Result<()> {
    let config = LaunchConfig::new(GRID, 32);
    let config = match special {
        Special::Cooperative => config.cooperative(true),
        Special::Cluster => config.cluster((2, 1, 1)),
        Special::Dependent => config.programmatic_dependent_launch(true),
    };
    // SAFETY: the argument matches the kernel's parameter, and the kernel touches no memory.
    unsafe { stream.launch(kernel, config, (nanoseconds,)) }
}

/// Launches the kernel in a raw stream, which the caller keeps alive.
fn launch_raw(driver: &Driver, raw: CUstream, kernel: &Kernel, nanoseconds: u64) -> Result<()> {
    let launch = driver.api().cuLaunchKernel()?;
    let mut duration = nanoseconds;
    let mut arguments = [(&raw mut duration).cast()];
    let (function, none) = (kernel.as_raw().cast(), ptr::null_mut());
    // SAFETY: kernel and stream are alive, `cuLaunchKernel` accepts a CUkernel as a CUfunction (cuda.h), and
    // `arguments` has an entry for the one parameter, which the driver copies.
    ok("cuLaunchKernel", unsafe {
        launch(function, GRID, 1, 1, 32, 1, 1, 0, raw, arguments.as_mut_ptr(), none)
    })
}

/// Launches the kernel in a context's default stream.
pub(crate) fn launch_default(context: &Context, kernel: &Kernel, nanoseconds: u64) -> Result<()> {
    let _current = context.make_current()?;
    let driver = context.device().driver();
    launch_raw(driver, DefaultStream::Legacy.as_raw(), kernel, nanoseconds)
}

/// Submits a memset to a stream.
pub(crate) fn memset(stream: &Stream, memory: &DeviceBuffer<u32>) -> Result<()> {
    let set = stream.context().device().driver().api().cuMemsetD32Async()?;
    // SAFETY: the buffer has this many values, and the machine keeps it until all work is done.
    ok("cuMemsetD32Async", unsafe { set(memory.as_raw(), 7, memory.len(), stream.as_raw()) })
}

/// Launches a graph.
pub(crate) fn launch_graph(stream: &Stream, graph: &GraphExec) -> Result<()> {
    // SAFETY: the graph's kernels touch no memory, and the machine keeps the memsets' buffer until all work is done.
    unsafe { stream.launch_graph(graph) }
}

/// A foreign stream in a partition. It keeps the partition alive.
pub(crate) struct Foreign {
    raw: CUstream,
    /// Whether a `Stream` owns and destroys the stream now.
    taken: std::sync::atomic::AtomicBool,
    pub(crate) context: Context,
    pub(crate) partition: Arc<Partition>,
}

// SAFETY: a stream's handle belongs to the process, not to a thread.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    pub(crate) fn make(context: &Context, partition: &Arc<Partition>) -> Result<Foreign> {
        let raw = make_stream(context)?;
        let (context, partition) = (context.clone(), Arc::clone(partition));
        Ok(Foreign { raw, taken: false.into(), context, partition })
    }

    pub(crate) fn launch(&self, kernel: &Kernel, nanoseconds: u64) -> Result<()> {
        launch_raw(self.context.device().driver(), self.raw, kernel, nanoseconds)
    }

    /// Transfers the ownership of the stream to a `Stream`.
    pub(crate) fn give(self: Arc<Foreign>) -> std::result::Result<Stream, (Arc<Foreign>, Error)> {
        // SAFETY: the stream belongs to the context, and once `taken` is set, `Drop` does not destroy it.
        match unsafe { Stream::from_raw_owned(&self.context, self.raw) } {
            Ok(stream) => {
                self.taken.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok(stream)
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Lends the stream to a `Stream`, which keeps `self` alive.
    pub(crate) fn lend(self: &Arc<Foreign>, ends_with_a_stream: bool) -> Result<Stream> {
        let driver = self.context.device().driver();
        let owner = Owner { foreign: Arc::clone(self), ends_with_a_stream };
        // SAFETY: `owner` keeps the stream and its context alive.
        unsafe { Stream::from_raw_borrowed(driver, self.raw, owner) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if !*self.taken.get_mut() {
            let driver = self.context.device().driver();
            driver.report(destroy_stream(driver, self.raw));
        }
    }
}

/// The owner of a borrowed stream.
struct Owner {
    foreign: Arc<Foreign>,
    /// Whether its drop creates a stream in the same partition, as a library's code might.
    ends_with_a_stream: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.ends_with_a_stream {
            drop(self.foreign.context.create_stream(StreamOptions::default()));
        }
    }
}

/// A foreign stream that is being captured, and keeps nothing alive.
pub(crate) struct ForeignCapture {
    raw: CUstream,
    driver: Driver,
}

impl ForeignCapture {
    pub(crate) fn begin(context: &Context) -> Result<ForeignCapture> {
        let driver = context.device().driver().clone();
        let raw = make_stream(context)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let begin = driver.api().cuStreamBeginCapture()?;
        // SAFETY: the stream was created above.
        if let Err(error) = ok("cuStreamBeginCapture", unsafe { begin(raw, mode) }) {
            destroy_stream(&driver, raw)?;
            return Err(error);
        }
        Ok(ForeignCapture { raw, driver })
    }

    /// Ends the capture and destroys the stream. An error means that the stream is left behind, since its
    /// context was destroyed first.
    pub(crate) fn end(self) -> Result<()> {
        let api = self.driver.api();
        let mut graph: CUgraph = ptr::null_mut();
        let end = api.cuStreamEndCapture()?;
        // SAFETY: the simulated driver refuses a stream that was destroyed with its context, and `graph`
        // outlives the call.
        let status = unsafe { end(self.raw, &raw mut graph) };
        if status == CUresult::CUDA_SUCCESS && !graph.is_null() {
            let destroy = api.cuGraphDestroy()?;
            // SAFETY: the capture just returned the graph, and no other code has it.
            ok("cuGraphDestroy", unsafe { destroy(graph) })?;
        }
        destroy_stream(&self.driver, self.raw)
    }
}

/// A stream that was kept alive until the process ends.
#[derive(Clone)]
pub struct Kept {
    raw: CUstream,
    context: CUcontext,
    /// The driver's id of the context.
    pub(crate) context_id: u64,
    driver: Driver,
}

// SAFETY: the handles belong to the process, not to a thread.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Kept {
    pub(crate) fn new(stream: &Stream, context_id: u64) -> Kept {
        let driver = stream.context().device().driver().clone();
        Kept { raw: stream.as_raw(), context: stream.context().as_raw(), context_id, driver }
    }

    /// Wraps the stream.
    pub(crate) fn wrap(&self) -> Result<Stream> {
        // SAFETY: the stream and its context are never destroyed.
        unsafe { Stream::from_raw_borrowed(&self.driver, self.raw, ()) }
    }

    /// Wraps the stream's context.
    pub(crate) fn wrap_context(&self) -> Result<Context> {
        // SAFETY: the context is never destroyed.
        unsafe { Context::from_raw_borrowed(&self.driver, self.context, ()) }
    }

    /// Returns whether this is the object that the stream's handle leads to.
    pub(crate) fn is(&self, stream: &Stream) -> bool {
        self.driver.find_stream(self.raw).as_ref() == Some(stream)
    }

    /// Returns whether both handles lead to this object of the context.
    pub(crate) fn leads_to(&self, context: &Context) -> bool {
        let stream = self.driver.find_stream(self.raw);
        self.driver.find_context(self.context).as_ref() == Some(context)
            && stream.is_none_or(|stream| stream.context() == context)
    }

    /// Returns the driver's status if the stream no longer exists. No handle value is ever used for two streams.
    pub(crate) fn lost(&self) -> Result<Option<CUresult>> {
        // Other queries invalidate captures, or are among the calls made to fail.
        let ask = self.driver.api().cuStreamGetGreenCtx()?;
        let mut green = ptr::null_mut();
        // SAFETY: the simulated driver refuses a stream that was destroyed, and `green` outlives the call.
        let status = unsafe { ask(self.raw, &raw mut green) };
        let lost = [
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_STREAM_DETACHED,
        ];
        Ok(Some(status).filter(|status| lost.contains(status)))
    }
}

/// Creates a stream of a context as another library does: by making the context current.
fn make_stream(context: &Context) -> Result<CUstream> {
    let _current = context.make_current()?;
    let create = context.device().driver().api().cuStreamCreate()?;
    let mut raw = ptr::null_mut();
    // SAFETY: the context is current, and `raw` outlives the call.
    ok("cuStreamCreate", unsafe { create(&raw mut raw, 1) })?;
    Ok(raw)
}

fn destroy_stream(driver: &Driver, raw: CUstream) -> Result<()> {
    let destroy = driver.api().cuStreamDestroy()?;
    // SAFETY: the callers created the stream and do not use it again.
    ok("cuStreamDestroy", unsafe { destroy(raw) })
}

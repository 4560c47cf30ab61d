//! Calls of the driver past green-ctx, and calls of green-ctx that are unsafe.

use std::ptr;
use std::sync::Arc;

use green_ctx::sys::{CUgraph, CUresult, CUstream, CUstreamCaptureMode};
use green_ctx::{
    DeviceBuffer, Driver, Error, Kernel, LaunchConfig, Result, Stream, StreamOptions,
    context::Context, graph::GraphExec, stream::DefaultStream,
};

use crate::account::Partition;

/// More blocks than any part has SMs, so that a launch shows all SMs of its context; few enough to
/// run at once.
const GRID: u32 = 160;

fn ok(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Error::Driver { call, status }) }
}

/// Launches the kernel in a stream.
pub(crate) fn launch(stream: &Stream, kernel: &Kernel, nanoseconds: u64) -> Result<()> {
    // SAFETY: the kernel takes its duration and reaches no memory.
    unsafe { stream.launch(kernel, LaunchConfig::new(GRID, 32), (nanoseconds,)) }
}

/// What a launch asks for beside its shape.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Special {
    /// All blocks run at once.
    Cooperative,
    /// Blocks of a cluster run at once.
    Cluster,
    /// The kernel may begin before the one before it in the stream has ended.
    Dependent,
}

/// Launches the kernel in a stream with something special.
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
    // SAFETY: the kernel takes its duration and reaches no memory.
    unsafe { stream.launch(kernel, config, (nanoseconds,)) }
}

/// Launches the kernel in a raw stream, which the caller keeps alive.
fn launch_raw(driver: &Driver, raw: CUstream, kernel: &Kernel, nanoseconds: u64) -> Result<()> {
    let launch = driver.api().cuLaunchKernel()?;
    let mut duration = nanoseconds;
    let mut arguments = [(&raw mut duration).cast()];
    let (function, none) = (kernel.as_raw().cast(), ptr::null_mut());
    // SAFETY: kernel and stream are alive, a CUkernel is taken where a CUfunction is (cuda.h), and
    // there is a pointer for the one parameter, which the driver copies.
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
    // SAFETY: the buffer has this many values, and outlives all work.
    ok("cuMemsetD32Async", unsafe { set(memory.as_raw(), 7, memory.len(), stream.as_raw()) })
}

/// Launches a graph.
pub(crate) fn launch_graph(stream: &Stream, graph: &GraphExec) -> Result<()> {
    // SAFETY: the graph's kernels reach no memory, and the memsets' buffer outlives all work.
    unsafe { stream.launch_graph(graph) }
}

/// A stream that another library made in a partition, and keeps alive with it.
pub(crate) struct Foreign {
    raw: CUstream,
    /// Whether somebody else destroys the stream now.
    taken: std::sync::atomic::AtomicBool,
    pub(crate) context: Context,
    pub(crate) partition: Arc<Partition>,
}

// SAFETY: a stream's handle names an object of the process, not of a thread.
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

    /// Gives the stream to an object that destroys it.
    pub(crate) fn give(self: Arc<Foreign>) -> std::result::Result<Stream, (Arc<Foreign>, Error)> {
        // SAFETY: the stream is one of the context, and nobody destroys it once it is taken.
        match unsafe { Stream::from_raw_owned(&self.context, self.raw) } {
            Ok(stream) => {
                self.taken.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok(stream)
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Lends the stream to an object that keeps this.
    pub(crate) fn lend(self: &Arc<Foreign>, ends_with_a_stream: bool) -> Result<Stream> {
        let driver = self.context.device().driver();
        let owner = Owner { foreign: Arc::clone(self), ends_with_a_stream };
        // SAFETY: the owner keeps the stream and its context.
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

/// What a borrowed stream keeps.
struct Owner {
    foreign: Arc<Foreign>,
    /// Whether its end makes a stream in the same partition, as code of a library may do.
    ends_with_a_stream: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.ends_with_a_stream {
            drop(self.foreign.context.create_stream(StreamOptions::default()));
        }
    }
}

/// A foreign stream that is being captured, and that keeps nothing alive.
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
        // SAFETY: the stream was made just now.
        if let Err(error) = ok("cuStreamBeginCapture", unsafe { begin(raw, mode) }) {
            destroy_stream(&driver, raw)?;
            return Err(error);
        }
        Ok(ForeignCapture { raw, driver })
    }

    /// Ends it, and the stream. An error says that the stream is left behind: its context ended
    /// before it.
    pub(crate) fn end(self) -> Result<()> {
        let api = self.driver.api();
        let mut graph: CUgraph = ptr::null_mut();
        let end = api.cuStreamEndCapture()?;
        // SAFETY: the driver refuses a stream that ended with its context; the pointer is to a live
        // handle.
        let status = unsafe { end(self.raw, &raw mut graph) };
        if status == CUresult::CUDA_SUCCESS && !graph.is_null() {
            let destroy = api.cuGraphDestroy()?;
            // SAFETY: the graph is of the capture, and nobody else has it.
            ok("cuGraphDestroy", unsafe { destroy(graph) })?;
        }
        destroy_stream(&self.driver, self.raw)
    }
}

/// A stream that is kept for as long as the process lives.
pub(crate) struct Kept {
    raw: CUstream,
    driver: Driver,
}

impl Kept {
    pub(crate) fn new(stream: &Stream) -> Kept {
        Kept { raw: stream.as_raw(), driver: stream.context().device().driver().clone() }
    }

    /// Returns what the driver says if there is no such stream any more. It uses no handle twice.
    pub(crate) fn lost(&self) -> Result<Option<CUresult>> {
        // Other questions invalidate captures, or are made to fail.
        let ask = self.driver.api().cuStreamGetGreenCtx()?;
        let mut green = ptr::null_mut();
        // SAFETY: the simulated driver refuses a stream that was destroyed; the pointer is to a live handle.
        let status = unsafe { ask(self.raw, &raw mut green) };
        let lost = [
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_STREAM_DETACHED,
        ];
        Ok(Some(status).filter(|status| lost.contains(status)))
    }
}

/// Makes a stream in a context as another library does: while the context is current.
fn make_stream(context: &Context) -> Result<CUstream> {
    let _current = context.make_current()?;
    let create = context.device().driver().api().cuStreamCreate()?;
    let mut raw = ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    ok("cuStreamCreate", unsafe { create(&raw mut raw, 1) })?;
    Ok(raw)
}

fn destroy_stream(driver: &Driver, raw: CUstream) -> Result<()> {
    let destroy = driver.api().cuStreamDestroy()?;
    // SAFETY: the callers made the stream and do not use it any more.
    ok("cuStreamDestroy", unsafe { destroy(raw) })
}

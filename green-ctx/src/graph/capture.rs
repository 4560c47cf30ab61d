//! Stream capture.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem;
use std::ptr;

use green_ctx_sys::{CUgraph, CUgraph_st, CUstreamCaptureMode};

use super::open_captures;
use super::{Graph, Inner, node};
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::work::stream::Stream;

/// The threads on which an open capture forbids potentially unsafe calls. Such calls cannot be captured, since they
/// may wait for work that is only being recorded. Examples are freeing memory, querying an event and instantiating a
/// graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "CUstreamCaptureMode")]
pub enum CaptureMode {
    /// All threads of the process.
    #[default]
    Global,
    /// The capturing thread only.
    ThreadLocal,
    /// No thread.
    Relaxed,
}

impl CaptureMode {
    const fn as_raw(self) -> CUstreamCaptureMode {
        match self {
            CaptureMode::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// An open capture of a stream. Dropping it ends the capture and discards the graph.
struct Capturing<'a>(&'a Stream);

impl<'a> Capturing<'a> {
    fn begin(stream: &'a Stream, mode: CaptureMode) -> Result<Capturing<'a>> {
        // SAFETY: `stream` is alive.
        unsafe {
            call!(stream.driver().functions()?, cuStreamBeginCapture(stream.raw(), mode.as_raw()))
        }?;
        Ok(Capturing(stream))
    }

    /// Ends the capture and returns its graph.
    fn end(self) -> Result<Raw<CUgraph_st>> {
        let stream = self.0;
        mem::forget(self);
        end(stream)
    }
}

impl Drop for Capturing<'_> {
    /// Discards the capture, because `work` failed or panicked.
    fn drop(&mut self) {
        // After an error there is no graph: the capture was invalidated.
        if let Ok(graph) = end(self.0) {
            let driver = self.0.driver();
            driver.clean_up(|| destroy(driver, graph.as_ptr()));
        }
    }
}

/// Ends a capture. When this function returns, the capture has ended, even if the driver reported an error.
fn end(stream: &Stream) -> Result<Raw<CUgraph_st>> {
    end_once(stream).inspect_err(|_| {
        // The driver may report an error of earlier work and leave the capture open.
        if stream.is_capturing().unwrap_or(false)
            && let Ok(graph) = end_once(stream)
        {
            let driver = stream.driver();
            driver.clean_up(|| destroy(driver, graph.as_ptr()));
        }
    })
}

fn end_once(stream: &Stream) -> Result<Raw<CUgraph_st>> {
    let mut graph = ptr::null_mut();
    // SAFETY: `stream` is alive, and `graph` is a live local.
    unsafe {
        call!(stream.driver().functions()?, cuStreamEndCapture(stream.raw(), &raw mut graph))
    }?;
    Raw::new(graph).ok_or_else(|| Error::null("cuStreamEndCapture"))
}

fn destroy(driver: &Driver, graph: CUgraph) -> Result<()> {
    // SAFETY: the callers have just received this graph from the end of a capture, and no other code has it.
    unsafe { call!(driver.functions()?, cuGraphDestroy(graph)) }
}

impl Stream {
    /// Captures the work that `work` submits to this stream, and to streams that wait for it, into a graph. The
    /// work does not run. Each node of the graph runs on the SMs of its stream's context.
    ///
    /// # Errors
    ///
    /// The error that `work` returns, or [`Error::Driver`] if the stream is already being captured or if a call
    /// invalidated the capture. If this call fails, there is no graph, and the capture that this call began has
    /// ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, LaunchConfig, Library, graph::CaptureMode, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// # let ptx = ".version 7.0 .target sm_52 .visible .entry step() { ret; }";
    /// # let step = Library::from_ptx(&device, ptx)?.kernel("step")?;
    /// # let parts = device.partition([16])?;
    /// let stream = parts[0].stream();
    /// let graph = stream.capture(CaptureMode::default(), || {
    ///     // SAFETY: the kernel takes no parameters.
    ///     unsafe { stream.launch(&step, LaunchConfig::new(64, 128), ()) }
    /// })?;
    /// assert_eq!(graph.node_count()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuStreamBeginCapture", "cuStreamEndCapture"))]
    pub fn capture<E: From<Error>>(
        &self,
        mode: CaptureMode,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        self.driver().check_process()?;
        let device = self.context().device();
        let primary = device.primary_context()?;
        // The capture ends before this object is dropped.
        let mut noted = open_captures::note(self);
        let capturing = Capturing::begin(self, mode)?;
        noted.begun(self)?;
        work()?;
        // `work` may have forked the process, and a thread that no longer exists may hold the registry's lock.
        self.driver().check_process()?;
        let mut needs = noted.participants()?;
        needs.add_context(self.context().clone());
        let raw = capturing.end()?;
        // Owned from here on, so that an error destroys the graph.
        let mut inner = Inner::new(raw, needs, primary);
        inner.owned = true;
        let nodes = node::walk(device.functions()?, raw.as_ptr())?;
        inner.needs.add_nodes(device.driver(), &nodes)?;
        // Last, so that streams that end before this point are noted.
        inner.needs.add(noted.take());
        Ok(Graph::enter(inner))
    }
}

//! Capturing what a stream is given.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem;
use std::ptr;

use green_ctx_sys::{CUgraph, CUgraph_st, CUstreamCaptureMode};

use super::open_captures::{self, Noted};
use super::{Graph, Inner, Needs, node};
use crate::handle::driver::Driver;
use crate::handle::error::call;
use crate::handle::error::{Error, Result};
use crate::handle::raw::Raw;
use crate::work::stream::Stream;

/// Which calls that cannot be captured a capture forbids, since they would wait for work that is
/// never submitted: freeing memory, asking whether an event is done, making an executable graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "CUstreamCaptureMode")]
pub enum CaptureMode {
    /// On every thread of the process.
    #[default]
    Global,
    /// On the thread that captures.
    ThreadLocal,
    /// None.
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

/// A stream that is being captured, until it is ended.
struct Capturing<'a> {
    stream: &'a Stream,
    noted: Option<Noted<'a>>,
}

impl<'a> Capturing<'a> {
    fn begin(stream: &'a Stream, mode: CaptureMode) -> Result<Capturing<'a>> {
        // SAFETY: the stream is alive.
        unsafe {
            call!(stream.driver().functions()?, cuStreamBeginCapture(stream.raw(), mode.as_raw()))
        }?;
        // Ended from here on, whatever fails.
        let mut capturing = Capturing { stream, noted: None };
        capturing.noted = open_captures::note(stream)?;
        Ok(capturing)
    }

    /// The contexts of the living streams that take part.
    fn participants(&self) -> Result<Needs> {
        self.noted.as_ref().map_or_else(|| Ok(Needs::default()), Noted::participants)
    }

    /// Ends the capture. Returns its graph, and the capture's notes, which stay open.
    fn end(mut self) -> Result<(Raw<CUgraph_st>, Option<Noted<'a>>)> {
        let (stream, noted) = (self.stream, self.noted.take());
        mem::forget(self);
        Ok((end(stream)?, noted))
    }
}

impl Drop for Capturing<'_> {
    /// What was captured is not wanted: the work failed, or panicked.
    fn drop(&mut self) {
        // An error says that the capture was invalidated, and there is no graph.
        if let Ok(graph) = end(self.stream) {
            let driver = self.stream.driver();
            driver.clean_up(|| destroy(driver, graph.as_ptr()));
        }
    }
}

/// Ends a capture; it has ended then, whatever the driver says of it.
fn end(stream: &Stream) -> Result<Raw<CUgraph_st>> {
    end_once(stream).inspect_err(|_| {
        // The call may report what earlier work did wrong, and leave the stream as it was.
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
    // SAFETY: the stream is alive, the pointer is to a live handle.
    unsafe {
        call!(stream.driver().functions()?, cuStreamEndCapture(stream.raw(), &raw mut graph))
    }?;
    Raw::new(graph).ok_or_else(|| Error::null("cuStreamEndCapture"))
}

fn destroy(driver: &Driver, graph: CUgraph) -> Result<()> {
    // SAFETY: the graph was made by ending a capture, and nobody else has it.
    unsafe { call!(driver.functions()?, cuGraphDestroy(graph)) }
}

impl Stream {
    /// Captures what `work` submits to this stream, and to streams that wait for it, as a graph.
    /// Nothing of it runs. The graph's nodes run on the SMs of the streams' contexts.
    ///
    /// # Errors
    ///
    /// What `work` returns, and [`Error::Driver`]: where the stream is being captured already, and
    /// where a call invalidated the capture. The capture has ended then, and there is no graph.
    ///
    /// # Example
    ///
    /// [`Graph`] has one.
    #[doc(alias("cuStreamBeginCapture", "cuStreamEndCapture"))]
    pub fn capture<E: From<Error>>(
        &self,
        mode: CaptureMode,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        self.driver().check_process()?;
        let device = self.context().device();
        let primary = device.primary_context()?;
        let capturing = Capturing::begin(self, mode)?;
        work()?;
        let mut needs = capturing.participants()?;
        needs.add_context(self.context().clone());
        let (raw, noted) = capturing.end()?;
        // Owned from here on, whatever fails.
        let mut inner = Inner::new(raw, needs, primary);
        inner.owned = true;
        let nodes = node::walk(device.functions()?, raw.as_ptr())?;
        inner.needs.add_nodes(device.driver(), &nodes)?;
        // Last, so that whatever ends before is noted.
        if let Some(mut noted) = noted {
            inner.needs.add(noted.take());
        }
        Ok(Graph::enter(inner))
    }
}

//! Queries about a stream's capture.

use green_ctx_sys::{
    CUgraph_st, CUgraphEdgeData, CUgraphNode, CUresult, CUstream_st, CUstreamCaptureStatus,
};

use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;

impl State {
    /// Returns the stream to which a capture query refers. The legacy stream cannot be queried while a
    /// blocking stream of its context is capturing. Such a query does not invalidate the capture (cuda.h,
    /// `cuStreamIsCapturing`).
    fn asked_stream(&mut self, address: usize) -> Answer<usize> {
        let handle = self.stream(address)?;
        let implicit = !self.implicit_captures(handle).is_empty();
        refuse_if(implicit, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)?;
        Ok(handle)
    }

    fn capture_status(&self, stream: usize) -> CUstreamCaptureStatus {
        let capture = self.streams[&stream].capture.and_then(|id| self.captures.get(&id));
        match capture {
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.invalidated => {
                CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED
            }
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        }
    }
}

pub(crate) fn is_capturing(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    out: Ptr<CUstreamCaptureStatus>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.asked_stream(stream.address())?;
    out.write(state.capture_status(handle))
}

/// Implements the later versions of this function. The earlier versions pass null pointers for outputs
/// that they do not have.
#[expect(clippy::too_many_arguments, reason = "the C function has them")]
pub(crate) fn get(
    driver: &Driver,
    stream: Ptr<CUstream_st>,
    status: Ptr<CUstreamCaptureStatus>,
    id_out: Ptr<u64>,
    graph: Ptr<*mut CUgraph_st>,
    dependencies: Ptr<*const CUgraphNode>,
    edges: Ptr<*const CUgraphEdgeData>,
    count: Ptr<usize>,
) -> Answer {
    let mut state = driver.state();
    let handle = state.asked_stream(stream.address())?;
    status.given()?;
    invalid_if(dependencies.is_null() && !edges.is_null())?;
    let found = state.capture_status(handle);
    if let Some(id) = state.streams[&handle].capture
        && found == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        && let Some(capture) = state.captures.get_mut(&id)
    {
        let made = handle::pointer(capture.graph);
        if let Some(branch) = capture.branch(handle) {
            branch.lent = (branch.last.as_slice().into(), vec![[0; 8]; branch.last.len()].into());
            dependencies.write_if_given(branch.lent.0.as_ptr().cast());
            edges.write_if_given(branch.lent.1.as_ptr().cast());
            count.write_if_given(branch.last.len());
        }
        id_out.write_if_given(id as u64);
        graph.write_if_given(made);
    }
    status.write(found)
}

//! Driver calls on a stream, for modules that do not use `Stream` objects.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::{Api, CUevent, CUresult, CUstream, CUstreamCaptureStatus};

use crate::handle::driver::Driver;
use crate::handle::error::{Result, call, check};

/// A raw stream and its driver. The creator of this value keeps the stream alive while the value exists.
#[derive(Clone, Copy)]
pub(crate) struct RawStream<'a> {
    driver: &'a Driver,
    raw: CUstream,
}

impl<'a> RawStream<'a> {
    #[inline]
    pub(crate) fn new(driver: &'a Driver, raw: CUstream) -> RawStream<'a> {
        RawStream { driver, raw }
    }

    pub(crate) fn driver(&self) -> &'a Driver {
        self.driver
    }

    /// Records an event that covers the work submitted to the stream so far.
    #[inline]
    pub(crate) fn record(&self, event: CUevent) -> Result<()> {
        // SAFETY: the creator of `self` keeps the stream alive, and the caller keeps the event alive.
        unsafe { call!(self.driver.functions()?, cuEventRecord(event, self.raw)) }
    }

    /// Makes later work of the stream wait for an event.
    #[inline]
    pub(crate) fn wait(&self, event: CUevent) -> Result<()> {
        // SAFETY: the creator of `self` keeps the stream alive, and the caller keeps the event alive. Outside captures,
        // 0 is the only valid flag.
        unsafe { call!(self.driver.functions()?, cuStreamWaitEvent(self.raw, event, 0)) }
    }

    /// Blocks the calling thread until the stream's work is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the creator of `self` keeps the stream alive.
        unsafe { call!(self.driver.functions()?, cuStreamSynchronize(self.raw)) }
    }

    /// Destroys the stream, which its only owner does not use afterwards.
    pub(crate) fn destroy(&self) -> Result<()> {
        // SAFETY: the creator of `self` owns the stream, and keeps it alive until now.
        unsafe { call!(self.driver.functions()?, cuStreamDestroy(self.raw)) }
    }

    /// Returns whether the stream is being captured. Also returns true if the capture was invalidated.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        are_capturing(self.driver.functions()?, [self.raw])
    }
}

/// Returns whether one of the streams is being captured. Also returns true if its capture was invalidated. The caller
/// keeps the streams alive.
pub(crate) fn are_capturing(
    api: &Api,
    streams: impl IntoIterator<Item = CUstream>,
) -> Result<bool> {
    const NONE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let query = api.cuStreamIsCapturing()?;
    let mut status = NONE;
    for stream in streams {
        // SAFETY: the caller keeps the stream alive, and `status` is a live local that the driver writes.
        let result = unsafe { query(stream, &raw mut status) };
        // One branch for both, since a switch of plans makes this query for hundreds of streams.
        if (result, status) != (CUresult::CUDA_SUCCESS, NONE) {
            return check("cuStreamIsCapturing", result).map(|()| true);
        }
    }
    Ok(false)
}

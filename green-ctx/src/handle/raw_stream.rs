//! The driver's calls for a stream, for files that know no objects of streams.
#![allow(unsafe_code, reason = "calls the driver")]

use green_ctx_sys::{Api, CUevent, CUstream, CUstreamCaptureStatus};

use crate::handle::driver::Driver;
use crate::handle::error::Result;
use crate::handle::error::call;

/// A stream of the driver's. Whoever makes one keeps the stream alive meanwhile.
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

    /// Records an event after the work up to now.
    #[inline]
    pub(crate) fn record(&self, event: CUevent) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { call!(self.driver.functions()?, cuEventRecord(event, self.raw)) }
    }

    /// Makes the work from now on wait for an event.
    #[inline]
    pub(crate) fn wait(&self, event: CUevent) -> Result<()> {
        // SAFETY: both handles are alive; 0 is the only flag outside of a capture.
        unsafe { call!(self.driver.functions()?, cuStreamWaitEvent(self.raw, event, 0)) }
    }

    /// Waits on the host until its work is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { call!(self.driver.functions()?, cuStreamSynchronize(self.raw)) }
    }

    /// Whether it is being captured, or its capture was invalidated.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        is_capturing(self.driver.functions()?, self.raw)
    }
}

/// Whether a stream that is alive is being captured, or its capture was invalidated.
pub(crate) fn is_capturing(api: &Api, stream: CUstream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive by the callers' word; the pointer is to a live value.
    unsafe { call!(api, cuStreamIsCapturing(stream, &raw mut status)) }?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

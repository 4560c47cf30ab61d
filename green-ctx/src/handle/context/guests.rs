//! Graphs with nodes in a context that streams of other contexts launch.
//!
//! To the driver, a graph is work of the stream that launches it, wherever its nodes run (recorded on an
//! H200, driver 580.159.04). So before such a launch, the launching stream waits for the fences that are
//! pending in the context. After it, the *gate*, a stream of the context that gets no work, waits for the
//! launching stream. An event on the gate then covers all such launches, however many there were.
//!
//! The gate is made at the first launch. Its fence is recorded with the context's own work and goes to the
//! next owner of the SMs. Closing the context waits for the gate. If the driver cannot make the gate wait,
//! the host waits for the launching stream.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use green_ctx_sys::CUstream_st;
use parking_lot::Mutex;

use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::handle::error::call;
use crate::handle::fence::Fence;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;

/// What stands for the graphs that others launched and that run in a context. The driver counts them
/// as work of the stream that launched them alone (recorded on an H200, driver 580.159.04).
///
/// A stream of the context, which nobody submits work to, waits for each of them. So one event of that
/// stream covers them all, however many there were.
pub(super) struct Guests {
    gate: Raw<CUstream_st>,
    fence: Arc<Fence>,
    /// Recorded on launching streams of this device, and waited for by the gate at once.
    arrival: Mutex<Fence>,
    device: Device,
}

impl Guests {
    /// Stands for the graphs that run in the context of a new stream, the gate.
    pub(super) fn new(
        device: &Device,
        gate: impl FnOnce() -> Result<Raw<CUstream_st>>,
    ) -> Result<Guests> {
        let fence = Arc::new(Fence::new(device)?);
        let arrival = Mutex::new(Fence::new(device)?);
        Ok(Guests { gate: gate()?, fence, arrival, device: device.clone() })
    }

    /// Makes the gate wait for what a stream of a device was given up to now.
    pub(super) fn note(&self, launching: RawStream<'_>, device: &Device) -> Result<()> {
        let arrives = |arrival: &Fence| {
            launching.record(arrival.raw())?;
            self.gate().wait(arrival.raw())
        };
        if *device != self.device {
            // A stream records events of its own device only.
            return arrives(&Fence::new(device)?);
        }
        arrives(&self.arrival.lock())
    }

    /// Records the graphs that were launched up to now.
    pub(super) fn record(&self) -> Result<()> {
        self.gate().record(self.fence.raw())?;
        self.fence.note_record();
        Ok(())
    }

    /// The fence of the graphs that were recorded last.
    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Waits on the host until all of them are done.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.device.driver().while_relaxed(|| self.gate().synchronize())
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: nobody else has the handle, and this is its only end. Events that were recorded in the
        // stream keep what they stand for.
        unsafe { call!(self.device.functions()?, cuStreamDestroy(self.gate.as_ptr())) }
    }

    fn gate(&self) -> RawStream<'_> {
        RawStream::new(self.device.driver(), self.gate.as_ptr())
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        let driver = self.device.driver();
        if !driver.is_forked() {
            driver.report(self.destroy());
        }
    }
}

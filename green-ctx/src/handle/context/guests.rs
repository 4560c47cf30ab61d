//! Graphs that run in a context but are launched on streams of other contexts.
//!
//! The driver treats a graph as work of the launching stream, even if the graph's nodes run in another context
//! (recorded on an H200, driver 580.159.04). Before such a launch, the launching stream therefore waits for the fences
//! that are pending in the context. After the launch, the *gate* waits for the launching stream. The gate is a stream
//! of the context that runs no work itself, so one event on the gate covers all such launches.
//!
//! The gate is created at the first launch. The gate's fence is recorded together with the context's own work, and the
//! next owner of the SMs waits for both. Closing the context waits for the gate. If the driver cannot make the gate
//! wait, the host waits for the launching stream.

use std::sync::Arc;

use green_ctx_sys::CUstream_st;
use parking_lot::Mutex;

use crate::handle::device::Device;
use crate::handle::error::Result;
use crate::handle::fence::Fence;
use crate::handle::raw::Raw;
use crate::handle::raw_stream::RawStream;

/// The gate of a context, and the fence that covers launches on streams of other contexts.
pub(super) struct Guests {
    gate: Raw<CUstream_st>,
    fence: Arc<Fence>,
    /// An event that is recorded on launching streams of this device. The gate is made to wait after each record, so
    /// one event serves all launching streams.
    arrival: Mutex<Fence>,
    device: Device,
}

impl Guests {
    /// Creates the events, and calls `gate` to create the gate stream.
    pub(super) fn new(
        device: &Device,
        gate: impl FnOnce() -> Result<Raw<CUstream_st>>,
    ) -> Result<Guests> {
        let fence = Arc::new(Fence::new(device)?);
        let arrival = Mutex::new(Fence::new(device)?);
        Ok(Guests { gate: gate()?, fence, arrival, device: device.clone() })
    }

    /// Makes the gate wait for all work submitted so far to `launching`, a stream of `device`.
    pub(super) fn note(&self, launching: RawStream<'_>, device: &Device) -> Result<()> {
        let arrives = |arrival: &Fence| {
            launching.record(arrival.raw())?;
            self.gate().wait(arrival.raw())
        };
        if *device != self.device {
            // A stream can record only events of its own device.
            return arrives(&Fence::new(device)?);
        }
        arrives(&self.arrival.lock())
    }

    /// Records the fence on the gate, so that the fence covers all launches so far.
    pub(super) fn record(&self) -> Result<()> {
        self.gate().record(self.fence.raw())?;
        self.fence.note_record();
        Ok(())
    }

    /// Returns the fence, which covers the launches up to the last record.
    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Blocks the calling thread until all launches that were reported to [`note`](Guests::note) are done.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.device.driver().while_relaxed(|| self.gate().synchronize())
    }

    fn gate(&self) -> RawStream<'_> {
        RawStream::new(self.device.driver(), self.gate.as_ptr())
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        let driver = self.device.driver();
        if !driver.is_forked() {
            // Events that were recorded on the gate stay valid after it is destroyed.
            driver.report(self.gate().destroy());
        }
    }
}

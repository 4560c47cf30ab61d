//! Work in a partition that streams of other contexts submitted: graphs with nodes there.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use green_ctx_sys::{CUstream, CUstream_st};
use parking_lot::Mutex;

use super::Context;
use crate::device::Device;
use crate::error::Result;
use crate::error::call;
use crate::event::{Event, EventOptions};
use crate::fence::Fence;
use crate::raw::Raw;
use crate::stream::{self, Stream};

/// What stands for the graphs that others launched and that run in a context. The driver counts them
/// as work of the stream that launched them alone (recorded on an H200, driver 580.159.04).
///
/// A stream of the context, which nobody submits work to, waits for each of them. So one event of that
/// stream covers them all, however many there were.
pub(super) struct Guests {
    gate: Raw<CUstream_st>,
    fence: Arc<Fence>,
    /// Recorded on launching streams of this device, and waited for by the gate at once.
    arrival: Mutex<Event>,
    device: Device,
}

impl Guests {
    pub(super) fn new(context: &Context) -> Result<Guests> {
        let device = context.device();
        let fence = Arc::new(Fence::new(device)?);
        let arrival = Mutex::new(device.create_event(EventOptions::default())?);
        let gate = stream::create_raw(context, 0)?;
        Ok(Guests { gate, fence, arrival, device: device.clone() })
    }

    /// Makes the gate wait for what a stream was given up to now.
    pub(super) fn note(&self, launching: &Stream) -> Result<()> {
        let device = launching.context().device();
        if *device != self.device {
            // A stream records events of its own device only.
            return self.arrives(launching, &device.create_event(EventOptions::default())?);
        }
        self.arrives(launching, &self.arrival.lock())
    }

    fn arrives(&self, launching: &Stream, arrival: &Event) -> Result<()> {
        launching.record(arrival)?;
        let (api, event) = (launching.driver().functions()?, arrival.raw());
        // SAFETY: both handles are alive; 0 is the only flag outside of a capture.
        unsafe { call!(api, cuStreamWaitEvent(self.gate(), event, 0)) }
    }

    /// Records the graphs that were launched up to now.
    pub(super) fn record(&self) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { call!(self.device.functions()?, cuEventRecord(self.fence.raw(), self.gate())) }?;
        self.fence.note_record();
        Ok(())
    }

    /// The fence of the graphs that were recorded last.
    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Waits on the host until all of them are done.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.device.driver().while_relaxed(|| {
            // SAFETY: the stream is alive.
            unsafe { call!(self.device.functions()?, cuStreamSynchronize(self.gate())) }
        })
    }

    fn destroy(&self) -> Result<()> {
        // SAFETY: nobody else has the handle, and this is its only end. Events that were recorded in the
        // stream keep what they stand for.
        unsafe { call!(self.device.functions()?, cuStreamDestroy(self.gate())) }
    }

    fn gate(&self) -> CUstream {
        self.gate.as_ptr()
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

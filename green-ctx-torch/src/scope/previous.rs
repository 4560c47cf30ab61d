//! The stream that was current in PyTorch before.
#![allow(unsafe_code, reason = "passes PyTorch's handles to the driver")]

use green_ctx::sys_0_1::CUstream;
use green_ctx::{Device, Event, Stream, context::Context, stream::DefaultStream};

use super::current;
use crate::error::Result;
use crate::libtorch::Torch;
use green_ctx::call;

/// PyTorch's current stream of a device, which is PyTorch's, somebody else's or a default stream.
pub(super) struct Previous {
    raw: CUstream,
    /// A default stream is one of the current context. Where that is none of the device, PyTorch
    /// means the device's primary context, which it makes current first.
    primary: Option<Context>,
    /// Where it is a stream of green-ctx, nothing may destroy it meanwhile.
    _stream: Option<Stream>,
}

impl Previous {
    pub(super) fn find(torch: &Torch, device: &Device) -> Result<Previous> {
        let raw: CUstream = torch.current_stream(device.ordinal())?.cast();
        if DefaultStream::from_raw(raw).is_none() {
            let stream = device.driver().find_stream(raw);
            return Ok(Previous { raw, primary: None, _stream: stream });
        }
        let primary = if is_current(device)? { None } else { Some(device.primary_context()?) };
        Ok(Previous { raw, primary, _stream: None })
    }

    /// Whether a handle that PyTorch has in the partition is this stream. A default stream is another
    /// one there.
    pub(super) fn is(&self, raw: CUstream) -> bool {
        self.raw == raw && DefaultStream::from_raw(raw).is_none()
    }

    /// Records an event in the stream. What is current must be what it was when the stream was found.
    pub(super) fn record(&self, event: &Event) -> Result<()> {
        let _current = self.primary.as_ref().map(Context::make_current).transpose()?;
        record_raw(event, self.raw)
    }

    /// Makes the stream wait for an event. What is current must be what it was when the stream was
    /// found.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.primary.as_ref().map(Context::make_current).transpose()?;
        let api = event.context().device().driver().api();
        // SAFETY: the event is alive. The stream is PyTorch's current one again, which whoever made
        // it so keeps alive; 0 is the only flag for an event of this process.
        unsafe { call!(api, cuStreamWaitEvent(self.raw, event.as_raw(), 0)) }?;
        Ok(())
    }
}

/// Records an event in a stream that is PyTorch's current one.
pub(super) fn record_raw(event: &Event, stream: CUstream) -> Result<()> {
    let api = event.context().device().driver().api();
    // SAFETY: the event is alive. PyTorch's current stream is alive, since PyTorch submits to it; a
    // default stream is looked up in the current context.
    unsafe { call!(api, cuEventRecord(event.as_raw(), stream)) }?;
    Ok(())
}

/// Whether the thread's current context is one of the device.
fn is_current(device: &Device) -> Result<bool> {
    if current::get(device.driver())?.is_null() {
        return Ok(false);
    }
    let mut ordinal = 0;
    let api = device.driver().api();
    // SAFETY: the pointer is to a live value; a context is current.
    unsafe { call!(api, cuCtxGetDevice(&raw mut ordinal)) }?;
    Ok(ordinal == device.as_raw())
}

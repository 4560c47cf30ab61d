//! PyTorch's current stream of a device.
#![allow(unsafe_code, reason = "passes PyTorch's handles to the driver")]

use std::ffi::c_void;

use green_ctx::call;
use green_ctx::sys::{CUcontext, CUstream};
use green_ctx::{
    Device, Driver, Event, Stream, context::Context, context::Current, stream::DefaultStream,
};

use super::slot;
use crate::error::{Result, TorchError};
use crate::libtorch::Torch;

/// A stream that was PyTorch's current stream: a stream of PyTorch or of green-ctx, a foreign stream or a default
/// stream.
pub(super) struct TorchStream {
    raw: CUstream,
    owner: Owner,
    /// For a default stream, the context that was current when the stream was found.
    pub(super) current: Option<CUcontext>,
    /// True if this is a default stream of a context that was not current when the stream was found.
    is_elsewhere: bool,
}

/// The object on which a stream's handle depends.
enum Owner {
    /// The context in which the handle of a default stream is resolved.
    Context(Context),
    /// The foreign context of a default stream. The stream is used only while the context is current, because nothing
    /// here keeps the context alive.
    Foreign(CUcontext),
    /// A stream of green-ctx. The object keeps the stream alive.
    Stream { _kept: Stream },
    /// A foreign stream. The code that made the stream current keeps the stream alive.
    Other,
}

impl TorchStream {
    /// Returns PyTorch's current stream.
    pub(super) fn find(torch: &Torch, device: &Device) -> Result<TorchStream> {
        let raw: CUstream = torch.current_stream(device.ordinal())?.cast();
        if DefaultStream::from_raw(raw).is_some() {
            let current = slot::get(device.driver())?;
            let (owner, is_elsewhere) = Owner::of_default_stream(device, current)?;
            return Ok(TorchStream { raw, owner, current: Some(current), is_elsewhere });
        }
        let kept = device.driver().find_stream(raw);
        let owner = kept.map_or(Owner::Other, |kept| Owner::Stream { _kept: kept });
        Ok(TorchStream { raw, owner, current: None, is_elsewhere: false })
    }

    /// Returns whether this and `other` are the same stream: they have the same handle and, for default streams, the
    /// same context.
    pub(super) fn is(&self, other: &TorchStream) -> bool {
        let same_context = match (&self.owner, &other.owner) {
            (Owner::Context(this), Owner::Context(other)) => this == other,
            (Owner::Foreign(this), Owner::Foreign(other)) => this == other,
            (Owner::Context(_), Owner::Foreign(_)) | (Owner::Foreign(_), Owner::Context(_)) => {
                false
            }
            _ => true,
        };
        self.raw == other.raw && same_context
    }

    /// Returns [`TorchError::ContextOrder`] for a default stream of a foreign context that is not current.
    pub(super) fn check(&self, driver: &Driver) -> Result<()> {
        match self.owner {
            Owner::Foreign(context) if context != slot::get(driver)? => {
                Err(TorchError::ContextOrder)
            }
            _ => Ok(()),
        }
    }

    /// Records an event in the stream. The caller must have just found the stream, so that the current context has not
    /// changed in the meantime.
    pub(super) fn record(&self, event: &Event) -> Result<()> {
        let driver = event.context().device().driver();
        let _current = if self.is_elsewhere { self.make_current(driver)? } else { None };
        // SAFETY: the borrow keeps `event` alive. The stream is PyTorch's current one and alive, because PyTorch
        // submits work to it. The handle of a default stream is resolved in its own context, which is current here.
        unsafe { call!(driver.api(), cuEventRecord(event.as_raw(), self.raw)) }?;
        Ok(())
    }

    /// Makes the stream wait for an event.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        let driver = event.context().device().driver();
        let _current = self.make_current(driver)?;
        // SAFETY: the borrow keeps `event` alive. The stream is PyTorch's current or next one, so the code that made
        // it current keeps it alive. `_current` makes a default stream's context current. 0 is the only flag for an
        // event of this process.
        unsafe { call!(driver.api(), cuStreamWaitEvent(self.raw, event.as_raw(), 0)) }?;
        Ok(())
    }

    /// Makes the stream PyTorch's current stream of its device again. PyTorch's current device does not change.
    pub(super) fn restore(&self, torch: &Torch, device: &Device) -> Result<()> {
        restore(torch, self.raw.cast(), device.ordinal())
    }

    /// Makes the context of a default stream current, unless the context is already current.
    fn make_current(&self, driver: &Driver) -> Result<Option<Current>> {
        match &self.owner {
            Owner::Context(context) if slot::get(driver)? != context.as_raw() => {
                Ok(Some(context.make_current()?))
            }
            _ => self.check(driver).map(|()| None),
        }
    }
}

/// Makes a stream PyTorch's current stream again that was so before a partition was entered.
pub(super) fn restore(torch: &Torch, stream: *mut c_void, device: u32) -> Result<()> {
    // SAFETY: the code that made the stream current keeps it alive until that code has made another stream current.
    unsafe { torch.set_current_stream(stream, device) }
}

impl Owner {
    /// Returns the owner of a default stream, and `true` if the stream's context is not the current context. A default
    /// stream belongs to the current context. If no context of the device is current, PyTorch first makes the device's
    /// primary context current, so the default stream belongs to the primary context.
    fn of_default_stream(device: &Device, current: CUcontext) -> Result<(Owner, bool)> {
        let driver = device.driver();
        let primary = || Ok((Owner::Context(device.primary_context()?), true));
        if current.is_null() {
            return primary();
        }
        if let Some(context) = driver.find_context(current) {
            return match context.device() == device {
                true => Ok((Owner::Context(context), false)),
                false => primary(),
            };
        }
        let mut ordinal = 0;
        // SAFETY: `ordinal` is a live local, and a context is current, because `current` is not null.
        unsafe { call!(driver.api(), cuCtxGetDevice(&raw mut ordinal)) }?;
        match ordinal == device.as_raw() {
            true => Ok((Owner::Foreign(current), false)),
            false => primary(),
        }
    }
}

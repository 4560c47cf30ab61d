//! Making partitions' streams PyTorch's current streams.
#![allow(unsafe_code, reason = "calls libtorch")]

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem;

use green_ctx::Stream;

use crate::error::{Result, TorchError, check_process};
use crate::libtorch::{RawGuard, Torch};

/// Returns a stream's handle as the type that PyTorch takes, for `torch.cuda.ExternalStream` and
/// [`Torch::set_current_stream`]. The handle is valid while a [`Stream`] object of the stream exists.
#[must_use]
pub fn raw_stream(stream: &Stream) -> *mut c_void {
    stream.as_raw().cast()
}

/// A guard. Until the guard is dropped, the guard's stream is PyTorch's current stream on this thread, and the stream's
/// device is PyTorch's current device. Dropping the guard, also during a panic, restores the previous stream and
/// device.
///
/// Guards nest and must end in reverse order of creation. A guard that ends out of order changes nothing on the thread
/// and reports an error to [the hook](Torch::on_cleanup_failure). If a guard has ended out of order, its stream stays
/// alive until the process ends, because a later guard restores that stream.
#[derive(Debug)]
#[must_use = "the stream is current only while the guard lives"]
pub struct StreamGuard {
    switched: Option<Switched>,
}

impl Torch {
    /// Makes a stream PyTorch's current stream of its device on this thread, until the guard is dropped.
    ///
    /// Adds no ordering: work already submitted to the previously current stream may still be running.
    /// [`scope::enter`](crate::scope::enter) also orders the work.
    ///
    /// # Errors
    ///
    /// [`TorchError::TooOld`] or [`TorchError::Call`]. [`TorchError::Driver`] if the process was forked after the
    /// driver was loaded.
    pub fn guard(&self, stream: &Stream) -> Result<StreamGuard> {
        check_process(stream.context().device())?;
        Ok(StreamGuard { switched: Some(Switched::to(self, stream)?) })
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let Some(switched) = self.switched.take() else { return };
        if check_process(switched.stream.context().device()).is_err() {
            // In a forked child, the previous stream is the parent's to restore.
            mem::forget(switched);
        } else {
            let torch = switched.torch.clone();
            torch.report(switched.back());
        }
    }
}

thread_local! {
    /// The number of guards on this thread that have not restored the previous stream yet.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A stream that was made PyTorch's current stream on this thread. Only [`back`](Switched::back) restores the previous
/// stream. If the thread ends first, the drop restores nothing.
#[derive(Debug)]
pub(crate) struct Switched {
    torch: Torch,
    /// Kept alive, because a current stream must not be destroyed.
    stream: Stream,
    guard: RawGuard,
    /// The position in the order in which streams are restored.
    depth: usize,
    _thread: PhantomData<*const ()>,
}

impl Switched {
    pub(crate) fn to(torch: &Torch, stream: &Stream) -> Result<Switched> {
        let device = stream.context().device().ordinal();
        // PyTorch may use the stream long afterwards: autograd's nodes and freed tensors remember it.
        stream.keep_alive()?;
        // SAFETY: `stream` is alive and belongs to `device`. The returned `Switched` keeps it alive while it is
        // current. `back` leaks the `Switched` if the stream may stay current.
        let guard = unsafe { torch.create_guard(raw_stream(stream), device) }?;
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        let (torch, stream) = (torch.clone(), stream.clone());
        Ok(Switched { torch, stream, guard, depth, _thread: PhantomData })
    }

    pub(crate) fn torch(&self) -> &Torch {
        &self.torch
    }

    /// Returns an error if a stream that was made current later has not been restored yet.
    pub(crate) fn check_order(&self) -> Result<()> {
        if DEPTH.get() == self.depth + 1 { Ok(()) } else { Err(TorchError::StreamOrder) }
    }

    /// Restores the previous stream and device.
    pub(crate) fn back(self) -> Result<()> {
        if let Err(error) = self.check_order() {
            // A later guard restores this stream.
            mem::forget(self);
            return Err(error);
        }
        DEPTH.set(self.depth);
        // SAFETY: the guard was created on this thread, which `Switched` cannot leave: it is `!Send`. Only this
        // function deletes the guard, and the function consumes `self`. The restored stream is alive, because another
        // `Switched` or the foreign code that made it current keeps it alive.
        let deleted = unsafe { self.torch.delete_guard(self.guard) };
        if deleted.is_err() {
            // The stream may still be current.
            mem::forget(self);
        }
        deleted
    }
}

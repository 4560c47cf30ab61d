//! Partitions' streams as PyTorch's current ones.
#![allow(unsafe_code, reason = "calls libtorch")]

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem;

use green_ctx::Stream;

use crate::error::{Result, TorchError, check_process};
use crate::libtorch::{RawGuard, Torch};

/// A stream's handle as PyTorch takes it, for `torch.cuda.ExternalStream` and for
/// [`Torch::set_current_stream`]. It is valid for as long as a handle of the stream lives.
#[must_use]
pub fn raw_stream(stream: &Stream) -> *mut c_void {
    stream.as_raw().cast()
}

/// Keeps a stream PyTorch's current one on this thread until it is dropped, and its device the
/// current device. Then the stream and the device that were current before are again, a panic or not.
///
/// Guards nest and end in reverse order. One that ends out of order leaves the thread as it is,
/// keeps its stream for good, since a later guard puts it back, and reports to
/// [the hook](Torch::on_cleanup_failure).
#[derive(Debug)]
#[must_use = "the stream is current only while the guard lives"]
pub struct StreamGuard {
    switched: Option<Switched>,
}

impl Torch {
    /// Makes a stream PyTorch's current one of its device on this thread while the guard lives.
    ///
    /// Nothing is put in order: work that was submitted to the stream that was current before may
    /// still run. [`scope::enter`](crate::scope::enter) keeps the order too.
    ///
    /// # Errors
    ///
    /// [`TorchError::TooOld`] and [`TorchError::Call`]; [`TorchError::Driver`] in a process that was
    /// forked since the driver was loaded.
    pub fn guard(&self, stream: &Stream) -> Result<StreamGuard> {
        check_process(stream.context().device())?;
        Ok(StreamGuard { switched: Some(Switched::to(self, stream)?) })
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let Some(switched) = self.switched.take() else { return };
        if check_process(switched.stream.context().device()).is_err() {
            // What is current in the parent is not the child's to put back.
            mem::forget(switched);
        } else {
            let torch = switched.torch.clone();
            torch.report(switched.back());
        }
    }
}

thread_local! {
    /// How many streams of this thread are to be put back.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A stream that was made torch's current one on this thread. Dropping it puts nothing back: that is
/// what happens to a thread that ends.
#[derive(Debug)]
pub(crate) struct Switched {
    torch: Torch,
    /// While it is current nothing may destroy it.
    stream: Stream,
    guard: RawGuard,
    /// Its place in the order in which streams are put back.
    depth: usize,
    _thread: PhantomData<*const ()>,
}

impl Switched {
    pub(crate) fn to(torch: &Torch, stream: &Stream) -> Result<Switched> {
        let device = stream.context().device().ordinal();
        // PyTorch may use it long after: autograd's nodes and freed tensors remember it.
        stream.keep_alive()?;
        // SAFETY: the stream is alive and of this device. The result keeps it until another is
        // current, and for good where that cannot be.
        let guard = unsafe { torch.create_guard(raw_stream(stream), device) }?;
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        let (torch, stream) = (torch.clone(), stream.clone());
        Ok(Switched { torch, stream, guard, depth, _thread: PhantomData })
    }

    pub(crate) fn torch(&self) -> &Torch {
        &self.torch
    }

    /// Refuses to be put back before what was made current later.
    pub(crate) fn check_order(&self) -> Result<()> {
        if DEPTH.get() == self.depth + 1 { Ok(()) } else { Err(TorchError::StreamOrder) }
    }

    /// Makes current again what was.
    pub(crate) fn back(self) -> Result<()> {
        if let Err(error) = self.check_order() {
            // A later guard puts this stream back.
            mem::forget(self);
            return Err(error);
        }
        DEPTH.set(self.depth);
        // SAFETY: the guard was made on this thread, which this object does not leave, and is deleted
        // here alone. What it puts back is a stream that another object of this kind keeps, or one
        // that others made current, who must keep it for as long.
        let deleted = unsafe { self.torch.delete_guard(self.guard) };
        if deleted.is_err() {
            // It may still be current.
            mem::forget(self);
        }
        deleted
    }
}

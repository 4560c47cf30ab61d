//! Closing a context, and the reasons why one stays open.
//!
//! 1. `seclude` removes the context, and the stream that a partition comes with, from the registry. It counts
//!    their handles under the registry's lock, so afterwards no thread can get another one.
//! 2. `ready_to_close` waits for the context's work and for graphs that other contexts launched here.
//! 3. `finish_close` ends both and returns the group.
//!
//! If a step refuses, `reveal` enters the same objects again. The partition then has the stream, the context
//! and the identity that it had before. A set of plans is closed in the same steps (`divide/plan/close.rs`):
//! every context of every plan is ready before the first one ends.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;

use super::{Context, Kind};
use crate::handle::current;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::group::SmGroup;
use crate::handle::trace;

/// The stream that a partition comes with, which is closed with its context.
pub(crate) trait OwnStream {
    /// Whether this is the only handle and `and` holds, which is asked under the registry's lock; from then on the
    /// stream is not found.
    fn seclude(&self, and: &mut dyn FnMut() -> bool) -> bool;

    /// Undoes [`seclude`](OwnStream::seclude).
    fn reveal(&self);
}

/// Why a context was not closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Something else keeps it.
    #[error("the context is still in use: {}", keepers(*.streams))]
    Shared {
        /// How many of a partition's streams are alive, apart from the one that it comes with; where none is,
        /// another handle of its context, a guard, a graph or a capture keeps it. `None` for a primary
        /// context, which partitions, events and buffers keep too, and for a borrowed one: their streams are
        /// not counted.
        streams: Option<usize>,
    },
    /// It is one of a set of plans, whose other plans use its SMs too. Its last handle ends it.
    #[error("the context's SMs are those of a set of plans; drop the context instead")]
    InPlans,
    /// It is this thread's current context.
    #[error("the context is current on this thread")]
    Current,
    /// A stream of the partition is being captured: the one that it comes with, or one that was
    /// [kept](crate::Stream::keep_alive). Waiting for its work would invalidate the capture.
    #[error("a stream of the partition is being captured; end the capture first")]
    Capturing,
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx_sys::debug_as_text!(CloseReason);

fn keepers(streams: Option<usize>) -> Cow<'static, str> {
    match streams {
        None => "something else that needs it is alive".into(),
        Some(0) => "another handle of it, a guard, a graph, a capture or a context that shares its workqueues is alive".into(),
        Some(1) => "a stream of it is alive".into(),
        Some(streams) => format!("{streams} streams of it are alive").into(),
    }
}

impl Context {
    /// Waits for the context's work and gives its group back, ready for another context. A primary
    /// context is released and has no group; nor has a borrowed one, whose owner is dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the context back: when another handle of it lives (a clone, a
    /// stream, a guard), when its SMs are those of a set of plans, when a stream of it that was
    /// [kept](crate::Stream::keep_alive) is being captured, when it is current on this thread, and when the driver
    /// fails.
    ///
    /// # Panics
    ///
    /// Where a function of [`Driver::on_reclaim`](crate::Driver::on_reclaim) panics. The context is dropped
    /// then.
    pub fn close(self) -> Result<Option<SmGroup>, Refused<Context, CloseReason>> {
        trace::span!("close_context", device = self.device().ordinal(), green = self.is_green());
        let refused = |context, reason| Err(Refused { given: context, reason });
        let driver = self.device().driver();
        if let Err(error) = driver.check_process() {
            return refused(self, error.into());
        }
        driver.reclaim();
        if self.shares_sms() {
            return refused(self, CloseReason::InPlans);
        }
        if !self.seclude(None) {
            let streams = self.stream_count();
            return refused(self, CloseReason::Shared { streams });
        }
        if let Err(reason) = self.ready_to_close() {
            let context = self.reveal(None);
            return refused(context, reason);
        }
        Ok(self.finish_close())
    }

    /// Whether nobody else has a handle of the context, nor of the stream, which is its own; nobody finds
    /// either from then on.
    pub(crate) fn seclude(&self, stream: Option<&dyn OwnStream>) -> bool {
        let contexts = self.device().driver().contexts();
        let handles = 1 + usize::from(stream.is_some());
        let mut seclude = || contexts.seclude(self.inner.raw.address(), &self.inner, handles);
        // A stream gives out its context, so the context is counted while no other handle of the stream exists.
        // Either both leave their registries or neither does.
        let mut alone = match stream {
            Some(stream) => stream.seclude(&mut seclude),
            None => seclude(),
        };
        if alone && matches!(self.inner.kind, Kind::Primary) {
            alone = self.device().forget_primary(&self.inner);
            if !alone {
                self.enter_again();
            }
        }
        alone
    }

    /// Returns whether the context is secluded.
    pub(crate) fn is_being_closed(&self) -> bool {
        !self.device().driver().contexts().contains(self.inner.raw.address())
    }

    /// Undoes [`seclude`](Context::seclude).
    pub(crate) fn reveal(&self, stream: Option<&dyn OwnStream>) -> Context {
        stream.into_iter().for_each(OwnStream::reveal);
        self.enter_again()
    }

    /// The object of the context's handle: this one, unless another thread came with the primary context's
    /// handle meanwhile.
    fn enter_again(&self) -> Context {
        let (contexts, inner) = (self.device().driver().contexts(), Arc::clone(&self.inner));
        let (inner, late) = contexts.get_or_enter(self.inner.raw.address(), inner);
        drop(late);
        Context { inner }
    }

    /// Waits for all work of a secluded context.
    pub(crate) fn ready_to_close(&self) -> Result<(), CloseReason> {
        match &self.inner.kind {
            Kind::Green(green) => {
                if green.has_kept_captures(self.device())? {
                    return Err(CloseReason::Capturing);
                }
                if current::get(self.device().driver())? == self.raw() {
                    // The next owner of the context would find it current on another thread.
                    return Err(CloseReason::Current);
                }
                // The group is handed out as free, so its work must be done.
                self.synchronize()?;
                Ok(green.fencing.synchronize_guests()?)
            }
            Kind::Primary => Ok(self.inner.release()?),
            Kind::Borrowed(_) | Kind::Closed => Ok(()),
        }
    }

    /// Closes a context of which this is the only handle: it was secluded, and its streams have gone since.
    /// The group of a green one comes back. Its work must be done, or the group's fences stand for it.
    pub(crate) fn finish_close(self) -> Option<SmGroup> {
        let mut inner = Arc::into_inner(self.inner)?;
        match mem::replace(&mut inner.kind, Kind::Closed) {
            Kind::Green(mut green) => {
                green.group.add_fences(green.fencing.take_pending());
                inner.leave(&mut green);
                Some(green.group)
            }
            // The owner of a borrowed one goes here.
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }
}

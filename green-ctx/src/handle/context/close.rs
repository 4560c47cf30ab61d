//! Closing a context.
//!
//! 1. `seclude` removes the context, and a partition's own stream, from the registry. Under the registry's lock,
//!    `seclude` checks that no other handles of the two objects exist, so no thread can get a new handle afterwards.
//! 2. `ready_to_close` waits for the context's work and for graphs that streams of other contexts launched in the
//!    context.
//! 3. `finish_close` ends the context and returns its group.
//!
//! If a step fails, `reveal` puts the same objects back into the registry, so the partition still has its stream, its
//! context and its identity. A plan set is closed in the same steps (`divide/plan/close.rs`): the contexts of all its
//! plans must be ready before the first one ends.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;

use super::{Context, Kind};
use crate::handle::current;
use crate::handle::error::{Error, Refused, Result};
use crate::handle::group::SmGroup;
use crate::handle::trace;

/// A partition's own stream, which is closed together with its context.
pub(crate) trait OwnStream {
    /// If this is the stream's only handle and `and` returns true, removes the stream from its registry and returns
    /// true. `and` is called under the registry's lock.
    fn seclude(&self, and: &mut dyn FnMut() -> bool) -> bool;

    /// Undoes [`seclude`](OwnStream::seclude).
    fn reveal(&self);
}

/// The reason why a context was not closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The context is still in use.
    #[error("the context is still in use: {}", keepers(*.streams))]
    Shared {
        /// The number of live streams of the context, not counting a partition's own stream. If the number is 0,
        /// another handle of the context, a guard, a graph or a capture uses the context.
        ///
        /// `None` for a primary or borrowed context, whose streams are not counted. Partitions, events and buffers also
        /// use the primary context.
        streams: Option<usize>,
    },
    /// The context belongs to a plan set, and other plans use its SMs. The context ends when its last handle is
    /// dropped.
    #[error("the context belongs to a plan set; drop the context instead of closing it")]
    InPlans,
    /// The context is current on the calling thread.
    #[error(
        "the context is current on this thread; drop its guard or make another context current"
    )]
    Current,
    /// A stream of the partition is being captured: its own stream, or one that was [kept
    /// alive](crate::Stream::keep_alive). Waiting for the stream's work would invalidate the capture.
    #[error("a stream of the partition is being captured; end the capture first")]
    Capturing,
    /// The driver returned an error.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx_sys::debug_as_text!(CloseReason);

fn keepers(streams: Option<usize>) -> Cow<'static, str> {
    match streams {
        None => "another object that uses it is alive; drop that object first".into(),
        Some(0) => {
            "a clone, a guard, a graph, a capture or a context that shares its workqueues is \
             alive; drop that first"
                .into()
        }
        Some(1) => "one of its streams is alive; drop the stream first".into(),
        Some(streams) => {
            format!("{streams} of its streams are alive; drop the streams first").into()
        }
    }
}

impl Context {
    /// Waits for the context's work, closes the context, and returns its group for use in another context. A primary or
    /// borrowed context has no group: the primary context is released, and the owner of a borrowed context is dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which returns the context, with one of these reasons:
    ///
    /// - [`CloseReason::Shared`] if a clone, a stream, a guard or another object still uses the context.
    /// - [`CloseReason::InPlans`] if the SMs belong to a plan set.
    /// - [`CloseReason::Capturing`] if a stream that was [kept alive](crate::Stream::keep_alive) is being captured.
    /// - [`CloseReason::Current`] if the context is current on this thread.
    /// - [`CloseReason::Driver`] if a driver call fails.
    ///
    /// # Panics
    ///
    /// Panics if a hook of [`Driver::on_reclaim`](crate::Driver::on_reclaim) panics. The panic drops the context.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, context::CloseReason, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let group = device.resources().sm()?.split([32])?.groups.remove(0);
    /// let context = device.create_context(group)?;
    /// let clone = context.clone();
    /// let refused = context.close().expect_err("the clone uses the context");
    /// assert!(matches!(refused.reason, CloseReason::Shared { streams: Some(0) }));
    ///
    /// drop(clone);
    /// let group = refused.given.close()?.ok_or("a green context has a group")?;
    /// assert_eq!(group.sm_count(), 32);
    /// # Ok(())
    /// # }
    /// ```
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

    /// Removes the context and, if given, the stream from their registries. Returns false and changes nothing if
    /// another handle of the context or of the stream exists.
    pub(crate) fn seclude(&self, stream: Option<&dyn OwnStream>) -> bool {
        let contexts = self.device().driver().contexts();
        let handles = 1 + usize::from(stream.is_some());
        let mut seclude = || contexts.seclude(self.inner.raw.address(), &self.inner, handles);
        // A handle of the stream can give out its context. The context's handles are therefore counted while the stream
        // is known to have no other handle. Either both objects leave their registries or neither does.
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

    /// Returns whether [`seclude`](Context::seclude) has removed the context from the registry.
    pub(crate) fn is_being_closed(&self) -> bool {
        !self.device().driver().contexts().contains(self.inner.raw.address())
    }

    /// Undoes [`seclude`](Context::seclude).
    pub(crate) fn reveal(&self, stream: Option<&dyn OwnStream>) -> Context {
        stream.into_iter().for_each(OwnStream::reveal);
        self.enter_again()
    }

    /// Enters the context in the registry again, and returns the registered object. For a primary context, this is a
    /// different object if another thread has entered one in the meantime.
    fn enter_again(&self) -> Context {
        let (contexts, inner) = (self.device().driver().contexts(), Arc::clone(&self.inner));
        let (inner, late) = contexts.get_or_enter(self.inner.raw.address(), inner);
        drop(late);
        Context { inner }
    }

    /// Waits for all work of a green context that was removed from the registry. For a primary context, releases this
    /// object's reference to it instead.
    pub(crate) fn ready_to_close(&self) -> Result<(), CloseReason> {
        match &self.inner.kind {
            Kind::Green(green) => {
                if green.has_kept_captures(self.device())? {
                    return Err(CloseReason::Capturing);
                }
                if current::get(self.device().driver())? == self.raw() {
                    // The next owner's context would be current on this thread.
                    return Err(CloseReason::Current);
                }
                // The group is returned as free, so the work on its SMs must be done.
                self.synchronize()?;
                Ok(green.fencing.synchronize_guests()?)
            }
            Kind::Primary => Ok(self.inner.release()?),
            Kind::Borrowed(_) | Kind::Closed => Ok(()),
        }
    }

    /// Ends a context that was removed from the registry and has no streams left. Returns the group of a green context.
    /// Before this call, the context's work must be done, or be covered by the group's fences.
    pub(crate) fn finish_close(self) -> Option<SmGroup> {
        let mut inner = Arc::into_inner(self.inner)?;
        match mem::replace(&mut inner.kind, Kind::Closed) {
            Kind::Green(mut green) => {
                green.group.add_fences(green.fencing.take_pending());
                green.leave(&inner.device);
                Some(green.group)
            }
            // Dropping `inner` drops the owner of a borrowed context.
            Kind::Primary | Kind::Borrowed(_) | Kind::Closed => None,
        }
    }
}

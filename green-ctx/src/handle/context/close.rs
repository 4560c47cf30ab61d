//! Closing a context.
//!
//! 1. The close checks that no other handle of the context exists, nor of a partition's own stream.
//! 2. `ready_to_close` waits for the context's work and for graphs that streams of other contexts launched in the
//!    context. In the meantime other threads can still look the objects up.
//! 3. If no other handle exists, and none was given out in the meantime, the objects leave their registries. Otherwise
//!    the close begins again, because a thread that had a handle may have submitted work. The registry makes each check
//!    under its lock ([`Step`]), so no thread can get a handle afterwards.
//! 4. `finish_close` ends the context and returns its group. This step cannot fail, so nothing that has left its
//!    registry ever returns.
//!
//! A plan set is closed in the same steps (`divide/plan/close.rs`), for the contexts of all its plans together.

use std::borrow::Cow;
use std::sync::Arc;

use super::Context;
use crate::handle::current;
use crate::handle::driver::Driver;
use crate::handle::error::{Error, ErrorKind, Refused, Result};
use crate::handle::group::SmGroup;
use crate::handle::registry::Step;
use crate::handle::trace;

/// Takes the steps of a close up to the point at which it cannot fail: `alone` takes a step of the registries, and
/// `ready` waits for the work. Returns false if the objects have other handles.
pub(crate) fn when_alone<E>(
    alone: impl Fn(Step) -> bool,
    ready: impl Fn() -> Result<(), E>,
) -> Result<bool, E> {
    /// A thread that looks the objects up all the time must not make the close endless.
    const TRIES: usize = 8;
    for _ in 0..TRIES {
        if !alone(Step::Watch) {
            return Ok(false);
        }
        ready()?;
        if alone(Step::Remove) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The reason why a context was not closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The context is still in use.
    #[error("the context is still in use: {}", keepers(*.streams))]
    Shared {
        /// The number of live streams of the context, not counting a partition's own stream. If the number is 0,
        /// another handle of the context or of that stream, a guard, a graph or a capture uses the context.
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

impl CloseReason {
    /// Returns the kind of the error, like [`Error::kind`]: [`ErrorKind::Unavailable`] if the context is in use.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            CloseReason::Driver(error) => error.kind(),
            CloseReason::Shared { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::InvalidRequest,
        }
    }
}

impl From<CloseReason> for Error {
    /// Keeps the message and the kind.
    fn from(reason: CloseReason) -> Error {
        match reason {
            CloseReason::Driver(error) => error,
            reason => Error::refusal(reason.kind(), &reason),
        }
    }
}

fn keepers(streams: Option<usize>) -> Cow<'static, str> {
    match streams {
        None => "another object that uses it is alive; drop that object first".into(),
        Some(0) => {
            "a clone of it or of its partition's stream, a guard, a graph, a capture or a context that \
             shares its workqueues is alive; drop that first"
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
        let alone = |step| Context::alone(&[&self], driver, step, 1);
        match when_alone(alone, || self.ready_to_close()) {
            Ok(true) => self.release_and_finish(),
            Ok(false) => {
                let streams = self.stream_count();
                refused(self, CloseReason::Shared { streams })
            }
            Err(reason) => refused(self, reason),
        }
    }

    /// Takes a step of the close of these contexts, each of which has `handles` handles that the caller knows.
    pub(crate) fn alone(
        contexts: &[&Context],
        driver: &Driver,
        step: Step,
        handles: usize,
    ) -> bool {
        let objects = contexts.iter().map(|one| (one.inner.raw.address(), &one.inner, handles));
        let objects: Vec<_> = objects.collect();
        driver.contexts().alone(step, &objects, || true)
    }

    /// Returns whether a close has removed the context from the registry.
    pub(crate) fn is_being_closed(&self) -> bool {
        !self.device().driver().contexts().has(self.inner.raw.address(), &self.inner)
    }

    /// Waits for all work of a green context.
    pub(crate) fn ready_to_close(&self) -> Result<(), CloseReason> {
        let (Some(lease), Some(green)) = (self.lease(), self.green()) else { return Ok(()) };
        if green.streams.are_capturing(self.device().functions()?)? {
            return Err(CloseReason::Capturing);
        }
        if current::get(self.device().driver())? == self.raw() {
            // The next owner's context would be current on this thread.
            return Err(CloseReason::Current);
        }
        // The group is returned as free, so the work on its SMs must be done.
        green.synchronize(self.device())?;
        Ok(lease.synchronize_guests()?)
    }

    /// Ends a context that has left the registry. If the driver does not release a primary context, returns the
    /// context.
    fn release_and_finish(self) -> Result<Option<SmGroup>, Refused<Context, CloseReason>> {
        let released = if self.inner.is_retained { self.inner.release() } else { Ok(()) };
        let Err(error) = released else { return Ok(self.finish_close()) };
        let (device, address) = (self.device().clone(), self.inner.raw.address());
        // If another thread has retained the primary context in the meantime, its object is returned.
        let (inner, late) = device.driver().contexts().get_or_enter(address, self.inner);
        drop(late);
        Err(Refused { given: Context { inner }, reason: error.into() })
    }

    /// Ends a context that has left the registry and has no streams left. Returns the group of a green context. Before
    /// this call, the context's work must be done, or be covered by the group's fences.
    pub(crate) fn finish_close(self) -> Option<SmGroup> {
        let mut inner = Arc::into_inner(self.inner)?;
        inner.is_retained = false;
        let (mut lease, green) = (inner.lease.take()?, inner.green.as_ref()?);
        lease.group.add_fences(lease.pending.take());
        lease.leave(green, &inner.device);
        Some(lease.group)
    }
}

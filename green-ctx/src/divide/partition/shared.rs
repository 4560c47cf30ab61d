//! A context with its first stream, which partitions of several plans can share.
//!
//! Partitions of different plans share one `SharedContext` if they have the same units and the same priority,
//! so that a switch between these plans leaves the context alone. Two partitions of one plan never share a
//! context, even on the same units. A partition outside plans has its own `SharedContext`.
//!
//! Different plans can use the same context under different names. A switch gives the context the name that
//! the new active plan uses. `wait_for` makes no driver call for work that the context already waits for, so
//! a switch that adds no wait succeeds even while a stream of the context is being captured.

use crate::divide::resource::create;
use crate::handle::context::{CloseReason, Context, when_alone};
use crate::handle::error::{Error, Result};
use crate::handle::fence::{Fence, Fences};
use crate::handle::group::SmGroup;
use crate::handle::registry::Step;
use crate::ledger::{Placement, UnitSet};
use crate::work::stream::{Stream, StreamOptions};

/// A context with its first stream.
pub(crate) struct SharedContext {
    context: Context,
    stream: Stream,
    priority: i32,
    placement: Placement,
    units: UnitSet,
}

impl SharedContext {
    /// Creates a context on a group's SMs. Contexts of other plans can use the same SMs at other times.
    pub(crate) fn create_time_shared(group: SmGroup) -> Result<SharedContext> {
        let priority = group.priority();
        let device = group.device().clone();
        let work = Fence::new(&device)?;
        let context = create::context(&device, group.into(), Some(work))?;
        SharedContext::of(context, priority).map_err(|(_context, error)| error)
    }

    /// Creates the first stream of a context. If the stream cannot be created, the error returns the context.
    pub(crate) fn of(context: Context, priority: i32) -> Result<SharedContext, (Context, Error)> {
        let stream = match context.create_stream(StreamOptions::default().priority(priority)) {
            Ok(stream) => stream,
            Err(error) => return Err((context, error)),
        };
        let group = context.group();
        let placement = group.map(|group| group.placement().clone()).unwrap_or_default();
        let count = group.map_or(0, |group| group.units().counts().counts().len());
        let units = UnitSet::of(count, placement.members.iter().copied());
        Ok(SharedContext { context, stream, priority, placement, units })
    }

    /// Waits for all work of contexts that are about to be closed, and removes them from the registries. The caller
    /// must have the only handles. If that fails, returns the number of the context that is in the way, and nothing is
    /// changed.
    pub(crate) fn prepare_close(contexts: &[&SharedContext]) -> Result<(), (usize, CloseReason)> {
        let Some(first) = contexts.first() else { return Ok(()) };
        let driver = first.context.device().driver();
        // A capture also has handles, but naming it helps the caller more.
        for (index, shared) in contexts.iter().enumerate() {
            if shared.stream.is_capturing().map_err(|error| (index, error.into()))? {
                return Err((index, CloseReason::Capturing));
            }
        }
        let alone = |contexts: &[&SharedContext], step| {
            let streams: Vec<_> = contexts.iter().map(|context| &context.stream).collect();
            let contexts: Vec<_> = contexts.iter().map(|context| &context.context).collect();
            // A handle of the stream can give out its context. The context's handles, which are this one and that of
            // the stream, are therefore counted while the stream is known to have no other handle.
            Stream::alone(&streams, driver, step, || Context::alone(&contexts, driver, step, 2))
        };
        let ready = || {
            let ready = |(index, shared): (usize, &&SharedContext)| {
                shared.context.ready_to_close().map_err(|reason| (index, reason))
            };
            contexts.iter().enumerate().try_for_each(ready)
        };
        if when_alone(|step| alone(contexts, step), ready)? {
            return Ok(());
        }
        let is_shared = |context: &&SharedContext| !alone(&[context], Step::Watch);
        let index = contexts.iter().position(is_shared).unwrap_or(0);
        let streams = contexts[index].context.stream_count().map(|count| count.saturating_sub(1));
        Err((index, CloseReason::Shared { streams }))
    }

    /// Closes a context after [`prepare_close`](SharedContext::prepare_close).
    pub(crate) fn finish_close(self) -> Option<SmGroup> {
        let SharedContext { context, stream, .. } = self;
        drop(stream);
        context.finish_close()
    }

    /// Returns whether this is the context for a group with these SMs and this priority.
    pub(crate) fn is_for(&self, placement: &Placement, priority: i32) -> bool {
        self.placement == *placement && self.priority == priority
    }

    /// Returns the set of these units of the context.
    pub(crate) fn set_of(&self, members: impl IntoIterator<Item = usize>) -> UnitSet {
        self.units.subset(members)
    }

    /// Returns the units of the context.
    pub(crate) fn units(&self) -> &UnitSet {
        &self.units
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    #[inline]
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns whether a stream of the context is being captured.
    pub(crate) fn has_captures(&self) -> Result<bool> {
        self.context.has_captures()
    }

    /// Records the work that was submitted to the context so far.
    pub(crate) fn record(&self) -> Result<()> {
        self.context.record_work()
    }

    /// Returns whether the work that was recorded last is done. The query runs in the thread's current
    /// capture mode.
    pub(crate) fn is_done(&self) -> Result<bool> {
        let api = self.context.device().functions()?;
        for fence in self.context.work() {
            if !fence.is_done(api)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the work that was recorded last is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let api = self.context.device().functions()?;
        self.context.work().try_for_each(|fence| fence.synchronize(api))
    }

    /// Makes later work of this context wait for the work of contexts that no longer exist.
    pub(crate) fn wait_for_former(&self, fences: &Fences) -> Result<()> {
        fences.iter().try_for_each(|fence| self.context.hold(fence))
    }

    /// Returns whether this context already waits for the last recorded work of `other`.
    pub(crate) fn waits_for(&self, other: &SharedContext) -> bool {
        other.context.work().all(|fence| self.context.waits_for(fence))
    }

    /// Makes later work of this context wait for the last recorded work of `other`. Only one thread at a time
    /// may call this function.
    pub(crate) fn wait_for(&self, other: &SharedContext) -> Result<()> {
        let mut missing = other.context.work().filter(|fence| !self.context.waits_for(fence));
        missing.try_for_each(|fence| self.context.hold(fence))
    }
}

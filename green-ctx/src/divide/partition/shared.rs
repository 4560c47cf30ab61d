//! A context with its first stream, which partitions of several plans can share.
//!
//! Partitions of different plans share one `SharedContext` if they have the same units and the same priority,
//! so that a switch between these plans leaves the context alone. Two partitions of one plan never share a
//! context, even on the same units. A partition outside plans has its own `SharedContext`.
//!
//! Plans can have different names for a context. A switch sets the name of the active plan. `wait_for` makes
//! no driver call for work that the context already waits for, so a capture in the context does not prevent
//! such a switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::divide::resource::create;
use crate::handle::context::{CloseReason, Context};
use crate::handle::error::{Error, Result};
use crate::handle::fence::{Fence, Fences};
use crate::handle::group::SmGroup;
use crate::ledger::{Placement, UnitSet};
use crate::work::stream::{Stream, StreamOptions};

/// A context with its first stream.
pub(crate) struct SharedContext {
    context: Context,
    stream: Stream,
    priority: i32,
    placement: Placement,
    units: UnitSet,
    /// Whether plans use several names for it.
    has_names: AtomicBool,
}

impl SharedContext {
    /// Creates a context on a group's SMs, which other plans can use too.
    pub(crate) fn create_time_shared(group: SmGroup) -> Result<SharedContext> {
        let priority = group.priority();
        let context = create::context(&group.device().clone(), group.into())?;
        context.share_sms()?;
        SharedContext::of(context, priority).map_err(|(_context, error)| error)
    }

    /// Wraps a context that plans of the set used before, and no plan uses now.
    pub(crate) fn again(context: Context, priority: i32) -> Result<SharedContext> {
        let shared = SharedContext::of(context, priority).map_err(|(_context, error)| error)?;
        // It may still have the name that an earlier plan gave it.
        shared.has_names.store(true, Ordering::Relaxed);
        Ok(shared)
    }

    /// Creates the first stream of a context. If that fails, returns the context.
    pub(crate) fn of(context: Context, priority: i32) -> Result<SharedContext, (Context, Error)> {
        let stream = match context.create_stream(StreamOptions::default().priority(priority)) {
            Ok(stream) => stream,
            Err(error) => return Err((context, error)),
        };
        let group = context.group();
        let placement = group.map(|group| group.placement().clone()).unwrap_or_default();
        let count = group.map_or(0, |group| group.units().counts().counts().len());
        let units = UnitSet::of(count, placement.members.iter().copied());
        let has_names = AtomicBool::new(false);
        Ok(SharedContext { context, stream, priority, placement, units, has_names })
    }

    /// Waits for all work of a context that is about to be closed. The caller must have the only handle. If
    /// this fails, nothing has changed.
    pub(crate) fn prepare_close(&self) -> Result<(), CloseReason> {
        let SharedContext { context, stream, .. } = self;
        // Check before the stream leaves the registry: when a capture ends, it looks there for the streams
        // that take part.
        if stream.is_capturing()? {
            return Err(CloseReason::Capturing);
        }
        if !context.seclude(Some(stream)) {
            let streams = context.stream_count().map(|count| count.saturating_sub(1));
            return Err(CloseReason::Shared { streams });
        }
        context.ready_to_close().inspect_err(|_| self.cancel_close())
    }

    /// Undoes [`prepare_close`](SharedContext::prepare_close).
    pub(crate) fn cancel_close(&self) {
        self.context.reveal(Some(&self.stream));
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

    /// Notes a name that a plan uses for it.
    pub(crate) fn note_name(&self, name: &str) {
        if self.context.label() != name {
            self.has_names.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the name that the active plan uses for it.
    #[inline]
    pub(crate) fn set_name(&self, name: &Arc<str>) {
        if self.has_names.load(Ordering::Relaxed) {
            self.context.set_partition_name(name);
        }
    }

    /// Returns a set of some of its units.
    pub(crate) fn set_of(&self, members: impl IntoIterator<Item = usize>) -> UnitSet {
        self.units.subset(members)
    }

    /// Returns its units.
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

    /// Records the work submitted so far.
    pub(crate) fn record(&self) -> Result<()> {
        self.context.record_work(self.stream.raw_stream())
    }

    /// Returns whether the work that was recorded last is done. Queries in the thread's current capture mode.
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

    /// Makes work submitted here wait for the work of contexts that are gone.
    pub(crate) fn wait_for_former(&self, fences: &Fences) -> Result<()> {
        fences.iter().try_for_each(|fence| self.context.hold(fence, self.stream.raw_stream()))
    }

    /// Returns whether it already waits for the work that was recorded last in `other`.
    pub(crate) fn waits_for(&self, other: &SharedContext) -> bool {
        other.context.work().all(|fence| self.context.waits_for(fence))
    }

    /// Makes work submitted here from now on wait for the work that was recorded last in `other`. Only one
    /// thread at a time may call it.
    pub(crate) fn wait_for(&self, other: &SharedContext) -> Result<()> {
        let hold = |fence: &Arc<Fence>| self.context.hold(fence, self.stream.raw_stream());
        other.context.work().filter(|fence| !self.context.waits_for(fence)).try_for_each(hold)
    }
}

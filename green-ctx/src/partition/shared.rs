//! A context with its first stream, which partitions of several plans may have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::{CloseError, Context};
use crate::error::Result;
use crate::fence::{Fence, Fences};
use crate::group::SmGroup;
use crate::ledger::{Placement, UnitSet};
use crate::stream::{Stream, StreamOptions};

/// A context with its first stream. Plans that have a partition of the same SMs share it, so that
/// switching between them does not touch it.
pub(crate) struct SharedContext {
    context: Context,
    stream: Stream,
    priority: i32,
    placement: Placement,
    units: UnitSet,
    /// Whether plans have several names for it.
    has_names: AtomicBool,
}

impl SharedContext {
    /// The context of a group whose SMs other plans have too.
    pub(crate) fn create_time_shared(group: SmGroup) -> Result<SharedContext> {
        let priority = group.priority();
        let context = group.device().clone().create_context(group)?;
        context.share_sms()?;
        SharedContext::of(context, priority)
    }

    /// A context that has no stream yet.
    pub(super) fn of(context: Context, priority: i32) -> Result<SharedContext> {
        let stream = context.create_stream(StreamOptions::default().priority(priority))?;
        let group = context.group();
        let placement = group.map(|group| group.placement().clone()).unwrap_or_default();
        let count = group.map_or(0, |group| group.units().counts().counts().len());
        let units = UnitSet::of(count, placement.members.iter().copied());
        let has_names = AtomicBool::new(false);
        Ok(SharedContext { context, stream, priority, placement, units, has_names })
    }

    /// Closes the context. Where that fails it has no stream any more, which was of this priority.
    pub(super) fn close(self) -> Result<Option<SmGroup>, (CloseError, i32)> {
        let SharedContext { context, stream, priority, .. } = self;
        drop(stream);
        context.close().map_err(|error| (error, priority))
    }

    /// Whether a group of these SMs and with this priority would become the same.
    pub(crate) fn is_for(&self, placement: &Placement, priority: i32) -> bool {
        self.placement == *placement && self.priority == priority
    }

    /// Notes a name that a plan has for it.
    pub(crate) fn note_name(&self, name: &str) {
        if self.context.label() != name {
            self.has_names.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the name that the active plan has for it.
    #[inline]
    pub(crate) fn set_name(&self, name: &Arc<str>) {
        if self.has_names.load(Ordering::Relaxed) {
            self.context.set_partition_name(name);
        }
    }

    /// Its units.
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

    /// Whether a stream of it is being captured.
    pub(crate) fn has_captures(&self) -> Result<bool> {
        self.context.has_captures()
    }

    /// Records the work up to now.
    pub(crate) fn record(&self) -> Result<()> {
        self.context.record_work(&self.stream)
    }

    /// Whether the work that was recorded last is done. Asks with the mode of captures that the thread
    /// has.
    pub(crate) fn is_done(&self) -> Result<bool> {
        let api = self.context.device().api();
        for fence in self.context.work() {
            if !fence.is_done(api)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the work that was recorded last is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let api = self.context.device().api();
        self.context.work().try_for_each(|fence| fence.synchronize(api))
    }

    /// Makes what is submitted here wait for what contexts that are gone left.
    pub(crate) fn wait_for_former(&self, fences: &Fences) -> Result<()> {
        fences.iter().try_for_each(|fence| self.context.hold(fence, &self.stream))
    }

    /// Whether it waits already for the work that was recorded last in another.
    pub(crate) fn waits_for(&self, other: &SharedContext) -> bool {
        other.context.work().all(|fence| self.context.waits_for(fence))
    }

    /// Makes what is submitted here from now on wait for the work that was recorded last in another.
    /// Only one thread at a time may call it.
    pub(crate) fn wait_for(&self, other: &SharedContext) -> Result<()> {
        let hold = |fence: &Arc<Fence>| self.context.hold(fence, &self.stream);
        other.context.work().filter(|fence| !self.context.waits_for(fence)).try_for_each(hold)
    }
}

//! Contexts that plans share.

use std::sync::Arc;

use crate::context::Context;
use crate::error::Result;
use crate::fence::{Fence, Fences};
use crate::group::SmGroup;
use crate::ledger::Placement;
use crate::stream::{Stream, StreamOptions};

/// A context on certain SMs of a set, with its first stream. Plans that have a partition of the same
/// SMs share it, so that switching between them does not touch it.
pub(super) struct SharedContext {
    placement: Placement,
    /// The units, a bit each: a switch asks for what overlaps.
    units: Vec<u64>,
    context: Context,
    stream: Stream,
}

impl SharedContext {
    pub(super) fn create(group: SmGroup) -> Result<SharedContext> {
        let device = group.device().clone();
        let placement = group.placement().clone();
        let context = device.create_context(group)?;
        context.share_sms()?;
        let stream = context.create_stream(StreamOptions::default())?;
        let units = bits(&placement.members);
        Ok(SharedContext { placement, units, context, stream })
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    #[inline]
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether some SMs of one are SMs of the other too.
    pub(super) fn overlaps(&self, other: &SharedContext) -> bool {
        self.units.iter().zip(&other.units).any(|(ours, theirs)| ours & theirs != 0)
    }

    /// Whether others have all of its SMs between them.
    pub(super) fn is_within(&self, others: &[Arc<SharedContext>]) -> bool {
        self.units.iter().enumerate().all(|(index, ours)| {
            let theirs = others.iter().filter_map(|other| other.units.get(index));
            ours & !theirs.fold(0, |all, units| all | units) == 0
        })
    }

    /// Whether a stream of it is being captured.
    pub(super) fn has_captures(&self) -> Result<bool> {
        self.context.has_captures()
    }

    /// Records the work up to now.
    pub(super) fn record(&self) -> Result<()> {
        self.context.record_work(&self.stream)
    }

    /// Whether the work that was recorded last is done. Asks with the mode of captures that the thread
    /// has.
    pub(super) fn is_done(&self) -> Result<bool> {
        let api = self.context.device().api();
        for fence in self.context.work() {
            if !fence.is_done(api)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the work that was recorded last is done.
    pub(super) fn synchronize(&self) -> Result<()> {
        let api = self.context.device().api();
        self.context.work().try_for_each(|fence| fence.synchronize(api))
    }

    /// Makes what is submitted here wait for what contexts that are gone left.
    pub(super) fn wait_for_former(&self, fences: &Fences) -> Result<()> {
        fences.iter().try_for_each(|fence| self.context.hold(fence, &self.stream))
    }

    /// Whether it waits already for the work that was recorded last in another.
    pub(super) fn waits_for(&self, other: &SharedContext) -> bool {
        other.context.work().all(|fence| self.context.waits_for(fence))
    }

    /// Makes what is submitted here from now on wait for the work that was recorded last in another.
    /// Only one thread at a time may call it.
    pub(super) fn wait_for(&self, other: &SharedContext) -> Result<()> {
        let hold = |fence: &Arc<Fence>| self.context.hold(fence, &self.stream);
        other.context.work().filter(|fence| !self.context.waits_for(fence)).try_for_each(hold)
    }
}

/// Numbers as the bits of words.
fn bits(numbers: &[usize]) -> Vec<u64> {
    const WORD: usize = u64::BITS as usize;
    let mut words = vec![0; numbers.iter().max().map_or(0, |most| most / WORD + 1)];
    numbers.iter().for_each(|number| words[number / WORD] |= 1 << (number % WORD));
    words
}

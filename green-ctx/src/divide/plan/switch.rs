//! The fences of a switch between plans.
//!
//! A partition of the next plan waits for another context in two cases (`Candidate::precedes`):
//!
//! - **F, floor:** the next plan does not use the context, and work of the context may still run on the
//!   partition's floor.
//! - **N, name:** an earlier plan used the context under the partition's name. Without this wait, one job
//!   could run in two contexts at the same time.
//!
//! SMs above a floor cause no wait. A context that keeps its name from the previous plan to the next one is
//! not recorded.
//!
//! Example (H200): in plan A, decode has the share `32..` and prefill has `..=100`. In plan B, decode has
//! `64..` and prefill has `..=68`. Decode may use all 132 SMs in plan A and in plan B, so the two plans use
//! the same context for decode. A switch from A to B records the context of A's prefill once. Decode waits
//! for that context, because the floor of decode grows over SMs of A's prefill (F). B's prefill waits for the
//! context of A's prefill too (N). In a switch from B to A, only A's prefill waits.
//!
//! `Former` lists the contexts that a later switch may have to wait for, with their units and names. A
//! context is removed from the list when its work is done. A switch without fences notes the previous plan,
//! and the next switch with fences records the contexts of that plan.

use std::mem;
use std::slice;
use std::sync::Arc;

use super::failure::PlanError;
use super::prepared::Plan;
use crate::divide::partition::{Partition, SharedContext};
use crate::handle::error::Result;
use crate::ledger::UnitSet;

/// The work of earlier plans that a later switch may have to wait for.
#[derive(Default)]
pub(super) struct Former {
    left: Vec<Left>,
    /// The plans that were switched away from without fences since the last switch with fences, without
    /// duplicates.
    unfenced: Vec<Arc<Plan>>,
}

/// The work of one context that a later switch may have to wait for.
pub(super) struct Left {
    context: Arc<SharedContext>,
    /// The units of the context that no later plan has put into a floor. A partition whose floor takes a unit
    /// waits for this context's work, so later owners of the unit need to wait only for that partition.
    units: UnitSet,
    /// The names under which earlier plans used the context, except names that a later plan reused. The
    /// partition that reused a name has already waited for the context.
    names: Vec<Arc<str>>,
    /// Whether the context's work has been recorded since the switch away from its plan.
    is_recorded: bool,
}

/// Values that a switch no longer needs. The caller must drop them without holding a lock.
pub(super) type Ended = (Vec<Left>, Vec<Arc<Plan>>);

/// A context that a partition of the next plan may have to wait for.
struct Candidate<'a> {
    context: &'a Arc<SharedContext>,
    units: &'a UnitSet,
    names: &'a [Arc<str>],
    is_recorded: bool,
    /// Whether the next plan uses the context too.
    stays: bool,
}

impl Candidate<'_> {
    /// Returns whether a partition of the next plan must wait for this context's work.
    fn precedes(&self, next: &Partition) -> bool {
        let on_its_floor = || !self.stays && self.units.overlaps(next.floor_units());
        let had_its_name = || self.names.iter().any(|name| **name == *next.name());
        !Arc::ptr_eq(self.context, next.shared()) && (on_its_floor() || had_its_name())
    }

    /// Returns the work of this context that later switches may still have to wait for, if each partition of
    /// the next plan waits for the context whenever `precedes` returns true.
    fn left(&self, next: &Plan) -> Option<Left> {
        let is_next = |name: &&Arc<str>| next.partitions.get(name).is_some();
        let names: Vec<_> =
            self.names.iter().filter(|name| !is_next(name)).map(Arc::clone).collect();
        let on_no_floor = || {
            let mut units = self.units.clone();
            next.partitions.iter().for_each(|next| {
                units.remove(next.floor_units());
            });
            units
        };
        // A context that stays is recorded when a later switch leaves it.
        let units = if self.stays { UnitSet::default() } else { on_no_floor() };
        let (context, is_recorded) = (Arc::clone(self.context), self.is_recorded);
        let is_over = units.is_empty() && names.is_empty();
        (!is_over).then_some(Left { context, units, names, is_recorded })
    }
}

impl Former {
    /// Sets the fences of a switch.
    pub(super) fn fence(&mut self, from: &Plan, to: &Plan) -> Result<Ended, PlanError> {
        let mut candidates = self.candidates(from, to)?;
        let is_awaited =
            |candidate: &Candidate<'_>| to.partitions.iter().any(|next| candidate.precedes(next));
        // Record contexts that give up units now. Later switches can then tell when their work is done.
        let mut recorded: Vec<&Arc<SharedContext>> = Vec::with_capacity(candidates.len());
        for candidate in &mut candidates {
            if candidate.is_recorded || (candidate.stays && !is_awaited(candidate)) {
                continue;
            }
            candidate.is_recorded = true;
            if !recorded.iter().any(|other| Arc::ptr_eq(other, candidate.context)) {
                recorded.push(candidate.context);
            }
        }
        // Check for captures before recording anything, so that a refused switch changes nothing.
        for context in &recorded {
            refuse_capture(context, from)?;
        }
        let is_recorded =
            |context: &Arc<SharedContext>| recorded.iter().any(|other| Arc::ptr_eq(other, context));
        for next in &to.partitions {
            let waits = |candidate: &Candidate<'_>| {
                candidate.precedes(next)
                    && (is_recorded(candidate.context)
                        || !next.shared().waits_for(candidate.context))
            };
            if candidates.iter().any(waits) {
                refuse_captures_of(next)?;
            }
        }
        recorded.iter().try_for_each(|context| context.record())?;
        for next in &to.partitions {
            let mut former = candidates.iter().filter(|candidate| candidate.precedes(next));
            former.try_for_each(|candidate| next.shared().wait_for(candidate.context))?;
        }
        let left: Vec<Left> =
            candidates.iter().filter_map(|candidate| candidate.left(to)).collect();
        let ended = (mem::take(&mut self.left), mem::take(&mut self.unfenced));
        left.into_iter().for_each(|more| self.leave(more));
        Ok(ended)
    }

    /// Returns the contexts of the previous plan, the contexts of plans that were switched away from without
    /// fences, and the contexts of earlier plans whose work is not done. Contexts that keep their name in the
    /// next plan are left out.
    fn candidates<'a>(&'a self, from: &'a Plan, to: &Plan) -> Result<Vec<Candidate<'a>>> {
        let stays = |context: &Arc<SharedContext>| {
            to.partitions.iter().any(|next| Arc::ptr_eq(next.shared(), context))
        };
        let mut candidates = Vec::with_capacity(from.partitions.len() + self.left.len());
        let unfenced = self.unfenced.iter().flat_map(|plan| &plan.partitions);
        for former in from.partitions.iter().chain(unfenced) {
            let context = former.shared();
            let goes_on = to
                .partitions
                .get(former.name())
                .is_some_and(|next| Arc::ptr_eq(next.shared(), context));
            if !goes_on {
                let (units, names) = (context.units(), slice::from_ref(former.arc_name()));
                let stays = stays(context);
                candidates.push(Candidate { context, units, names, is_recorded: false, stays });
            }
        }
        for Left { context, units, names, is_recorded } in &self.left {
            let is_recorded = *is_recorded;
            let goes = candidates.iter().any(|other| Arc::ptr_eq(other.context, context));
            if goes || !is_recorded || !is_done(context)? {
                let stays = stays(context);
                candidates.push(Candidate { context, units, names, is_recorded, stays });
            }
        }
        Ok(candidates)
    }

    /// Notes a switch without fences from the plan `from`. The next switch with fences to a different plan
    /// also orders the work of `from`.
    pub(super) fn note(&mut self, from: &Arc<Plan>, to: &Arc<Plan>) {
        // The caller holds `to`, so no plan is dropped under the lock here.
        self.unfenced.retain(|plan| !Arc::ptr_eq(plan, to));
        self.unfenced.push(Arc::clone(from));
    }

    /// Returns the plans that were switched away from without fences.
    pub(super) fn unfenced(&self) -> &[Arc<Plan>] {
        &self.unfenced
    }

    /// Returns the contexts that may have unfinished work.
    pub(super) fn left_contexts(&self) -> impl Iterator<Item = &Arc<SharedContext>> {
        self.left.iter().map(|left| &left.context)
    }

    /// Forgets a plan. If the plan was switched away from without fences, notes that its contexts may have
    /// unfinished work, and returns the plan. The caller must drop the plan without holding a lock.
    pub(super) fn retire(&mut self, plan: &Arc<Plan>) -> Option<Arc<Plan>> {
        let index = self.unfenced.iter().position(|other| Arc::ptr_eq(other, plan))?;
        for partition in &plan.partitions {
            let (context, units) = (Arc::clone(partition.shared()), partition.shared().units());
            let names = vec![Arc::clone(partition.arc_name())];
            self.leave(Left { context, units: units.clone(), names, is_recorded: false });
        }
        Some(self.unfenced.swap_remove(index))
    }

    /// Adds a context that may have unfinished work.
    fn leave(&mut self, more: Left) {
        match self.left.iter_mut().find(|known| Arc::ptr_eq(&known.context, &more.context)) {
            Some(known) => known.join(more),
            None => self.left.push(more),
        }
    }

    /// Records contexts that are not recorded yet, and removes those whose work is done. If a context cannot
    /// be recorded, the context stays in the list, and the next switch tries again.
    pub(super) fn settle(&mut self) -> (Vec<Left>, Result<()>) {
        let mut failed = Ok(());
        for left in self.left.iter_mut().filter(|left| !left.is_recorded) {
            let recorded = left.record();
            left.is_recorded = matches!(recorded, Ok(true));
            failed = failed.and(recorded.map(drop));
        }
        let is_over = |left: &mut Left| left.is_recorded && is_done(&left.context).unwrap_or(false);
        (self.left.extract_if(.., is_over).collect(), failed)
    }
}

impl Left {
    /// Records the context's work, unless one of its streams is being captured. Returns whether the work was
    /// recorded.
    fn record(&self) -> Result<bool> {
        let is_capturing = self.context.has_captures()?;
        if !is_capturing {
            self.context.record()?;
        }
        Ok(!is_capturing)
    }

    /// Adds more work of the same context.
    fn join(&mut self, more: Left) {
        let Left { units, names, is_recorded, .. } = more;
        if self.units.is_empty() {
            self.units = units;
        } else {
            self.units.add(&units);
        }
        self.names.extend(
            names.into_iter().filter(|name| !self.names.contains(name)).collect::<Vec<_>>(),
        );
        self.is_recorded &= is_recorded;
    }
}

/// Returns whether the work that was recorded last in a context is done. The query does not invalidate
/// captures on other threads.
pub(super) fn is_done(context: &SharedContext) -> Result<bool> {
    context.context().device().driver().while_relaxed(|| context.is_done())
}

/// Fails if a stream of the context is being captured, because recording would invalidate the capture.
fn refuse_capture(context: &Arc<SharedContext>, plan: &Plan) -> Result<(), PlanError> {
    if !context.has_captures()? {
        return Ok(());
    }
    let named = plan.partitions.iter().find(|partition| Arc::ptr_eq(partition.shared(), context));
    Err(PlanError::Capturing { partition: named.map(|partition| partition.name().to_owned()) })
}

/// Fails if a stream of the partition is being captured. Recording the partition or making it wait would
/// invalidate the capture.
pub(super) fn refuse_captures_of(partition: &Partition) -> Result<(), PlanError> {
    if partition.shared().has_captures()? {
        return Err(PlanError::Capturing { partition: Some(partition.name().to_owned()) });
    }
    Ok(())
}

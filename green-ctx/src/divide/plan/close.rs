//! Closing a set of plans.

use std::sync::Arc;

use super::prepared::Plan;
use super::set::{Inner, PlanSet};
use super::switch::Former;
use crate::divide::partition::SharedContext;
use crate::handle::context::CloseReason;
use crate::handle::error::{Error, ErrorKind, Refused};
use crate::handle::group::{Parent, SmGroup};

/// The reason why a set of plans was not closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseSetReason {
    /// Another handle of the set, of one of its plans or of a partition exists. The text names the object.
    #[error("{0}")]
    InUse(String),
    /// A partition of one of the plans cannot be closed.
    #[error("partition {partition} cannot be closed")]
    Partition {
        /// The name of the partition.
        partition: String,
        /// The reason why it cannot be closed.
        #[source]
        reason: CloseReason,
    },
    /// The driver refused to record work of an earlier plan, so it is unknown when that work is done. The
    /// next call of [`PlanSet::close`] tries again to record the work.
    #[error("work of an earlier plan could not be recorded; try again")]
    Unrecorded,
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx_sys::debug_as_text!(CloseSetReason);

impl CloseSetReason {
    /// Returns the kind of the error, like [`Error::kind`]: [`ErrorKind::Unavailable`] if something of the set is in use.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            CloseSetReason::Driver(error) => error.kind(),
            CloseSetReason::Partition { reason, .. } => reason.kind(),
            CloseSetReason::InUse(_) | CloseSetReason::Unrecorded => ErrorKind::Unavailable,
        }
    }
}

impl From<CloseSetReason> for Error {
    /// Keeps the kind and the message. If the driver failed, both are the driver's.
    fn from(reason: CloseSetReason) -> Error {
        match reason {
            CloseSetReason::Driver(error)
            | CloseSetReason::Partition { reason: CloseReason::Driver(error), .. } => error,
            reason => Error::refusal(reason.kind(), &reason),
        }
    }
}

impl PlanSet {
    /// Waits for all work of the set's plans and returns its SMs as a group, which can be divided again or
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which returns the set, in these cases:
    ///
    /// - Another handle of the set, of one of its plans or of a partition exists. Streams, graphs, a
    ///   [`GraphCache`](crate::graph::GraphCache) and the result of [`active`](PlanSet::active) count as
    ///   handles.
    /// - The stream of a partition is being captured, or the context of a partition is current on this
    ///   thread.
    /// - Work of an earlier plan could not be recorded.
    /// - The driver fails.
    ///
    /// # Panics
    ///
    /// If a hook of [`Driver::on_reclaim`](crate::Driver::on_reclaim) panics, this call panics too and drops
    /// the set.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, PlanRequest, PlanSet, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let day = PlanRequest::new("day", SplitRequest::new().group("decode", 16).rest("prefill"));
    /// let plans = PlanSet::new(device.rest("elastic")?, day)?;
    /// // The plans do their work, until the SMs are needed for something else.
    /// let group = plans.close()?;
    /// assert_eq!((group.name(), group.sm_count()), ("elastic", 132));
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self) -> Result<SmGroup, Refused<PlanSet, CloseSetReason>> {
        match self.prepare_close() {
            Ok(contexts) => Ok(self.finish_close(contexts)),
            Err(reason) => Err(Refused { given: self, reason }),
        }
    }

    /// Waits for the work of every context, and returns all contexts. A failure changes nothing.
    fn prepare_close(&self) -> Result<Vec<Arc<SharedContext>>, CloseSetReason> {
        let driver = self.device().driver();
        driver.check_process()?;
        driver.reclaim();
        if Arc::strong_count(&self.inner) > 1 {
            return Err(CloseSetReason::InUse("another handle of the set is alive".to_owned()));
        }
        let inner = &*self.inner;
        let (former, plans) = (inner.switching.lock(), inner.plans.lock());
        inner.check_plans(&former, &plans)?;
        let contexts = contexts(&former, &plans);
        check_contexts(&contexts, &former, &plans)?;
        // Expected handles: one of the set, one per plan, and one per context, whose group is a part of the
        // base.
        let known = 1 + all_plans(&former, &plans).len() + contexts.len();
        if Arc::strong_count(&inner.base) > known {
            let reason = "a graph, a cache or another object uses a context of an earlier plan";
            return Err(CloseSetReason::InUse(reason.to_owned()));
        }
        if !inner.base.retry_quarantine().is_empty() {
            return Err(CloseSetReason::Unrecorded);
        }
        let all: Vec<&SharedContext> = contexts.iter().map(|context| &**context).collect();
        SharedContext::prepare_close(&all).map_err(|(index, reason)| {
            let partition = contexts[index].context().label().to_owned();
            CloseSetReason::Partition { partition, reason }
        })?;
        Ok(contexts)
    }

    fn finish_close(self, contexts: Vec<Arc<SharedContext>>) -> SmGroup {
        let nobody_else = "this is the only handle of the set";
        let inner = Arc::into_inner(self.inner);
        let Inner { base, active, plans, switching, .. } =
            inner.unwrap_or_else(|| unreachable!("{nobody_else}"));
        // The handles in `contexts` are now the last ones.
        drop((active, plans, switching));
        for context in contexts {
            let group = Arc::into_inner(context).and_then(SharedContext::finish_close);
            drop(group);
        }
        Parent::into_group(base).unwrap_or_else(|| unreachable!("{nobody_else}"))
    }
}

impl Inner {
    /// Fails if a plan, or a partition of one, has a handle outside the set.
    fn check_plans(&self, former: &Former, plans: &[Arc<Plan>]) -> Result<(), CloseSetReason> {
        // A reader can hold the active plan without being counted. A store makes all such readers count.
        let active = self.active.load_full();
        self.active.store(Arc::clone(&active));
        for plan in all_plans(former, plans) {
            let is_same = |other: &&Arc<Plan>| Arc::ptr_eq(other, plan);
            let listed = plans.iter().chain(former.unfenced()).filter(is_same).count();
            // The set holds the active plan in `self.active`, and this function in `active`.
            let own = listed + if Arc::ptr_eq(&active, plan) { 2 } else { 0 };
            if Arc::strong_count(plan) > own {
                let reason = format!("a handle of plan {} is alive", plan.name());
                return Err(CloseSetReason::InUse(reason));
            }
            if let Some(other) = plan.partitions().iter().find(|partition| !partition.is_alone()) {
                let (name, plan) = (other.name(), plan.name());
                let reason = format!("a handle of partition {name} of plan {plan} is alive");
                return Err(CloseSetReason::InUse(reason));
            }
        }
        Ok(())
    }
}

/// Fails if a partition outside the current plans uses one of their contexts, as a partition of a retired plan may.
fn check_contexts(
    contexts: &[Arc<SharedContext>],
    former: &Former,
    plans: &[Arc<Plan>],
) -> Result<(), CloseSetReason> {
    for context in contexts {
        let is_same = |other: &&Arc<SharedContext>| Arc::ptr_eq(other, context);
        // One handle is in `contexts` itself.
        let own = 1 + handles(former, plans).filter(is_same).count();
        if Arc::strong_count(context) > own {
            let name = context.context().label();
            let reason = format!("a partition of a retired plan uses the context of {name}");
            return Err(CloseSetReason::InUse(reason));
        }
    }
    Ok(())
}

/// Returns the plans of a set without duplicates: the prepared plans, and plans that were switched away from
/// without fences.
fn all_plans<'a>(former: &'a Former, plans: &'a [Arc<Plan>]) -> Vec<&'a Arc<Plan>> {
    let mut all: Vec<&Arc<Plan>> = Vec::new();
    for plan in plans.iter().chain(former.unfenced()) {
        if !all.iter().any(|known| Arc::ptr_eq(known, plan)) {
            all.push(plan);
        }
    }
    all
}

/// Returns the handles of contexts that a set holds: those of its plans' partitions, and those of contexts that may
/// have work of earlier plans.
fn handles<'a>(
    former: &'a Former,
    plans: &'a [Arc<Plan>],
) -> impl Iterator<Item = &'a Arc<SharedContext>> {
    let of_plans = all_plans(former, plans).into_iter().flat_map(|plan| plan.partitions());
    of_plans.map(|partition| partition.shared()).chain(former.left_contexts())
}

/// Returns the contexts of a set without duplicates.
fn contexts(former: &Former, plans: &[Arc<Plan>]) -> Vec<Arc<SharedContext>> {
    let mut all: Vec<Arc<SharedContext>> = Vec::new();
    for context in handles(former, plans) {
        if !all.iter().any(|known| Arc::ptr_eq(known, context)) {
            all.push(Arc::clone(context));
        }
    }
    all
}

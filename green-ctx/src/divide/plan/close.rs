//! Closing a set of plans.

use std::sync::Arc;

use super::prepared::Plan;
use super::set::{Inner, PlanSet};
use super::switch::Former;
use crate::divide::partition::SharedContext;
use crate::handle::context::CloseReason;
use crate::handle::error::{Error, Refused};
use crate::handle::group::{Parent, SmGroup};

/// Why a set of plans was not closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseSetReason {
    /// Something else keeps the set, one of its plans, or a partition; the text says which.
    #[error("{0}")]
    InUse(String),
    /// A partition of one of the plans cannot be closed.
    #[error("partition {partition} cannot be closed")]
    Partition {
        /// The partition.
        partition: String,
        /// Why it cannot.
        #[source]
        reason: CloseReason,
    },
    /// The driver refused to record work of a former plan, so that it is not known when that is done. The next
    /// call tries again.
    #[error("work of a former plan could not be recorded; try again")]
    Unrecorded,
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] Error),
}

green_ctx_sys::debug_as_text!(CloseSetReason);

impl PlanSet {
    /// Waits for all work of the set's plans and gives its SMs back as a group, to be divided again or dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::error::Refused), which gives the set back: while something else has a handle of it, of one of its
    /// plans or of a partition (a stream, a graph, a [`GraphCache`](crate::graph::GraphCache), the result of
    /// [`active`](PlanSet::active)), while a partition's stream is being captured or its context is current on
    /// this thread, while work of a former plan could not be recorded, and when the driver fails.
    ///
    /// # Panics
    ///
    /// Where a function of [`Driver::on_reclaim`](crate::Driver::on_reclaim) panics. The set is dropped then.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, PlanRequest, PlanSet, SplitRequest, sim::Sim};
    /// # let driver = Driver::simulated(&Sim::new("h200")?)?;
    /// # let device = driver.device(0)?;
    /// let day = PlanRequest::new("day", SplitRequest::new().group("decode", 16).rest("prefill"));
    /// let plans = PlanSet::new(device.rest("elastic")?, day)?;
    /// // Work goes on, and then the SMs are wanted for something else.
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

    /// Waits for the work of every context, and returns all of them. Where that fails, all is as before.
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
        // The set has the group, and so do its plans and the parts that their contexts are of.
        let known = 1 + all_plans(&former, &plans).len() + contexts.len();
        if Arc::strong_count(&inner.base) > known {
            let reason = "something has a context of a former plan, as a graph or a cache may";
            return Err(CloseSetReason::InUse(reason.to_owned()));
        }
        if !inner.base.retry_quarantine().is_empty() {
            return Err(CloseSetReason::Unrecorded);
        }
        for (index, context) in contexts.iter().enumerate() {
            if let Err(reason) = context.prepare_close() {
                contexts[..index].iter().for_each(|context| context.cancel_close());
                let partition = context.context().label().to_owned();
                return Err(CloseSetReason::Partition { partition, reason });
            }
        }
        Ok(contexts)
    }

    fn finish_close(self, contexts: Vec<Arc<SharedContext>>) -> SmGroup {
        let nobody_else = "nobody else has a handle of the set";
        let inner = Arc::into_inner(self.inner);
        let Inner { base, active, plans, switching, .. } =
            inner.unwrap_or_else(|| unreachable!("{nobody_else}"));
        // The last handles of the contexts are then the ones here.
        drop((active, plans, switching));
        for context in contexts {
            let group = Arc::into_inner(context).and_then(SharedContext::finish_close);
            drop(group);
        }
        Parent::into_group(base).unwrap_or_else(|| unreachable!("{nobody_else}"))
    }
}

impl Inner {
    /// Refuses where somebody else has a plan, or a partition of one.
    fn check_plans(&self, former: &Former, plans: &[Arc<Plan>]) -> Result<(), CloseSetReason> {
        // A reader of the active plan may be counted by its reading alone; a store counts such handles.
        let active = self.active.load_full();
        self.active.store(Arc::clone(&active));
        for plan in all_plans(former, plans) {
            let is_same = |other: &&Arc<Plan>| Arc::ptr_eq(other, plan);
            let listed = plans.iter().chain(former.unfenced()).filter(is_same).count();
            // The active one is in its place, and here.
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

/// Every plan of a set, each once: those that are prepared, and retired ones that are still needed.
fn all_plans<'a>(former: &'a Former, plans: &'a [Arc<Plan>]) -> Vec<&'a Arc<Plan>> {
    let mut all: Vec<&Arc<Plan>> = Vec::new();
    for plan in plans.iter().chain(former.unfenced()) {
        if !all.iter().any(|known| Arc::ptr_eq(known, plan)) {
            all.push(plan);
        }
    }
    all
}

/// The contexts of every plan, and those that former plans left, each once.
fn contexts(former: &Former, plans: &[Arc<Plan>]) -> Vec<Arc<SharedContext>> {
    let mut all: Vec<Arc<SharedContext>> = Vec::new();
    let of_plans = all_plans(former, plans).into_iter().flat_map(|plan| plan.partitions());
    let of_plans = of_plans.map(|partition| partition.shared());
    for context in of_plans.chain(former.left_contexts()) {
        if !all.iter().any(|known| Arc::ptr_eq(known, context)) {
            all.push(Arc::clone(context));
        }
    }
    all
}

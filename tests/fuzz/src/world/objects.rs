//! What a world keeps, each with the number in its name and what it keeps open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use green_ctx::{Context, Graph, GraphExec, Kernel, PartitionSet, PreparedPlan, SmGroup, Stream};

use super::{Lane, Place, World};
use crate::account::{Held, Partition};

pub(super) struct GroupEntry {
    pub(super) name: u32,
    pub(super) group: SmGroup,
    pub(super) held: Arc<Held>,
    pub(super) overlapping: bool,
    /// Whether only the driver can split it.
    pub(super) structured: bool,
    /// The set whose plans share these SMs, where they are those of a closed partition of a plan.
    pub(super) set: Option<u32>,
}

pub(super) struct ContextEntry {
    pub(super) name: u32,
    pub(super) context: Context,
    pub(super) partition: Arc<Partition>,
    pub(super) structured: bool,
}

pub(super) struct StreamEntry {
    pub(super) name: u32,
    pub(super) stream: Stream,
    /// `None` in the primary context.
    pub(super) partition: Option<Arc<Partition>>,
}

pub(super) struct PlanEntry {
    pub(super) name: u32,
    pub(super) plan: Arc<PreparedPlan>,
    pub(super) lanes: Vec<Arc<Partition>>,
}

pub(super) struct SetEntry {
    pub(super) name: u32,
    pub(super) set: PartitionSet,
    pub(super) base: Arc<Held>,
    pub(super) overlapping: bool,
    pub(super) plans: Vec<PlanEntry>,
    /// The name of the active plan.
    pub(super) active: u32,
}

impl SetEntry {
    pub(super) fn active(&self) -> Option<&PlanEntry> {
        self.plans.iter().find(|plan| plan.name == self.active)
    }
}

pub(super) struct GraphEntry {
    pub(super) name: u32,
    pub(super) graph: Graph,
    pub(super) keeps: Vec<Arc<Partition>>,
}

pub(super) struct ExecEntry {
    pub(super) name: u32,
    pub(super) exec: GraphExec,
    /// Keeps partitions open as long as the executable does.
    pub(super) _keeps: Vec<Arc<Partition>>,
}

/// The element that a number chooses.
pub(super) fn index(number: u32, len: usize) -> Option<usize> {
    (len > 0).then(|| number as usize % len)
}

impl World {
    /// A partition: of its own, or of a plan.
    pub(super) fn place(&self, number: u32) -> Option<Place> {
        let lanes: usize = self.sets.iter().flat_map(|set| &set.plans).map(|p| p.lanes.len()).sum();
        let mut at = index(number, self.contexts.len() + lanes)?;
        if let Some(entry) = self.contexts.get(at) {
            let name = format!("context{}", entry.name);
            return Some((entry.context.clone(), Arc::clone(&entry.partition), name));
        }
        at -= self.contexts.len();
        for plan in self.sets.iter().flat_map(|set| &set.plans) {
            if let (Some(part), Some(lane)) = (plan.plan.partitions().get(at), plan.lanes.get(at)) {
                let name = format!("plan{}.partitions()[{at}].context()", plan.name);
                return Some((part.context().clone(), Arc::clone(lane), name));
            }
            at -= plan.lanes.len();
        }
        None
    }

    /// A stream: one that was made or adopted, or the first of a partition of an active plan.
    pub(super) fn lane(&self, number: u32) -> Option<Lane> {
        let active = || self.sets.iter().filter_map(SetEntry::active);
        let lanes: usize = active().map(|plan| plan.lanes.len()).sum();
        let mut at = index(number, self.streams.len() + lanes)?;
        if let Some(entry) = self.streams.get(at) {
            let name = format!("stream{}", entry.name);
            return Some((entry.stream.clone(), entry.partition.clone(), name));
        }
        at -= self.streams.len();
        for plan in active() {
            if let (Some(part), Some(lane)) = (plan.plan.partitions().get(at), plan.lanes.get(at)) {
                let name = format!("plan{}.partitions()[{at}].stream()", plan.name);
                return Some((part.stream().clone(), Some(Arc::clone(lane)), name));
            }
            at -= plan.lanes.len();
        }
        None
    }

    /// Notes a partition of a context that was made just now.
    pub(super) fn open(
        &mut self,
        context: &Context,
        held: Arc<Held>,
        overlapping: bool,
        set: Option<u32>,
    ) -> green_ctx::Result<Arc<Partition>> {
        let context_id = context.id()?;
        let number = self.name();
        let partition = Arc::new(Partition { number, context_id, overlapping, set, held });
        self.model.open(&partition);
        Ok(partition)
    }

    /// The kernel for work in these partitions: where only names tell what was launched by whom,
    /// exempt work has another.
    pub(super) fn kernel_for<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a Arc<Partition>>,
    ) -> &Kernel {
        let exempt =
            |partition: &Arc<Partition>| partition.overlapping || !self.model.is_active(partition);
        if !self.alone && partitions.into_iter().any(exempt) {
            return &self.machine.exempt;
        }
        &self.machine.kernel
    }

    /// How many SMs nobody holds.
    pub(super) fn free(&self) -> u32 {
        if !self.alone {
            return self.sms.free();
        }
        self.total - self.held.load(Ordering::Relaxed).min(self.total)
    }
}

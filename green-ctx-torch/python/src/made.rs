//! A list of the open partitions, GreenContexts and plan sets that this module created, so that functions can find
//! them without an argument.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use green_ctx::{Device, Share, context::Context, resource::SmGroup};
use parking_lot::Mutex;

/// A context, with the name and the share that a report shows. A thread must drop a subject without the GIL.
pub(crate) struct Subject {
    pub(crate) context: Context,
    pub(crate) name: String,
    pub(crate) share: Option<Share>,
    /// The partition, if it belongs to a plan. Plans that share a context can give this context different floors.
    pub(crate) planned: Option<green_ctx::Partition>,
}

/// A partition or a GreenContext.
pub(crate) trait Opened: Send + Sync {
    fn subject(&self) -> Subject;

    /// Returns whether this is a partition and not a GreenContext.
    fn is_partition(&self) -> bool;
}

/// All partitions, GreenContexts and plan sets that were created and may still be open. This mutex is locked only
/// without the GIL.
static MADE: Mutex<Vec<Made>> = Mutex::new(Vec::new());

enum Made {
    One(Weak<dyn Opened>),
    Set(Weak<green_ctx::PlanSet>),
}

impl Made {
    fn is_gone(&self) -> bool {
        match self {
            Made::One(opened) => opened.strong_count() == 0,
            Made::Set(set) => set.strong_count() == 0,
        }
    }
}

fn add(made: Made) {
    let mut all = MADE.lock();
    if all.len() == all.capacity() {
        // Dropped entries are removed only when the list would have to grow.
        all.retain(|known| !known.is_gone());
    }
    all.push(made);
}

/// Adds a partition or a GreenContext to the list of open objects.
pub(crate) fn note<T: Opened + 'static>(opened: &Arc<T>) {
    let weak: Weak<T> = Arc::downgrade(opened);
    add(Made::One(weak));
}

/// Adds a plan set to the list of open objects.
pub(crate) fn note_set(set: &Arc<green_ctx::PlanSet>) {
    add(Made::Set(Arc::downgrade(set)));
}

/// The objects that are still open.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) opened: Vec<Arc<dyn Opened>>,
    pub(crate) sets: Vec<Arc<green_ctx::PlanSet>>,
}

pub(crate) fn known() -> Known {
    let mut known = Known::default();
    // The upgraded handles must be dropped after the lock is released, since each may have become the last one.
    for made in MADE.lock().iter() {
        match made {
            Made::One(opened) => known.opened.extend(opened.upgrade()),
            Made::Set(set) => known.sets.extend(set.upgrade()),
        }
    }
    known
}

/// Returns the floor of the partition with this context, in SMs. Plans that share a context can give this context
/// different floors. In this case the result is the floor in the active plan. If the active plan has no such
/// partition, the floor is 0.
pub(crate) fn floor_of(context: &Context) -> u32 {
    let floor = |plan: &green_ctx::Plan| {
        let part = plan.partitions().iter().find(|part| part.context() == context);
        part.map(green_ctx::Partition::floor)
    };
    for set in known().sets {
        if let Some(floor) = floor(&set.active()) {
            return floor;
        }
        if set.plans().iter().any(|plan| floor(plan).is_some()) {
            return 0;
        }
    }
    context.group().map_or(0, SmGroup::floor)
}

/// Returns the names of a device's open partitions, including those of inactive plans.
pub(crate) fn names_on(device: &Device) -> BTreeSet<String> {
    let Known { opened, sets } = known();
    let plans: Vec<_> = sets.iter().flat_map(|set| set.plans()).collect();
    let planned = plans.iter().flat_map(|plan| plan.partitions());
    let planned = planned.map(|part| (part.context().clone(), part.name().to_owned()));
    let partitions = opened.iter().filter(|opened| opened.is_partition());
    let open = partitions.map(|opened| opened.subject()).map(|part| (part.context, part.name));
    let here = open.chain(planned).filter(|(context, _)| context.device() == device);
    here.map(|(_, name)| name).collect()
}

//! The contexts of a set's plans. Partitions of different plans on the same SMs share one context.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::prepared::Plan;
use crate::divide::partition::SharedContext;
use crate::handle::context::{Context, WeakContext};
use crate::handle::error::Result;
use crate::handle::group::{Parent, SmGroup};
use crate::ledger::Placement;

/// The contexts of the set's current plans, and contexts of retired plans that another object still uses. For
/// example, a graph cache uses the contexts of its graphs.
#[derive(Default)]
pub(super) struct Contexts {
    known: Mutex<Vec<Known>>,
    /// Set once a plan uses another name for a context than the plan that created it. Until then, a switch changes no
    /// names.
    are_renamed: AtomicBool,
}

#[derive(Clone)]
struct Known {
    placement: Placement,
    /// The context and the first stream that the plans' partitions on these SMs share.
    shared: Weak<SharedContext>,
    context: WeakContext,
}

impl Contexts {
    /// Returns the contexts that plans use.
    pub(super) fn living(&self) -> Vec<Arc<SharedContext>> {
        // An upgraded handle may turn out to be the last one, so the caller drops them without the lock.
        self.known.lock().iter().filter_map(|known| known.shared.upgrade()).collect()
    }

    /// Notes a name that a plan uses for a context.
    pub(super) fn note_name(&self, context: &SharedContext, name: &str) {
        if context.context().label() != name {
            self.are_renamed.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the contexts of the active plan the names that the plan uses.
    #[inline]
    pub(super) fn set_names(&self, plan: &Plan) {
        if self.are_renamed.load(Ordering::Relaxed) {
            for partition in plan.partitions() {
                partition.context().set_partition_name(partition.arc_name());
            }
        }
    }

    /// Returns the context on a group's SMs: one that another plan created, or a new one.
    pub(super) fn get_or_create(
        &self,
        base: &Parent,
        group: SmGroup,
        is_used: impl Fn(&Arc<SharedContext>) -> bool,
    ) -> Result<Arc<SharedContext>> {
        let (placement, priority) = (group.placement().clone(), group.priority());
        let find = |living: &[Arc<SharedContext>]| {
            let fits = |context: &&Arc<SharedContext>| {
                context.is_for(&placement, priority) && !is_used(context)
            };
            living.iter().find(fits).cloned()
        };
        if let Some(context) = find(&self.living()) {
            return Ok(context);
        }
        let fresh = Arc::new(match self.left_over(&placement) {
            Some(context) => {
                SharedContext::of(context, priority).map_err(|(_context, error)| error)?
            }
            None => SharedContext::create_time_shared(group)?,
        });
        // The last context on the same SMs may have been dropped since they were chosen.
        fresh.wait_for_former(&base.fences())?;
        let mut known = self.known.lock();
        let living: Vec<_> = known.iter().filter_map(|known| known.shared.upgrade()).collect();
        let context = find(&living).unwrap_or_else(|| {
            // A context that comes back has only one entry, the newest.
            let is_gone = |known: &Known| known.context.is_gone();
            known.retain(|known| !is_gone(known) && !known.context.is(fresh.context()));
            let (shared, context) = (Arc::downgrade(&fresh), fresh.context().weak());
            known.push(Known { placement: placement.clone(), shared, context });
            Arc::clone(&fresh)
        });
        drop(known);
        Ok(context)
    }

    /// Returns a context on these SMs that no plan uses any longer but that another object still uses.
    fn left_over(&self, placement: &Placement) -> Option<Context> {
        let known = self.known.lock().clone();
        let of_plans: Vec<_> = known.iter().filter_map(|known| known.shared.upgrade()).collect();
        let of_no_plan =
            |context: &Context| of_plans.iter().all(|shared| shared.context() != context);
        let mut same = known.iter().filter(|known| known.placement == *placement);
        same.find_map(|known| known.context.upgrade().filter(of_no_plan))
    }
}

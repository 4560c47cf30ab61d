//! The contexts of a set's plans: partitions of the same SMs have the same one, whichever plans they are of.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::divide::partition::SharedContext;
use crate::handle::context::{self, Context};
use crate::handle::error::Result;
use crate::handle::group::{Parent, SmGroup};
use crate::ledger::Placement;

/// The contexts of plans that are prepared or in use, and of retired ones for as long as somebody has them: a
/// graph cache keeps the contexts that its graphs run in.
#[derive(Default)]
pub(super) struct Contexts {
    known: Mutex<Vec<Known>>,
}

#[derive(Clone)]
struct Known {
    placement: Placement,
    /// With the stream that plans' partitions of these SMs come with.
    shared: Weak<SharedContext>,
    context: Weak<context::Inner>,
}

impl Contexts {
    /// Those that plans have.
    pub(super) fn living(&self) -> Vec<Arc<SharedContext>> {
        // Handles that turn out to be the last ones end outside of the lock.
        self.known.lock().iter().filter_map(|known| known.shared.upgrade()).collect()
    }

    /// The context of a group's SMs: made for another plan, or now.
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
            Some(context) => SharedContext::again(context, priority)?,
            None => SharedContext::create_time_shared(group)?,
        });
        // The last context of the same SMs may have gone since they were chosen.
        fresh.wait_for_former(&base.fences())?;
        let mut known = self.known.lock();
        let living: Vec<_> = known.iter().filter_map(|known| known.shared.upgrade()).collect();
        let context = find(&living).unwrap_or_else(|| {
            // A context that comes back has one entry, its last.
            let is_gone = |known: &Known| known.context.strong_count() == 0;
            known.retain(|known| !is_gone(known) && !fresh.context().is(&known.context));
            let (shared, context) = (Arc::downgrade(&fresh), fresh.context().downgrade());
            known.push(Known { placement: placement.clone(), shared, context });
            Arc::clone(&fresh)
        });
        drop(known);
        Ok(context)
    }

    /// A context of these SMs that no plan has any more, and somebody else still has.
    fn left_over(&self, placement: &Placement) -> Option<Context> {
        let known = self.known.lock().clone();
        let of_plans: Vec<_> = known.iter().filter_map(|known| known.shared.upgrade()).collect();
        let of_no_plan =
            |context: &Context| of_plans.iter().all(|shared| shared.context() != context);
        let mut same = known.iter().filter(|known| known.placement == *placement);
        same.find_map(|known| known.context.upgrade().map(Context::from_inner).filter(of_no_plan))
    }
}

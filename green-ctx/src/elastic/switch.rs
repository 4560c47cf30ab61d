//! What a switch between plans has to fence.

use std::mem;
use std::sync::Arc;

use super::failure::PlanError;
use super::plan::Plan;
use super::shared::SharedContext;
use crate::device::Device;
use crate::error::Result;

/// The contexts of former plans whose work may not be done, on SMs that no later plan has used. Where
/// one has, its contexts wait for that work, and their own fences stand for it.
#[derive(Default)]
pub(super) struct Former {
    /// Those whose work was recorded when their plan ceased to be the active one.
    recorded: Vec<Arc<SharedContext>>,
    /// The plans that were left without fences since the last switch with fences, each once.
    unfenced: Vec<Arc<Plan>>,
}

/// What a switch has no use for any more, to be dropped outside of locks.
pub(super) type Ended = (Vec<Arc<SharedContext>>, Vec<Arc<Plan>>);

impl Former {
    /// Fences a switch: the next plan's partitions wait for all work of contexts that are not the
    /// plan's and that have SMs of theirs, unless they do already.
    pub(super) fn fence(&mut self, from: &Plan, to: &Plan) -> Result<Ended, PlanError> {
        let device = to.device();
        let is_next = |context: &Arc<SharedContext>| has(&to.contexts, context);
        // Who gives up SMs now, or did so in a switch without fences, is recorded.
        let mut going: Vec<&Arc<SharedContext>> = Vec::with_capacity(from.contexts.len());
        let unfenced = self.unfenced.iter().flat_map(|plan| &plan.contexts);
        for context in from.contexts.iter().chain(unfenced) {
            if !is_next(context) && !going.iter().any(|other| Arc::ptr_eq(other, context)) {
                going.push(context);
            }
        }
        let mut carried: Vec<&Arc<SharedContext>> = Vec::new();
        for context in self.recorded.iter().filter(|context| !is_next(context)) {
            let is_going = going.iter().any(|other| Arc::ptr_eq(other, context));
            if !is_going && !is_done(device, context)? {
                carried.push(context);
            }
        }
        // All are asked before anything is recorded, so that a refused switch has done nothing.
        for context in &going {
            refuse_capture(context, from)?;
        }
        for new in &to.partitions {
            let context = new.shared();
            let gets_sms = going.iter().any(|old| context.overlaps(old));
            let waits =
                |old: &&Arc<SharedContext>| context.overlaps(old) && !context.waits_for(old);
            if gets_sms || carried.iter().any(waits) {
                new.refuse_capture()?;
            }
        }
        going.iter().try_for_each(|context| context.record())?;
        for new in &to.contexts {
            let mut old = going.iter().chain(&carried).filter(|old| new.overlaps(old));
            old.try_for_each(|old| new.wait_for(old))?;
        }
        let kept = going.into_iter().chain(carried).filter(|old| !old.is_within(&to.contexts));
        let kept = kept.map(Arc::clone).collect();
        Ok((mem::replace(&mut self.recorded, kept), mem::take(&mut self.unfenced)))
    }

    /// Notes a switch that fences nothing: the next one that does makes up for it.
    pub(super) fn note(&mut self, from: &Arc<Plan>, to: &Arc<Plan>) {
        // The caller has what is dropped here, so that nothing ends.
        self.unfenced.retain(|plan| !Arc::ptr_eq(plan, to));
        self.unfenced.push(Arc::clone(from));
    }

    /// Takes out what is done.
    pub(super) fn settle(&mut self, device: &Device) -> Vec<Arc<SharedContext>> {
        // Who cannot tell is kept, and the next switch asks again.
        let is_over = |context: &mut Arc<SharedContext>| is_done(device, context).unwrap_or(false);
        self.recorded.extract_if(.., is_over).collect()
    }
}

/// Whether what was recorded last in a context is done. The question must not invalidate another
/// thread's capture.
pub(super) fn is_done(device: &Device, context: &SharedContext) -> Result<bool> {
    device.driver().while_relaxed(|| context.is_done())
}

fn has(contexts: &[Arc<SharedContext>], context: &Arc<SharedContext>) -> bool {
    contexts.iter().any(|other| Arc::ptr_eq(other, context))
}

/// Refuses to record a context that has a capture.
fn refuse_capture(context: &Arc<SharedContext>, plan: &Plan) -> Result<(), PlanError> {
    if !context.has_captures()? {
        return Ok(());
    }
    let named = plan.partitions.iter().find(|partition| Arc::ptr_eq(partition.shared(), context));
    let partition = named.map_or("of a former plan", |partition| partition.name());
    Err(PlanError::Capturing { partition: partition.to_owned() })
}

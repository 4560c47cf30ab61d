//! The launches of a kernel that are known to fit, so that the driver need not be queried again.

use arc_swap::ArcSwap;

use crate::handle::context::{Context, WeakContext};
use crate::work::launch::LaunchConfig;

/// The maximum number of launches that a kernel remembers. When the list is full, the oldest launch is removed.
const LIMIT: usize = 16;

/// The contexts and configurations in which a kernel fits. Refusals are not remembered, since the same launch may fit
/// after an attribute of the kernel is changed.
///
/// Each kernel owns its list. Repeated launches only read the list, so threads that launch the same kernel do not
/// wait for each other.
#[derive(Default)]
pub(crate) struct KnownFits {
    fits: ArcSwap<Vec<KnownFit>>,
}

#[derive(Clone)]
struct KnownFit {
    /// This reference is weak, so that the context can be dropped. While this entry exists, the address of the
    /// context's object is not reused. The raw handle is not stored, since the driver may reuse the handle.
    context: WeakContext,
    config: LaunchConfig,
}

impl KnownFits {
    pub(super) fn contains(&self, context: &Context, config: LaunchConfig) -> bool {
        let fits = self.fits.load();
        fits.iter().any(|fit| fit.config == config && fit.context.is(context))
    }

    pub(super) fn insert(&self, context: &Context, config: LaunchConfig) {
        let new = KnownFit { context: context.weak(), config };
        self.fits.rcu(|fits| {
            let living = fits.iter().filter(|fit| !fit.context.is_gone());
            let mut fits: Vec<KnownFit> = living.cloned().collect();
            if fits.len() >= LIMIT {
                fits.remove(0);
            }
            fits.push(new.clone());
            fits
        });
    }
}

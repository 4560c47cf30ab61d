//! The launches of a kernel that are known to fit, so that the driver need not be asked again.

use std::sync::Weak;

use arc_swap::ArcSwap;

use crate::handle::context::{self, Context};
use crate::work::launch::LaunchConfig;

/// The maximum number of launches that a kernel remembers. The oldest is removed first.
const LIMIT: usize = 16;

/// The contexts and configurations in which a kernel fits. Refusals are not remembered: a changed attribute of the
/// kernel may lift them.
///
/// Each kernel owns its list. Repeated launches only read it, so threads that launch the same kernel do not wait
/// for each other.
#[derive(Default)]
pub(crate) struct KnownFits {
    fits: ArcSwap<Vec<KnownFit>>,
}

#[derive(Clone)]
struct KnownFit {
    /// Weak, so that the context can be dropped. While this entry exists, the object's address is not reused. The
    /// driver may reuse the context's handle.
    context: Weak<context::Inner>,
    config: LaunchConfig,
}

impl KnownFits {
    pub(super) fn contains(&self, context: &Context, config: LaunchConfig) -> bool {
        let fits = self.fits.load();
        fits.iter().any(|fit| fit.config == config && context.is(&fit.context))
    }

    pub(super) fn insert(&self, context: &Context, config: LaunchConfig) {
        let new = KnownFit { context: context.downgrade(), config };
        self.fits.rcu(|fits| {
            let living = fits.iter().filter(|fit| fit.context.strong_count() > 0);
            let mut fits: Vec<KnownFit> = living.cloned().collect();
            if fits.len() >= LIMIT {
                fits.remove(0);
            }
            fits.push(new.clone());
            fits
        });
    }
}

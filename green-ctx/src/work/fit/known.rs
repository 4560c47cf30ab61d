//! Launches of a kernel that were found to fit, so that repeating one asks the driver nothing.

use std::sync::Weak;

use arc_swap::ArcSwap;

use crate::handle::context::{self, Context};
use crate::work::launch::LaunchConfig;

/// The most that a kernel remembers. The oldest goes first.
const LIMIT: usize = 16;

/// Where and in what shapes a kernel fits. A refusal is never remembered: what it was refused for may
/// change with an attribute of the kernel.
///
/// Kernels keep it, so that it ends with them. Repeated launches only read it, and threads that launch
/// one kernel do not wait for each other.
#[derive(Default)]
pub(crate) struct KnownFits {
    fits: ArcSwap<Vec<KnownFit>>,
}

#[derive(Clone)]
struct KnownFit {
    /// Weak, so that the context can go. While the entry is here, no other context's object gets this
    /// address; the driver gives a handle out again.
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

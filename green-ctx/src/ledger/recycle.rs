//! Recycling: idle driver contexts, kept for the next partition on the same SMs.
//!
//! Creating a context takes about 1 ms and 4 to 5 MiB of device memory, and destroying it does not return the
//! memory (measured on an H200, driver 580.159.04). When the last handle of a partition is dropped, its
//! driver context is therefore stored here. The next partition on the same SMs gets this context at the cost
//! of a look-up.

use std::fmt;

use super::units::Placement;

/// The maximum number of idle contexts that a device keeps by default.
const DEFAULT_LIMIT: usize = 64;

/// One device's idle contexts, oldest first. A context that is taken out belongs to the caller.
pub(crate) struct Recycler<C> {
    idle: Vec<Idle<C>>,
    limit: usize,
    created: u64,
    reused: u64,
}

/// An idle context, and the resources from which it was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Idle<C> {
    pub(crate) placement: Placement,
    pub(crate) workqueue: Option<WorkqueueConfig>,
    /// Whether the context must not be destroyed, because foreign code may use its streams.
    pub(crate) kept: bool,
    pub(crate) raw: C,
}

/// The configuration of a workqueue. Contexts with equal configurations are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkqueueConfig {
    pub(crate) limit: u32,
    pub(crate) scope: WorkqueueScope,
    /// The id of the context that owns the queues; `None` if the workqueue has its own queues.
    pub(crate) of: Option<u64>,
}

/// The contexts that share the queues through which a context submits its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "CUdevWorkqueueConfigScope")]
pub enum WorkqueueScope {
    /// All contexts of the device share all queues. This is the driver's default.
    #[default]
    Device,
    /// The context has its own queues if possible, not shared with other contexts of this scope.
    GreenContextBalanced,
}

impl fmt::Display for WorkqueueScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkqueueScope::Device => "device",
            WorkqueueScope::GreenContextBalanced => "green-context balanced",
        })
    }
}

/// The numbers of contexts on a device that were created, that were reused, and that are idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ContextCounts {
    /// Green contexts that the driver created. Creating a context takes about 1 ms and 4 to 5 MiB of device
    /// memory, and destroying the context does not return the memory (measured on an H200, driver
    /// 580.159.04).
    pub created: u64,
    /// Partitions that reused the context of an earlier partition.
    pub reused: u64,
    /// Idle contexts, kept for reuse.
    pub idle: usize,
}

impl<C> Default for Recycler<C> {
    fn default() -> Recycler<C> {
        Recycler { idle: Vec::new(), limit: DEFAULT_LIMIT, created: 0, reused: 0 }
    }
}

impl<C> Recycler<C> {
    /// Takes out an idle context with exactly these SMs and this workqueue, if there is one.
    pub(crate) fn take(
        &mut self,
        placement: &Placement,
        workqueue: Option<WorkqueueConfig>,
    ) -> Option<Idle<C>> {
        let fits = |idle: &Idle<C>| idle.placement == *placement && idle.workqueue == workqueue;
        let index = self.idle.iter().position(fits)?;
        self.reused += 1;
        Some(self.idle.remove(index))
    }

    /// Stores a context. Returns the oldest contexts beyond the limit, which the caller must destroy.
    #[must_use = "the caller must destroy the returned contexts"]
    pub(crate) fn put(&mut self, idle: Idle<C>) -> Vec<Idle<C>> {
        self.idle.push(idle);
        self.overflow()
    }

    /// Sets the maximum number of idle contexts. Returns the contexts beyond that number, which the caller
    /// must destroy.
    #[must_use = "the caller must destroy the returned contexts"]
    pub(crate) fn set_limit(&mut self, limit: usize) -> Vec<Idle<C>> {
        self.limit = limit;
        self.overflow()
    }

    /// Takes out all contexts that may be destroyed. The caller must destroy them.
    #[must_use = "the caller must destroy the returned contexts"]
    pub(crate) fn drain(&mut self) -> Vec<Idle<C>> {
        self.idle.extract_if(.., |idle| !idle.kept).collect()
    }

    /// Returns the idle contexts, oldest first.
    pub(super) fn idle(&self) -> &[Idle<C>] {
        &self.idle
    }

    pub(crate) fn count_created(&mut self) {
        self.created += 1;
    }

    pub(crate) fn counts(&self) -> ContextCounts {
        ContextCounts { created: self.created, reused: self.reused, idle: self.idle.len() }
    }

    fn overflow(&mut self) -> Vec<Idle<C>> {
        let mut surplus =
            self.idle.iter().filter(|idle| !idle.kept).count().saturating_sub(self.limit);
        let oldest = |idle: &mut Idle<C>| {
            let goes = !idle.kept && surplus > 0;
            surplus -= usize::from(goes);
            goes
        };
        self.idle.extract_if(.., oldest).collect()
    }
}

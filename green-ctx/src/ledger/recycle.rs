//! Recycling: driver contexts that nobody uses, kept for whoever asks for their SMs next.
//!
//! Making a context takes about 1 ms and 4 to 5 MiB of device memory, and destroying it gives no memory
//! back (measured on an H200, driver 580.159.04). So the last handle of a partition leaves the
//! driver's context here, and the next partition of the same SMs gets it for the price of a look-up.

use std::fmt;

use super::units::{Cut, Placement};

/// How many idle contexts a device keeps by default.
const DEFAULT_LIMIT: usize = 64;

/// One device's idle contexts, oldest first: whoever takes a context out owns it.
pub(crate) struct Recycler<C> {
    idle: Vec<Idle<C>>,
    limit: usize,
    created: u64,
    reused: u64,
}

/// A context that nobody uses, and what it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Idle<C> {
    pub(crate) placement: Placement,
    pub(crate) workqueue: Option<WorkqueueConfig>,
    pub(crate) sm_count: u32,
    /// Whether it is never destroyed, since foreign code may use its streams.
    pub(crate) kept: bool,
    pub(crate) raw: C,
}

/// What makes a workqueue; contexts of one configuration are as good as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkqueueConfig {
    pub(crate) limit: u32,
    pub(crate) scope: WorkqueueScope,
    /// The number of the context whose queues they are; `None` for queues of its own.
    pub(crate) of: Option<u64>,
}

/// Who shares the queues that a context's work goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "CUdevWorkqueueConfigScope")]
pub enum WorkqueueScope {
    /// All contexts of the device share all queues: what the driver does by default.
    #[default]
    Device,
    /// Queues of its own where that is possible, apart from those of other contexts of this scope.
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

/// How many contexts a device has made, and how often one was used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ContextCounts {
    /// Green contexts that the driver created. Each costs about 1 ms and 4 to 5 MiB of device
    /// memory, which no destruction gives back (measured on an H200, driver 580.159.04).
    pub created: u64,
    /// Partitions that got a context which another one had left.
    pub reused: u64,
    /// Contexts that wait to be used again.
    pub idle: usize,
}

impl<C> Default for Recycler<C> {
    fn default() -> Recycler<C> {
        Recycler { idle: Vec::new(), limit: DEFAULT_LIMIT, created: 0, reused: 0 }
    }
}

impl<C> Recycler<C> {
    /// The idle context of exactly these SMs and this workqueue, if there is one.
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

    /// Keeps a context. Returns those to destroy, the oldest, where there are more than the limit.
    #[must_use = "they are to be destroyed"]
    pub(crate) fn put(&mut self, idle: Idle<C>) -> Vec<Idle<C>> {
        self.idle.push(idle);
        self.overflow()
    }

    /// Sets how many contexts are kept. Returns those to destroy.
    #[must_use = "they are to be destroyed"]
    pub(crate) fn set_limit(&mut self, limit: usize) -> Vec<Idle<C>> {
        self.limit = limit;
        self.overflow()
    }

    /// Takes all contexts out that are not kept, to be destroyed.
    #[must_use = "they are to be destroyed"]
    pub(crate) fn drain(&mut self) -> Vec<Idle<C>> {
        self.idle.extract_if(.., |idle| !idle.kept).collect()
    }

    /// The units of the idle contexts in a cut.
    pub(super) fn placements(&self, cut: &Cut) -> impl Iterator<Item = &[usize]> {
        let of_cut = self.idle.iter().filter(move |idle| idle.placement.cut == *cut);
        of_cut.map(|idle| idle.placement.members.as_slice())
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

//! Requests for plans, and prepared plans.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::divide::partition::{Partition, Partitions};
use crate::handle::group::Parent;
use crate::ledger::SplitRequest;

/// A request for a plan: a name, and a division of the SMs of a [`PlanSet`](super::PlanSet).
///
/// # Examples
///
/// ```
/// use green_ctx::{PlanRequest, SplitRequest};
///
/// let plan = PlanRequest::new("busy", SplitRequest::new().group("decode", 48..).group("prefill", ..=84));
/// assert_eq!(plan.name(), "busy");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until a set prepares it"]
pub struct PlanRequest {
    pub(super) name: Arc<str>,
    pub(super) request: SplitRequest,
}

impl PlanRequest {
    /// Creates a request for a plan with this name and division.
    pub fn new(name: impl Into<Arc<str>>, request: impl Into<SplitRequest>) -> PlanRequest {
        PlanRequest { name: name.into(), request: request.into() }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A prepared plan, whose contexts and streams exist. Submit work to the plan's partitions while the plan is
/// active. Work that is submitted to an inactive plan competes with the active plan for SMs.
pub struct Plan {
    pub(super) name: Arc<str>,
    pub(super) partitions: Partitions,
    /// The SMs that the plan divides.
    base: Arc<Parent>,
    /// Whether the plan was removed from its set.
    retired: AtomicBool,
}

impl Plan {
    pub(super) fn new(name: Arc<str>, partitions: Partitions, base: &Arc<Parent>) -> Plan {
        let (base, retired) = (Arc::clone(base), AtomicBool::new(false));
        Plan { name, partitions, base, retired }
    }

    /// Returns whether the plan belongs to the set that has these SMs, and is not retired.
    pub(super) fn is_of(&self, base: &Arc<Parent>) -> bool {
        Arc::ptr_eq(&self.base, base) && !self.retired.load(Ordering::Relaxed)
    }

    /// Marks the plan as removed from its set. The caller must hold the lock on switches.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the partitions.
    #[must_use]
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// Returns the partition with this name.
    #[must_use]
    pub fn partition(&self, name: &str) -> Option<&Partition> {
        self.partitions.get(name)
    }
}

/// Returns the partition with this name. For the active plan, write `set.active()["decode"]`.
///
/// # Panics
///
/// Panics if the plan has no partition with this name.
impl Index<&str> for Plan {
    type Output = Partition;

    fn index(&self, name: &str) -> &Partition {
        &self.partitions[name]
    }
}

/// Returns the partition at an index, in the order of the request.
///
/// # Panics
///
/// Panics if the index is out of range.
impl Index<usize> for Plan {
    type Output = Partition;

    fn index(&self, index: usize) -> &Partition {
        &self.partitions[index]
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("name", &self.name)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

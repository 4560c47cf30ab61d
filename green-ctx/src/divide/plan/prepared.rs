//! Plans: named divisions, requested and prepared.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::divide::partition::{Partition, Partitions};
use crate::handle::device::Device;
use crate::handle::group::Parent;
use crate::ledger::SplitRequest;

/// A named division of the SMs of a [`PlanSet`](super::PlanSet).
///
/// # Example
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
    /// A plan that divides as a request says.
    pub fn new(name: impl Into<Arc<str>>, request: impl Into<SplitRequest>) -> PlanRequest {
        PlanRequest { name: name.into(), request: request.into() }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A plan whose contexts and streams are there. Work can be submitted to its partitions while it is
/// the active one; what is submitted to a plan that is not competes with the active one for SMs.
pub struct Plan {
    pub(super) name: Arc<str>,
    pub(super) partitions: Partitions,
    /// The SMs that the plan divides.
    base: Arc<Parent>,
    /// Whether its set has forgotten it.
    retired: AtomicBool,
}

impl Plan {
    pub(super) fn new(name: Arc<str>, partitions: Partitions, base: &Arc<Parent>) -> Plan {
        let (base, retired) = (Arc::clone(base), AtomicBool::new(false));
        Plan { name, partitions, base, retired }
    }

    pub(super) fn device(&self) -> &Device {
        self.base.group().device()
    }

    /// Whether it is one of the plans of the set that has these SMs.
    pub(super) fn is_of(&self, base: &Arc<Parent>) -> bool {
        Arc::ptr_eq(&self.base, base) && !self.retired.load(Ordering::Relaxed)
    }

    /// Has its set know it no more. Only while no plan is switched to.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The partitions.
    #[must_use]
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// The partition of this name.
    #[must_use]
    pub fn partition(&self, name: &str) -> Option<&Partition> {
        self.partitions.get(name)
    }
}

/// The partition of this name, of the active plan too: `set.active()["decode"]`.
///
/// # Panics
///
/// Where the plan has none of the name.
impl Index<&str> for Plan {
    type Output = Partition;

    fn index(&self, name: &str) -> &Partition {
        &self.partitions[name]
    }
}

/// The partition at a position, in the request's order.
///
/// # Panics
///
/// Where there are fewer.
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

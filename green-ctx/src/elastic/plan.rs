//! Plans: named divisions, wished for and prepared.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::partition::{Lane, Partition};
use crate::error::Error;
use crate::group::Parent;
use crate::ledger::SplitRequest;

/// A named division of the SMs of a [`PartitionSet`](super::PartitionSet).
///
/// # Example
///
/// ```
/// use green_ctx::{Plan, SplitRequest};
///
/// let plan = Plan::new("busy", SplitRequest::new().group("decode", 48).rest("prefill"));
/// assert_eq!(plan.name(), "busy");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until a set prepares it"]
pub struct Plan {
    pub(super) name: Arc<str>,
    pub(super) request: SplitRequest,
}

impl Plan {
    /// A plan that divides as a request says.
    pub fn new(name: impl Into<Arc<str>>, request: impl Into<SplitRequest>) -> Plan {
        Plan { name: name.into(), request: request.into() }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A plan whose contexts and streams are there. Work can be submitted to its partitions while it is
/// the active one; what is submitted to a plan that is not competes with the active one for SMs.
pub struct PreparedPlan {
    pub(super) name: Arc<str>,
    pub(super) partitions: Vec<Arc<Partition>>,
    /// What the partitions run on, in their order.
    pub(super) lanes: Vec<Arc<Lane>>,
    /// The SMs that the plan divides.
    base: Arc<Parent>,
    /// Whether its set has forgotten it.
    retired: AtomicBool,
}

impl PreparedPlan {
    pub(super) fn new(
        name: Arc<str>,
        partitions: Vec<Arc<Partition>>,
        base: &Arc<Parent>,
    ) -> PreparedPlan {
        let lanes = partitions.iter().map(|partition| Arc::clone(partition.lane())).collect();
        let (base, retired) = (Arc::clone(base), AtomicBool::new(false));
        PreparedPlan { name, partitions, lanes, base, retired }
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

    /// The partitions, in the plan's order; the one that takes the rest is last.
    #[must_use]
    pub fn partitions(&self) -> &[Arc<Partition>] {
        &self.partitions
    }

    /// The partition of this name.
    #[must_use]
    pub fn partition(&self, name: &str) -> Option<&Arc<Partition>> {
        self.partitions.iter().find(|partition| partition.name() == name)
    }
}

impl fmt::Debug for PreparedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedPlan")
            .field("name", &self.name)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

/// Why a plan was not prepared, switched to or retired. The active plan is what it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No plan of this name is prepared.
    #[error("there is no plan {name}; there {}", prepared(known))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A plan of this name is prepared already.
    #[error("there is a plan {name} already; retire it first")]
    Exists {
        /// The name.
        name: String,
    },
    /// Two partitions of the plan have one name.
    #[error("plan {plan} has two partitions named {partition}")]
    TwoOfOneName {
        /// The plan's name.
        plan: String,
        /// The partitions' name.
        partition: String,
    },
    /// The active plan cannot be retired.
    #[error("plan {name} is the active one; switch to another first")]
    Active {
        /// The name.
        name: String,
    },
    /// The work of the active plan was not done in time.
    #[error("partition {partition} was not done with its work within {milliseconds} ms")]
    NotDrained {
        /// The partition that was still busy.
        partition: String,
        /// How long was waited, in milliseconds.
        milliseconds: u128,
    },
    /// A stream of a partition that gives up or takes over SMs, or that is to be drained, is being
    /// captured, which recording its work or making it wait would spoil.
    #[error("a stream of partition {partition} is being captured; end the capture first")]
    Capturing {
        /// The partition.
        partition: String,
    },
    /// The request cannot be met, or the driver failed.
    #[error(transparent)]
    Error(#[from] Error),
}

fn prepared(known: &[String]) -> impl fmt::Display {
    match known {
        [] => "is none".to_owned(),
        known => format!("are {}", known.join(", ")),
    }
}

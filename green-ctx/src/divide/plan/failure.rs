//! Why a plan was not prepared, switched to or retired.

use std::fmt;

use crate::handle::error::{Error, Refused};

/// Why a plan was not prepared, switched to or retired. The active plan is what it was.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No plan of this name is prepared.
    #[error("there is no plan {name}; {}", prepared(known))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The plan is another set's, or was retired, whatever plans of its name this set has now.
    #[error("this plan {name} is another set's or was retired; take one of `PlanSet::plans`")]
    NotOfThisSet {
        /// The plan's name.
        name: String,
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
    /// Whoever asked for the switch gave it up while the work of the active plan was waited for.
    #[error("the switch to plan {name} was given up while it waited; the plan is not active")]
    GivenUp {
        /// The plan that was to be active.
        name: String,
    },
    /// A stream of a partition that gives up or takes over SMs, or that is to be drained, is being
    /// captured, which recording its work or making it wait would invalidate.
    #[error("a stream of {} is being captured; end the capture first", whose(partition.as_deref()))]
    Capturing {
        /// The partition; `None` for one of a former plan.
        partition: Option<String>,
    },
    /// The request cannot be met, or the driver failed.
    #[error(transparent)]
    Error(#[from] Error),
}

green_ctx_sys::debug_as_text!(PlanError);

/// Gives up what was given, and keeps the reason.
impl<T> From<Refused<T, PlanError>> for PlanError {
    fn from(refused: Refused<T, PlanError>) -> PlanError {
        refused.reason
    }
}

fn whose(partition: Option<&str>) -> String {
    partition.map_or_else(|| "a former plan".to_owned(), |name| format!("partition {name}"))
}

fn prepared(known: &[String]) -> impl fmt::Display {
    match known {
        [] => "there is none".to_owned(),
        [one] => format!("the only plan is {one}"),
        known => format!("the plans are {}", known.join(", ")),
    }
}

//! The reasons why a plan was not prepared, switched to or retired.

use std::fmt;

use crate::handle::error::{Error, ErrorKind, Refused};

/// The reason why a plan was not prepared, switched to or retired. The active plan is unchanged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No plan with this name is prepared.
    #[error("there is no plan {name}; {}", prepared(known))]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of the prepared plans.
        known: Vec<String>,
    },
    /// The plan belongs to another set or was retired. This error occurs even if the set has another plan
    /// with the same name.
    #[error("plan {name} belongs to another set or was retired; use one of `PlanSet::plans`")]
    NotOfThisSet {
        /// The plan's name.
        name: String,
    },
    /// A plan with this name is already prepared.
    #[error("plan {name} already exists; retire it first")]
    Exists {
        /// The name.
        name: String,
    },
    /// Two partitions of the plan have the same name.
    #[error("plan {plan} has two partitions named {partition}")]
    TwoOfOneName {
        /// The plan's name.
        plan: String,
        /// The name of the partitions.
        partition: String,
    },
    /// The active plan cannot be retired.
    #[error("plan {name} is the active one; switch to another first")]
    Active {
        /// The plan's name.
        name: String,
    },
    /// The work of the active plan did not finish within the time limit.
    #[error("work of partition {partition} did not finish within {milliseconds} ms")]
    NotDrained {
        /// A partition that was still busy.
        partition: String,
        /// The time limit, in milliseconds.
        milliseconds: u128,
    },
    /// The caller cancelled the switch while it waited for the work of the active plan.
    #[error("the switch to plan {name} was cancelled while it waited; the plan is not active")]
    GivenUp {
        /// The plan that was to become active.
        name: String,
    },
    /// A stream is being captured in a partition that gives up SMs, takes over SMs or must be drained.
    /// Recording the partition's work, or making the partition wait, would invalidate the capture.
    #[error("a stream of {} is being captured; end the capture first", whose(partition.as_deref()))]
    Capturing {
        /// The name of the partition; `None` if the partition belongs to an earlier plan.
        partition: Option<String>,
    },
    /// The request cannot be met, or the driver failed.
    #[error(transparent)]
    Error(#[from] Error),
}

green_ctx_sys::debug_as_text!(PlanError);

impl PlanError {
    /// Returns the kind of the error, like [`Error::kind`]: [`ErrorKind::Unavailable`] if the work of the active plan did
    /// not end in time, or until the switch was cancelled.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            PlanError::Error(error) => error.kind(),
            PlanError::NotDrained { .. } | PlanError::GivenUp { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::InvalidRequest,
        }
    }
}

impl From<PlanError> for Error {
    /// Keeps the message and the kind.
    fn from(error: PlanError) -> Error {
        match error {
            PlanError::Error(error) => error,
            error => Error::refusal(error.kind(), &error),
        }
    }
}

/// Takes the reason out of a [`Refused`], and drops the value that the error returned.
impl<T> From<Refused<T, PlanError>> for PlanError {
    fn from(refused: Refused<T, PlanError>) -> PlanError {
        refused.reason
    }
}

fn whose(partition: Option<&str>) -> String {
    partition.map_or_else(|| "an earlier plan".to_owned(), |name| format!("partition {name}"))
}

fn prepared(known: &[String]) -> impl fmt::Display {
    match known {
        [] => "there is none".to_owned(),
        [one] => format!("the only plan is {one}"),
        known => format!("the plans are {}", known.join(", ")),
    }
}

//! Why ranks found nothing together.

use std::error::Error as StdError;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::request::RequestError;
use super::StoreError;

/// Why ranks found nothing together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// Another rank has failed.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// Which one.
        rank: usize,
        /// Why, in its words.
        reason: String,
        /// Whether its request was wrong.
        is_request: bool,
    },
    /// Ranks do not answer.
    #[error(
        "{} not answered within {:.1} s: they have ended, or do not tune what this rank does",
        list(ranks), waited.as_secs_f64()
    )]
    Silent {
        /// Which ones.
        ranks: Vec<usize>,
        /// For how long this rank has waited.
        waited: Duration,
    },
    /// A block did not end, since another rank submits less than this one, or iterations take too long.
    #[error(
        "a block did not end within {:.1} s{}; give the group a longer timeout if its iterations take so long",
        waited.as_secs_f64(), and_list(silent)
    )]
    Stuck {
        /// For how long this rank has waited.
        waited: Duration,
        /// The ranks that did not answer afterwards.
        silent: Vec<usize>,
    },
    /// The ranks are to tune different things.
    #[error("the ranks are to tune different things: {reason}")]
    Differs {
        /// What differs, and on which ranks.
        reason: String,
    },
    /// The request cannot be met. Every rank has the same error.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The store cannot be reached.
    #[error(
        "the store of the ranks cannot be reached: the process that has it, rank 0 mostly, may have ended"
    )]
    Store(#[source] StoreError),
    /// This rank has failed.
    #[error("the jobs cannot run any more{}", and_list(silent))]
    Failed {
        /// The ranks that did not answer afterwards: their end may be the reason.
        silent: Vec<usize>,
        /// Why.
        #[source]
        cause: Box<dyn StdError + Send + Sync>,
    },
}

impl RanksError {
    pub(super) fn failed(cause: StoreError) -> RanksError {
        RanksError::Failed { silent: Vec::new(), cause }
    }
}

fn list(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match &numbers[..] {
        [one] => format!("rank {one} has"),
        numbers => format!("ranks {} have", numbers.join(", ")),
    }
}

fn and_list(ranks: &[usize]) -> String {
    if ranks.is_empty() { String::new() } else { format!(", and {} not answered", list(ranks)) }
}

/// Why a search has ended without an outcome, for the other ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    Wrong(String),
    Interrupted,
    Job { job: String, reason: String },
}

impl From<&RequestError> for Ended {
    fn from(error: &RequestError) -> Ended {
        match error {
            RequestError::Interrupted => Ended::Interrupted,
            RequestError::Job { job, reason } => {
                Ended::Job { job: job.clone(), reason: reason.clone() }
            }
            error => Ended::Wrong(error.to_string()),
        }
    }
}

impl From<Ended> for RequestError {
    fn from(ended: Ended) -> RequestError {
        match ended {
            Ended::Wrong(reason) => RequestError::Wrong { reason },
            Ended::Interrupted => RequestError::Interrupted,
            Ended::Job { job, reason } => RequestError::Job { job, reason },
        }
    }
}

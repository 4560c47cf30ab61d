//! Measures jobs that are to run beside each other, and says how to divide the device between them, or not to.
//!
//! [`run`] tunes [`Job`]s on a device, by a [`Request`] with a [`Goal`]; [`tuned`] keeps the [`Outcome`] in a file. The
//! page [`tuning`](crate::guide::tuning) of the manual says what is tried and how, and what can go wrong.
//!
//! | to | use |
//! |---|---|
//! | say what is best | [`Goal`], in a [`Request`] with a budget and limits |
//! | say what runs, and when | [`Job`], [`Arrival`] |
//! | tune | [`run`] |
//! | start again without measuring | [`tuned`], [`Store`] |
//! | use what was found | [`Outcome::partitions`], [`Outcome::verdict`] |
//! | measure in another way, or without a GPU | [`with`], [`Measure`], [`Model`] |

mod arm;
mod arrival;
mod goal;
mod job;
mod latencies;
mod measure;
mod model;
mod outcome;
mod request;
mod runner;
mod score;
mod search;
mod space;
mod stats;
mod store;

pub use arm::{Arm, ArmKind, Part, Pieces};
pub use arrival::{Arrival, ArrivalError};
pub use goal::{Goal, GoalError};
pub use job::{Job, JobError};
pub use measure::{Block, JobSample, Measure, Refusal, Sample, Task};
pub use model::{Model, ModelJob};
pub use outcome::{ArmReport, BlockReport, JobReport, Latency, Machine, Outcome, Verdict};
pub use request::{Limits, Profile, Request, RequestError, TuneError, with};
pub use runner::{Runner, run};
pub use score::{Scorer, Value};
pub use search::Progress;
pub use store::{Miss, Store, tuned};

#[cfg(test)]
mod trials;

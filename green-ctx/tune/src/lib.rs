//! Measures jobs that run beside each other on one GPU, and says how to divide its SMs between them, or not to.
//!
//! [`run`] tunes [`Job`]s on a device by a [`Request`] with a [`Goal`], and returns an [`Outcome`]. [`tuned`] keeps that in a
//! file. The page [`guide`] says what is tried and how, and what can go wrong.
//!
//! | to | use |
//! |---|---|
//! | say what is best | [`Goal`], in a [`Request`] with a budget and limits |
//! | say what runs, and when | [`Job`], [`Arrival`] |
//! | tune | [`run`] |
//! | start again without measuring | [`tuned`], [`Store`] |
//! | run what was found | [`Outcome::apply`], [`Outcome::partitions`] |
//! | measure in another way, or without a GPU | [`with`], [`Measure`], [`Model`] |

#![deny(unsafe_code)]

mod applied;
mod arm;
mod arrival;
mod goal;
mod job;
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
pub use applied::Applied;
pub use arm::{Arm, ArmKind, Part, ceilings};
pub use arrival::Arrival;
pub use goal::Goal;
pub use green_ctx::resource::UnitSizes;
pub use job::{Job, JobError};
pub use measure::{Block, JobSample, Measure, Refusal, Sample, Task};
pub use model::{Model, ModelJob};
pub use outcome::{ArmReport, JobReport, Latency, Machine, Outcome, Stage, Verdict};
pub use request::{Limits, Profile, Request, RequestError, TuneError, with};
pub use runner::run;
pub use search::Progress;
pub use store::{Miss, Store, tuned};

#[doc = include_str!("../guide/tuning.md")]
pub mod guide {}

#[cfg(test)]
mod trials;

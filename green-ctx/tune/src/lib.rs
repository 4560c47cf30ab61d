//! Measures how jobs run together on one GPU, and recommends whether and how to divide the GPU's SMs between the jobs.
//!
//! [`run`] tunes [`Job`]s on a device. A [`Request`] contains the [`Goal`] to optimise. The result is an [`Outcome`].
//! [`tuned`] also stores the outcome in a file. The [`guide`] explains the method and its limits.
//!
//! | task | items |
//! |---|---|
//! | choose what to optimise | [`Goal`], in a [`Request`] with a budget and limits |
//! | describe the jobs and when they run | [`Job`], [`Arrival`] |
//! | measure how one job scales with SMs | [`curve`] |
//! | tune | [`run`] |
//! | reuse a stored outcome instead of measuring again | [`tuned`], [`Store`] |
//! | apply the verdict | [`Outcome::apply`], [`Outcome::partitions`] |
//! | measure differently, or without a GPU | [`with`], [`Measure`], [`Model`] |

#![deny(unsafe_code)]

mod applied;
mod arm;
mod arrival;
mod curve;
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
pub use curve::{Curve, CurveMetric, CurvePoint, CurveRequest, CurveShape, curve, curve_with};
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

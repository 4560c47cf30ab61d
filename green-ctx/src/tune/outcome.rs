//! What the search found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::arm::{ArmKind, Pieces};
use super::arrival::Arrival;
use super::goal::Goal;

/// What tuning found: the verdict, and every figure that it is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The goal.
    pub goal: Goal,
    /// The SMs that there were to divide.
    pub pieces: Pieces,
    /// What to do.
    pub verdict: Verdict,
    /// The jobs, and how fast each is alone.
    pub jobs: Vec<JobReport>,
    /// Every arm that was looked at.
    pub arms: Vec<ArmReport>,
    /// How far the reference, the first job alone in a plain stream, drifted: its greatest rate to its
    /// smallest, minus 1.
    pub drift: f64,
    /// What a reader should know, such as that the reference drifted or a percentile had too few samples.
    pub notes: Vec<String>,
    /// How long it took.
    pub seconds: f64,
    /// Whether it ran to its end: `false` where it was interrupted, and this is the best so far.
    pub complete: bool,
}

/// What to do, and what it brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// How the jobs should have the device.
    pub kind: ArmKind,
    /// The share of each job. Without partitions `..`, so that a program asks for partitions all the same.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream: lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// How much better it is than the best arm without partitions: their ratio minus 1. `None` where no arm
    /// without partitions meets the goal's bound.
    pub gain: Option<f64>,
    /// The lower end of the gain's 95 % interval.
    pub confidence: Option<f64>,
    /// Whether the goal's bound is met; `true` for goals without one.
    pub meets: bool,
    /// The verdict in a sentence.
    pub sentence: String,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobReport {
    /// The name.
    pub name: String,
    /// What says that a job of the same name is the same, such as a model and a batch size.
    pub key: String,
    /// When its iterations are due.
    pub arrival: Arrival,
    /// Whether the host needs longer to submit an iteration than the GPU to run it. Such a job does not gain
    /// from more SMs.
    pub host_bound: bool,
    /// Iterations a second alone in a plain stream.
    pub rate: f64,
    /// Iterations a second alone on so many SMs.
    pub solo: BTreeMap<u32, f64>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ArmReport {
    /// The kind.
    pub kind: ArmKind,
    /// The share of each job.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream: lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// Iterations a second of each job: the median of all blocks.
    pub rates: BTreeMap<String, f64>,
    /// Latencies of each job that has some.
    pub latency_us: BTreeMap<String, Latency>,
    /// What the goal makes of it: the greater, the better. `None` where it was not measured, or does not meet the
    /// goal's bound.
    pub score: Option<f64>,
    /// The blocks' scores, in their order.
    pub scores: Vec<f64>,
    /// How many blocks ran.
    pub samples: usize,
    /// Why it was not measured.
    pub skipped: Option<String>,
}

/// Percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile; `None` of fewer than 500 samples.
    pub p99: Option<f64>,
    /// How many iterations they are of.
    pub iterations: usize,
}

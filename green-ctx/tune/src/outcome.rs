//! What tuning found.

use std::collections::BTreeMap;

use green_ctx::device::ComputeCapability;
use green_ctx::driver::DriverInfo;
use green_ctx::resource::{DryRun, ShareError};
use green_ctx::{Device, Error, Partitions, Result, Share, SplitRequest};
use serde::{Deserialize, Serialize};

use crate::applied::Applied;
use crate::arm::{self, ArmKind};
use crate::arrival::Arrival;
use crate::goal::Goal;
use crate::request::Limits;
use green_ctx::resource::UnitSizes;

/// What tuning found: the verdict, and the figures that it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// What it was measured on; `None` of what was not measured on a device.
    pub machine: Option<Machine>,
    /// The goal.
    pub goal: Goal,
    /// Which arms were allowed.
    pub limits: Limits,
    /// The SMs that there were to divide.
    pub pieces: UnitSizes,
    /// What to do.
    pub verdict: Verdict,
    /// The jobs, and how fast each is alone.
    pub jobs: Vec<JobReport>,
    /// Every arm that was looked at.
    pub arms: Vec<ArmReport>,
    /// How far the rate of a job alone drifted, for the job that drifted most: the greatest to the smallest of its rates
    /// at the beginning, in the middle and at the end, minus 1.
    pub drift: f64,
    /// What a reader should know, such as that a job is close to its capacity.
    pub notes: Vec<String>,
    /// How many seconds it took.
    pub seconds: f64,
    /// Whether it ran to its end. `false` where it was interrupted: this is the best so far.
    pub complete: bool,
}

impl Outcome {
    /// What the verdict says, ready to run: a stream for each job.
    ///
    /// With partitions, each job has the stream of its own. Without, each has a stream of the primary context, with its
    /// priority, and where the jobs are to run one after the other, all have one.
    ///
    /// # Errors
    ///
    /// As [`Device::partition`].
    pub fn apply(&self, device: &Device) -> Result<Applied> {
        Applied::new(self, device)
    }

    /// How the jobs have the device under one of the arms, in words.
    #[must_use]
    pub fn describe(&self, arm: &ArmReport) -> String {
        let names = self.jobs.iter().map(|job| job.name.as_str());
        let share = |name: &str| arm.shares.get(name).map_or("..", String::as_str).to_owned();
        let priority = |name: &str| arm.priority.get(name).copied().unwrap_or(0);
        let jobs: Vec<_> = names.map(|name| (name, share(name), priority(name))).collect();
        arm::describe(arm.kind, &jobs)
    }

    /// The request that the verdict stands for: a group for each job, with the priority of its stream. Where the verdict
    /// is not to partition, every group is `..`: all SMs without a promise.
    ///
    /// # Errors
    ///
    /// [`ShareError`] where a file has something else in the place of a share.
    pub fn request(&self) -> std::result::Result<SplitRequest, ShareError> {
        let mut request = SplitRequest::new();
        for (place, job) in self.jobs.iter().enumerate() {
            let name = job.name.as_str();
            let share = self.verdict.shares.get(name).map_or("..", String::as_str);
            request = request.group(name, share.parse::<Share>()?);
            let priority = self.verdict.priority.get(name).copied().unwrap_or(0);
            request = request.priority(name, priority);
            if place > 0 {
                request = request.at_end(name);
            }
        }
        Ok(request)
    }

    /// Partitions for the jobs, by their names, whatever the verdict is: see [`request`](Outcome::request).
    ///
    /// # Errors
    ///
    /// As [`Device::partition`].
    pub fn partitions(&self, device: &Device) -> Result<Partitions> {
        device.partition(self.split_request()?)
    }

    /// What [`partitions`](Outcome::partitions) would give now.
    pub(crate) fn dry_run(&self, device: &Device) -> Result<DryRun> {
        device.resources().sm()?.dry_run(self.split_request()?)
    }

    fn split_request(&self) -> Result<SplitRequest> {
        self.request().map_err(|error| Error::InvalidRequest(error.to_string()))
    }

    /// Notes the machine that the jobs ran on.
    pub(crate) fn ran_on(&mut self, device: &Device) -> Result<()> {
        let machine = Machine::of(device)?;
        if machine.driver.is_simulated() {
            self.notes.insert(0, format!("no GPU was measured: {}", machine.driver));
        }
        self.machine = Some(machine);
        Ok(())
    }
}

/// What something was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Machine {
    /// The driver.
    pub driver: DriverInfo,
    /// The name of the GPU.
    pub device: String,
    /// Its SMs.
    pub sm_count: u32,
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// The version of this crate.
    pub green_ctx: String,
    /// The driver's own version, such as `580.159.04`, where the system reports it.
    #[serde(default)]
    pub driver_version: Option<String>,
    /// The versions of libraries that the jobs' kernels come from, as [`Store::library`](crate::Store::library)
    /// and other callers name them.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
}

impl Machine {
    pub(crate) fn of(device: &Device) -> Result<Machine> {
        let driver = device.driver().info();
        Ok(Machine {
            // The machine's driver does not take part in a simulation.
            driver_version: (!driver.is_simulated()).then(green_ctx::sys::kernel_driver).flatten(),
            libraries: BTreeMap::new(),
            driver,
            device: device.name()?,
            sm_count: device.sm_count()?,
            compute_capability: device.compute_capability()?,
            green_ctx: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

/// What to do, and what it brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The place among [`Outcome::arms`] of what to do; `None` where no arm could run.
    pub arm: Option<usize>,
    /// The place of the best partition.
    pub candidate: Option<usize>,
    /// The place of the best arm without partitions.
    pub rival: Option<usize>,
    /// How the jobs should have the device.
    pub kind: ArmKind,
    /// The share of each job; `..` without partitions.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream: lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// How much better the best partition is than the best arm without partitions: the ratio of their scores minus 1.
    /// `None` where they were not compared for long enough.
    pub gain: Option<f64>,
    /// The ends of the gain's 95 % interval. It covers noise, drift, and what processes differ by. Where it contains 0, the
    /// verdict is not to partition.
    pub interval: Option<[f64; 2]>,
    /// Whether the goal's bound is met by the upper end of its 95 % interval; `true` for goals without a bound.
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
    /// What tells jobs of one name apart, such as a model and a batch size.
    pub key: String,
    /// When its iterations were due.
    pub arrival: Arrival,
    /// Whether the host needs as long to submit an iteration as the GPU to run it. Such a job gains nothing from more SMs.
    pub host_bound: bool,
    /// Iterations a second alone in a plain stream, with these arrivals.
    pub rate: f64,
    /// Iterations a second that a job with an arrival rate could do alone in a plain stream.
    pub capacity: Option<f64>,
    /// Iterations a second alone in a plain stream in the course of the search; of a job with an arrival rate, as fast as
    /// it can.
    pub references: Vec<f64>,
    /// Iterations a second alone on so many SMs; of a job with an arrival rate, as fast as it can.
    pub solo: BTreeMap<u32, f64>,
}

/// What an arm's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stage {
    /// Short blocks: they find candidates, and claim nothing.
    Search,
    /// Long blocks in which the candidate was chosen: they flatter it.
    Choice,
    /// The final: what the verdict rests on.
    Final,
}

impl Stage {
    /// The name in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::Search => "search",
            Stage::Choice => "choice",
            Stage::Final => "final",
        }
    }
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ArmReport {
    /// The kind.
    pub kind: ArmKind,
    /// The share of each job; `..` without partitions.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream: lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// What the figures come from.
    pub stage: Stage,
    /// Iterations a second of each job: the mean over blocks.
    pub rates: BTreeMap<String, f64>,
    /// Latencies of each job that has some.
    pub latency_us: BTreeMap<String, Latency>,
    /// Iterations a second that each job with an arrival rate could do here.
    pub capacity: BTreeMap<String, f64>,
    /// What the goal makes of it: the greater, the better. `None` where it was not measured.
    pub score: Option<f64>,
    /// How far it is from the goal's bound, as a part of that: above 0 where it misses the bound.
    pub excess: f64,
    /// How many blocks ran.
    pub blocks: usize,
    /// Why it was not measured.
    pub skipped: Option<String>,
}

impl ArmReport {
    /// Whether it was measured and meets the goal's bound by its figures, of whichever stage.
    #[must_use]
    pub fn meets(&self) -> bool {
        self.score.is_some() && self.excess <= 0.0
    }
}

/// Latencies in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile; `None` of fewer than 500 iterations.
    pub p99: Option<f64>,
    /// How many iterations they are of.
    pub iterations: usize,
}

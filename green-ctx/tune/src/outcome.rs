//! The result of tuning.

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

/// The result of tuning: the verdict, and the figures that it is based on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The machine that the jobs were measured on; `None` if they were not measured on a device.
    pub machine: Option<Machine>,
    /// The goal.
    pub goal: Goal,
    /// The arms that were allowed.
    pub limits: Limits,
    /// The SMs that were available for division.
    pub pieces: UnitSizes,
    /// The recommendation.
    pub verdict: Verdict,
    /// The jobs, and their figures alone.
    pub jobs: Vec<JobReport>,
    /// All arms that the search considered.
    pub arms: Vec<ArmReport>,
    /// The largest drift of any job's rate alone: the ratio of the highest to the lowest of its median rates at the
    /// beginning, in the middle and at the end of the search, minus 1.
    pub drift: f64,
    /// Warnings for the reader, for example that a job is close to its capacity.
    pub notes: Vec<String>,
    /// The duration of tuning in seconds.
    pub seconds: f64,
    /// True if tuning ran to its end; false if it was interrupted and this is the best result so far.
    pub complete: bool,
}

impl Outcome {
    /// Creates what the verdict recommends: a stream for each job.
    ///
    /// If the verdict is to partition, each job gets its partition's stream. Otherwise each job gets a stream of the
    /// primary context with its priority. If the jobs should run one after the other, they all get the same stream.
    ///
    /// # Errors
    ///
    /// As for [`Device::partition`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # use green_ctx_tune::{self as tune, Model, ModelJob, Profile, Request, UnitSizes};
    /// # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
    /// # let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// # let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
    /// # let jobs = [Profile::new("decode"), Profile::new("prefill")];
    /// # let outcome = tune::with(&mut model, &jobs, pieces, &Request::default(), &mut |_| true)?;
    /// let applied = outcome.apply(&device)?;
    /// assert!(applied.stream("decode").is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply(&self, device: &Device) -> Result<Applied> {
        Applied::new(self, device)
    }

    /// Describes an arm in words: the share and the priority of each job.
    ///
    /// # Examples
    ///
    /// ```
    /// # use green_ctx_tune::{self as tune, Model, ModelJob, Profile, Request, UnitSizes};
    /// # let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// # let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
    /// # let jobs = [Profile::new("decode"), Profile::new("prefill")];
    /// # let outcome = tune::with(&mut model, &jobs, pieces, &Request::default(), &mut |_| true)?;
    /// for arm in outcome.arms.iter().filter(|arm| arm.meets()) {
    ///     println!("{}: {:?} iterations per second", outcome.describe(arm), arm.rates);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn describe(&self, arm: &ArmReport) -> String {
        let names = self.jobs.iter().map(|job| job.name.as_str());
        let share = |name: &str| arm.shares.get(name).map_or("..", String::as_str).to_owned();
        let priority = |name: &str| arm.priority.get(name).copied().unwrap_or(0);
        let jobs: Vec<_> = names.map(|name| (name, share(name), priority(name))).collect();
        arm::describe(arm.kind, &jobs)
    }

    /// Returns the request that implements the verdict: one group per job, with the priority of its stream. If the
    /// verdict is not to partition, every group's share is `..`, which has no floor and no ceiling.
    ///
    /// # Errors
    ///
    /// [`ShareError`] if the verdict comes from a file and one of its shares is not valid.
    pub fn request(&self) -> std::result::Result<SplitRequest, ShareError> {
        let mut request = SplitRequest::new().deterministic(true);
        for job in &self.jobs {
            let name = job.name.as_str();
            let share = self.verdict.shares.get(name).map_or("..", String::as_str);
            request = request.group(name, share.parse::<Share>()?);
            let priority = self.verdict.priority.get(name).copied().unwrap_or(0);
            request = request.priority(name, priority);
        }
        Ok(request)
    }

    /// Creates partitions for the jobs, named after them, whatever the verdict is; see [`request`](Outcome::request).
    ///
    /// # Errors
    ///
    /// As for [`Device::partition`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use green_ctx::{Driver, sim::Sim};
    /// # use green_ctx_tune::{self as tune, Model, ModelJob, Profile, Request, UnitSizes};
    /// # let device = Driver::simulated(&Sim::new("h200")?)?.device(0)?;
    /// # let pieces = UnitSizes { sms: 132, unit: 8, odd: 12 };
    /// # let mut model = Model::new(pieces, vec![ModelJob::default(); 2], 1);
    /// # let jobs = [Profile::new("decode"), Profile::new("prefill")];
    /// # let outcome = tune::with(&mut model, &jobs, pieces, &Request::default(), &mut |_| true)?;
    /// let partitions = outcome.partitions(&device)?;
    /// let _stream = partitions["decode"].stream();
    /// # Ok(())
    /// # }
    /// ```
    pub fn partitions(&self, device: &Device) -> Result<Partitions> {
        device.partition(self.split_request()?)
    }

    /// Computes what [`partitions`](Outcome::partitions) would give now, without taking SMs.
    pub(crate) fn dry_run(&self, device: &Device) -> Result<DryRun> {
        device.resources().sm()?.dry_run(self.split_request()?)
    }

    fn split_request(&self) -> Result<SplitRequest> {
        self.request().map_err(|error| Error::InvalidRequest(error.to_string()))
    }

    /// Records the machine that the jobs ran on.
    pub(crate) fn ran_on(&mut self, device: &Device) -> Result<()> {
        let machine = Machine::of(device)?;
        if machine.driver.is_simulated() {
            self.notes.insert(0, format!("no GPU was measured: {}", machine.driver));
        }
        self.machine = Some(machine);
        Ok(())
    }
}

/// The machine and software that an outcome was measured with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Machine {
    /// The CUDA driver.
    pub driver: DriverInfo,
    /// The name of the GPU.
    pub device: String,
    /// The number of SMs of the GPU.
    pub sm_count: u32,
    /// The compute capability of the GPU.
    pub compute_capability: ComputeCapability,
    /// The version of this crate.
    pub green_ctx: String,
    /// The version of the NVIDIA kernel driver, such as `580.159.04`, if the system reports it.
    #[serde(default)]
    pub driver_version: Option<String>,
    /// The versions of libraries that the jobs' kernels come from, as set by [`Store::library`](crate::Store::library)
    /// and other callers.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
}

impl Machine {
    pub(crate) fn of(device: &Device) -> Result<Machine> {
        let driver = device.driver().info();
        Ok(Machine {
            // The installed kernel driver plays no part in a simulation.
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

/// The recommendation, and the gain to expect from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The index in [`Outcome::arms`] of the recommended arm; `None` if no arm could run.
    pub arm: Option<usize>,
    /// The index of the best partition.
    pub candidate: Option<usize>,
    /// The index of the best arm without partitions.
    pub rival: Option<usize>,
    /// The kind of the recommended arm.
    pub kind: ArmKind,
    /// The share of each job; `..` without partitions.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream. Lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// How much better the best partition is than the best arm without partitions: the ratio of their scores, minus 1.
    /// `None` if the comparison was too short.
    pub gain: Option<f64>,
    /// The lower and upper end of the gain's 95 % interval. It covers noise, drift, and the differences between
    /// processes. If it contains 0, the verdict is not to partition.
    pub interval: Option<[f64; 2]>,
    /// True if the upper end of the 95 % interval meets the goal's bound, and for goals without a bound.
    pub meets: bool,
    /// The verdict in one or two sentences.
    pub sentence: String,
}

/// The figures of one job alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobReport {
    /// The name.
    pub name: String,
    /// The key that tells jobs of the same name apart, for example the model and the batch size.
    pub key: String,
    /// When its iterations were due.
    pub arrival: Arrival,
    /// True if submitting an iteration takes the host as long as running it takes the GPU. Such a job gains nothing
    /// from more SMs.
    pub host_bound: bool,
    /// Iterations per second alone in a plain stream, with these arrivals.
    pub rate: f64,
    /// The maximum number of iterations per second alone in a plain stream. Set for jobs with an arrival rate.
    pub capacity: Option<f64>,
    /// Iterations per second alone in a plain stream, measured repeatedly during the search. A job with an arrival rate
    /// runs as fast as it can.
    pub references: Vec<f64>,
    /// Iterations per second alone, by number of SMs. A job with an arrival rate runs as fast as it can.
    pub solo: BTreeMap<u32, f64>,
}

/// The stage of the search that an arm's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stage {
    /// Short measurement blocks, which find candidates. No claim is based on them.
    Search,
    /// Long blocks, among which the candidate was chosen. Being chosen, it looks better here than it is.
    Choice,
    /// The final comparison, which the verdict is based on.
    Final,
}

impl Stage {
    /// Returns the name used in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::Search => "search",
            Stage::Choice => "choice",
            Stage::Final => "final",
        }
    }
}

/// The figures of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ArmReport {
    /// The kind.
    pub kind: ArmKind,
    /// The share of each job; `..` without partitions.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream. Lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// The stage that the figures come from.
    pub stage: Stage,
    /// Iterations per second of each job: the mean over measurement blocks.
    pub rates: BTreeMap<String, f64>,
    /// The latencies of each job for which latency is defined.
    pub latency_us: BTreeMap<String, Latency>,
    /// The maximum number of iterations per second in this arm, for each job with an arrival rate.
    pub capacity: BTreeMap<String, f64>,
    /// The arm's score under the goal. Higher is better. `None` if the arm was not measured.
    pub score: Option<f64>,
    /// How far the arm misses the goal's bound, as a fraction of the bound: positive if it misses it, 0 or negative if
    /// it meets it.
    pub excess: f64,
    /// The number of measurement blocks that ran.
    pub blocks: usize,
    /// The reason why the arm was not measured, if it was not.
    pub skipped: Option<String>,
}

impl ArmReport {
    /// Returns whether the arm was measured and its figures meet the goal's bound, at whichever stage it was measured.
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
    /// The 99th percentile; `None` for fewer than 500 iterations.
    pub p99: Option<f64>,
    /// The number of iterations that these figures are based on.
    pub iterations: usize,
}

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
use crate::curve::{Curve, CurvePoint};
use crate::goal::Goal;
use crate::request::Limits;
use green_ctx::resource::UnitSizes;

/// The result of tuning: the verdict, and the measurements that the verdict is based on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The machine that the jobs were measured on; `None` if the jobs were not measured on a device.
    pub machine: Option<Machine>,
    /// The goal.
    pub goal: Goal,
    /// The limits on the arms that the search could try.
    pub limits: Limits,
    /// The number of SMs that the search could divide, and the sizes of their units.
    pub pieces: UnitSizes,
    /// The recommendation.
    pub verdict: Verdict,
    /// One report per job, with the measurements of the job when it ran alone.
    pub jobs: Vec<JobReport>,
    /// All arms that the search considered.
    pub arms: Vec<ArmReport>,
    /// The largest drift of any job when it ran alone. A job has one median rate from the beginning, one from the
    /// middle and one from the end of the search. The drift is the ratio of the highest to the lowest of these medians,
    /// minus 1.
    pub drift: f64,
    /// Warnings for the reader, for example that a job is close to its capacity.
    pub notes: Vec<String>,
    /// The time budget of tuning in seconds; `None` if a file does not contain it.
    pub budget: Option<f64>,
    /// The duration of tuning in seconds.
    pub seconds: f64,
    /// True if tuning was completed; false if tuning was interrupted and the verdict is the best result up to that
    /// point.
    pub complete: bool,
}

impl Outcome {
    /// Creates a stream for each job, as the verdict recommends.
    ///
    /// If the verdict is to partition, each job gets the stream of its partition. If the verdict is to use plain
    /// streams or priorities, each job gets a stream of the primary context with the recommended priority. If the
    /// verdict is to run the jobs one after the other, all jobs get the same stream.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Device::partition`].
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

    /// Returns how each job scales when it runs alone, as far as the search measured it: one block for each number of
    /// SMs, and several for the whole device.
    #[must_use]
    pub fn curves(&self) -> Vec<Curve> {
        // A plain stream runs on all SMs, even if partitions held some of them, or on those that are not reserved.
        let sms = self.machine.as_ref().map_or(self.pieces.sms, Machine::unbound_sms);
        let curve = |job: &JobReport| {
            let point = |sms: u32, rates: &[f64]| {
                let blocks_us = rates.iter().map(|rate| 1e6 / rate).collect();
                CurvePoint { sms, blocks_us, ..CurvePoint::default() }
            };
            let parts = job.solo.range(..sms).map(|(sms, rate)| point(*sms, &[*rate]));
            let points = parts.chain([point(sms, &job.references)]).collect();
            Curve::of(&job.name, points, job.host_bound)
        };
        self.jobs.iter().map(curve).collect()
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

    /// Returns the split request that implements the verdict. The request has one group per job, with the priority of
    /// the job's stream. If the verdict is not to partition, the share of every group is `..`, which has no floor and
    /// no ceiling.
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

    /// Creates one partition per job, even if the verdict is not to partition. Each partition has the job's name and
    /// the share from [`request`](Outcome::request).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Device::partition`].
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

    /// Computes the SMs of the partitions that [`partitions`](Outcome::partitions) would create now, without taking the
    /// SMs.
    pub(crate) fn dry_run(&self, device: &Device) -> Result<DryRun> {
        device.resources().sm()?.dry_run(self.split_request()?)
    }

    fn split_request(&self) -> Result<SplitRequest> {
        self.request().map_err(|error| Error::InvalidRequest(error.to_string()))
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
    /// The number of SMs that are reserved for partitions, so that plain streams did not use them.
    #[serde(default)]
    pub reserved: u32,
    /// The compute capability of the GPU.
    pub compute_capability: ComputeCapability,
    /// The version of this crate.
    pub green_ctx: String,
    /// The version of the NVIDIA kernel driver, such as `580.159.04`, if the system reports it.
    #[serde(default)]
    pub driver_version: Option<String>,
    /// The versions of libraries that the jobs' kernels come from, by name. [`Store::library`](crate::Store::library)
    /// sets versions, and a program can add others.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
}

impl Machine {
    /// Returns the number of SMs that work outside of partitions may use.
    #[must_use]
    pub fn unbound_sms(&self) -> u32 {
        self.sm_count.saturating_sub(self.reserved)
    }

    /// Returns a note about the reserve, if there is one.
    pub(crate) fn note(&self) -> Option<String> {
        let Machine { reserved, sm_count, .. } = self;
        let rest = self.unbound_sms();
        (*reserved > 0).then(|| format!(
            "{reserved} of {sm_count} SMs are reserved for partitions: plain streams, priorities and jobs one after the \
             other ran on the other {rest} SMs"
        ))
    }

    pub(crate) fn of(device: &Device) -> Result<Machine> {
        let driver = device.driver().info();
        Ok(Machine {
            // The installed kernel driver plays no part in a simulation.
            driver_version: (!driver.is_simulated()).then(green_ctx::sys::kernel_driver).flatten(),
            libraries: BTreeMap::new(),
            driver,
            device: device.name()?,
            sm_count: device.sm_count()?,
            reserved: device.reserved_sm_count()?,
            compute_capability: device.compute_capability()?,
            green_ctx: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

/// The recommended arm, and the gain to expect from partitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The index in [`Outcome::arms`] of the recommended arm.
    pub arm: usize,
    /// The index in [`Outcome::arms`] of the best arm with partitions. Under a bound, arms that are
    /// [certain](ArmReport::certain) to meet it come before all others.
    pub candidate: Option<usize>,
    /// The index in [`Outcome::arms`] of the best arm without partitions. Under a bound, arms that are
    /// [certain](ArmReport::certain) to meet it come before all others, so an arm with a higher score may be left out.
    /// A note names such an arm.
    pub rival: Option<usize>,
    /// The kind of the recommended arm.
    pub kind: ArmKind,
    /// The share of each job, by name. In an arm without partitions, the share is `..`.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream, by name. As in CUDA, a lower number is a higher priority.
    pub priority: BTreeMap<String, i32>,
    /// The gain of [`candidate`](Verdict::candidate) over [`rival`](Verdict::rival): the ratio of the two scores, minus
    /// one. `None` if one of these arms does not exist, if jobs cannot keep up with their arrivals in any arm without
    /// partitions, if a job finished no iteration in one of them, or if the comparison was too short.
    pub gain: Option<f64>,
    /// The lower and the upper end of the gain's 95 % confidence interval. The interval accounts for noise, drift, and
    /// differences between processes. If both arms meet the goal's bound and there are no floors, the verdict is to
    /// partition if and only if the lower end is above 0, or a job finished no iteration in the rival.
    pub interval: Option<[f64; 2]>,
    /// True if the goal has no bound, or if the recommended arm meets the bound even at the worse end of the arm's 95 %
    /// confidence interval.
    pub meets: bool,
    /// The verdict in one or two sentences. If no GPU ran the jobs, another sentence says so.
    pub sentence: String,
}

/// The measurements of one job when it ran alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobReport {
    /// The name.
    pub name: String,
    /// The key that distinguishes jobs of the same name, for example the model and the batch size.
    pub key: String,
    /// The times at which the job's iterations were due.
    pub arrival: Arrival,
    /// True if the host takes about as long to submit an iteration as the GPU takes to run the iteration. Such a job
    /// gains nothing from more SMs.
    pub host_bound: bool,
    /// The job's iterations per second when it runs alone in a plain stream with its arrivals.
    pub rate: f64,
    /// The maximum number of iterations per second when the job runs alone in a plain stream; `None` for a closed loop.
    pub capacity: Option<f64>,
    /// The job's iterations per second when it runs alone in a plain stream, measured repeatedly during the search. For
    /// these measurements, a job with an arrival rate runs as fast as it can.
    pub references: Vec<f64>,
    /// The job's iterations per second when it runs alone, for each measured number of SMs. For these measurements, a
    /// job with an arrival rate runs as fast as it can.
    pub solo: BTreeMap<u32, f64>,
}

/// The stage of tuning that an arm's measurements come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stage {
    /// The search, which finds candidates in short measurement blocks. The verdict is not based on these measurements.
    Search,
    /// The choice of the candidate in long measurement blocks. These measurements tend to overrate the candidate,
    /// because the arm with the best measurements was chosen.
    Choice,
    /// The final comparison, on which the verdict is based.
    Final,
}

impl Stage {
    /// Returns the name of the stage in files, such as `search`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::Search => "search",
            Stage::Choice => "choice",
            Stage::Final => "final",
        }
    }
}

/// The measurements of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ArmReport {
    /// The kind.
    pub kind: ArmKind,
    /// The share of each job, by name. In an arm without partitions, the share is `..`.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream, by name. As in CUDA, a lower number is a higher priority.
    pub priority: BTreeMap<String, i32>,
    /// The stage of tuning that the measurements come from.
    pub stage: Stage,
    /// The iterations per second of each job, averaged over the measurement blocks.
    pub rates: BTreeMap<String, f64>,
    /// The latencies of each job, by name. Jobs in a closed loop deeper than 1 have no latencies and are left out.
    pub latency_us: BTreeMap<String, Latency>,
    /// The maximum number of iterations per second in this arm, for each job with an arrival rate.
    pub capacity: BTreeMap<String, f64>,
    /// The arm's score under the goal; a higher score is better. `None` if the arm was not measured.
    pub score: Option<f64>,
    /// How far the arm misses the goal's bound in its measurements, as a fraction of the bound. The value is positive if
    /// the measurements miss the bound, and 0 or negative if they meet it. The verdict asks for more: see
    /// [`certain`](ArmReport::certain). The value is at least 10⁹ if the goal's job cannot keep up
    /// with its arrivals, because its queue then grows without limit.
    pub excess: f64,
    /// True if the arm is certain to meet the goal's bound, because the worse end of its 95 % confidence interval in the
    /// final comparison meets it. `None` if the goal has no bound, or if the arm was not in the final comparison.
    #[serde(default)]
    pub certain: Option<bool>,
    /// The number of measurement blocks in which this arm ran.
    pub blocks: usize,
    /// The reason why the arm was skipped; `None` if the arm could run.
    pub skipped: Option<String>,
}

impl ArmReport {
    /// Returns whether the arm was measured and its measurements meet the goal's bound. The measurements can come from
    /// any stage, and may meet the bound by chance: see [`certain`](ArmReport::certain).
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
    /// The number of iterations from which these latencies are computed.
    pub iterations: usize,
}

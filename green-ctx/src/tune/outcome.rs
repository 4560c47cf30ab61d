//! What the search found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::{ComputeCapability, Device};
use crate::driver::DriverInfo;
use crate::error::{Error, Result};
use crate::ledger::{Share, ShareError, SplitRequest};
use crate::partition::Partitions;
use crate::resource::DryRun;

use super::arm::{Arm, ArmKind, Part, Pieces};
use super::arrival::Arrival;
use super::goal::Goal;
use super::measure::Sample;
use super::request::Limits;

/// What tuning found: the verdict, and every figure that it is made of.
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
    pub pieces: Pieces,
    /// What to do.
    pub verdict: Verdict,
    /// The jobs, and how fast each is alone.
    pub jobs: Vec<JobReport>,
    /// Every arm that was looked at.
    pub arms: Vec<ArmReport>,
    /// How far a job's rate alone in a plain stream drifted, of the job that drifted most: the greatest to the
    /// smallest of its rates at the beginning, in the middle and at the end, minus 1.
    pub drift: f64,
    /// What a reader should know, such as that the reference drifted or a percentile had too few samples.
    pub notes: Vec<String>,
    /// How long it took.
    pub seconds: f64,
    /// Whether it ran to its end: `false` where it was interrupted, and this is the best so far.
    pub complete: bool,
}

impl ArmReport {
    /// The score of its worst block. Of an arm without partitions, where each block is a fresh start, it is
    /// what a program may get.
    #[must_use]
    pub fn worst(&self) -> Option<f64> {
        self.blocks.iter().map(|block| block.score).reduce(f64::min)
    }

    /// Whether it was measured, and meets the goal's bound.
    #[must_use]
    pub fn meets(&self) -> bool {
        self.score.is_some() && self.miss <= 0.0
    }
}

impl Outcome {
    /// The request that the verdict stands for: a group for each job, with the priority of its stream.
    ///
    /// Where the verdict is not to partition, every group is `..`, all SMs without a promise. A context
    /// of all SMs is as fast as a plain stream. To run jobs one after the other, where that is the verdict, submit
    /// all of them to one of the partitions' streams.
    ///
    /// # Errors
    ///
    /// [`ShareError`] where somebody has written something else than a share into the verdict.
    pub fn request(&self) -> Result<SplitRequest, ShareError> {
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

    /// The arm that the verdict chose, to be measured once more.
    ///
    /// # Errors
    ///
    /// [`ShareError`] where a file had something else in the place of a share.
    pub fn chosen(&self) -> Result<Arm, ShareError> {
        let (verdict, sms) = (&self.verdict, self.pieces.sms);
        let names = || self.jobs.iter().map(|job| &job.name);
        let priority = |name| verdict.priority.get(name).copied().unwrap_or(0);
        let priorities: Vec<i32> = names().map(priority).collect();
        Ok(match verdict.kind {
            ArmKind::Sequential => Arm::sequential(priorities.len(), sms),
            ArmKind::Streams => Arm::streams(priorities.len(), sms),
            ArmKind::Priority => Arm::priority(priorities, sms),
            ArmKind::Partition => {
                let part = |name| {
                    let share: Share =
                        verdict.shares.get(name).map_or("..", String::as_str).parse()?;
                    let (floor, ceiling) = (share.floor(), share.ceiling());
                    Ok(Part { floor: floor.unwrap_or(0), ceiling: ceiling.unwrap_or(sms) })
                };
                let parts = names().map(part).collect::<Result<Vec<Part>, ShareError>>()?;
                Arm::partition(parts).with_priorities(priorities)
            }
        })
    }

    /// Partitions as the verdict has them, by the names of the jobs.
    ///
    /// # Errors
    ///
    /// As [`Device::partition`].
    pub fn partitions(&self, device: &Device) -> Result<Partitions> {
        device.partition(self.split_request()?)
    }

    /// What [`partitions`](Outcome::partitions) would give now.
    pub(super) fn dry_run(&self, device: &Device) -> Result<DryRun> {
        device.resources().sm()?.dry_run(self.split_request()?)
    }

    fn split_request(&self) -> Result<SplitRequest> {
        self.request().map_err(|error| Error::InvalidRequest(error.to_string()))
    }

    /// Notes the machine that the jobs ran on.
    pub(super) fn ran_on(&mut self, device: &Device) -> Result<()> {
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
    /// The versions of libraries that the jobs' kernels come from, as [`Store::library`](super::Store::library)
    /// and other callers name them.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
}

impl Machine {
    pub(super) fn of(device: &Device) -> Result<Machine> {
        let driver = device.driver().info();
        Ok(Machine {
            // The machine's driver does not take part in a simulation.
            driver_version: (!driver.is_simulated()).then(green_ctx_sys::kernel_driver).flatten(),
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
    /// The place of the arm among [`Outcome::arms`]; `None` where no arm could run.
    pub arm: Option<usize>,
    /// The place of the arm that it was compared with: the best without partitions or, where that is the
    /// verdict, the best partition.
    pub rival: Option<usize>,
    /// How the jobs should have the device.
    pub kind: ArmKind,
    /// The share of each job. Without partitions `..`, so that a program asks for partitions all the same.
    pub shares: BTreeMap<String, String>,
    /// The priority of each job's stream: lower numbers run first.
    pub priority: BTreeMap<String, i32>,
    /// How much better it is than the best arm without partitions: their ratio minus 1. `None` where no arm
    /// without partitions meets the goal's bound.
    pub gain: Option<f64>,
    /// The lower end of the gain's 95 % interval; `None` also where they were not compared for long enough.
    pub confidence: Option<f64>,
    /// Its upper end.
    pub upper: Option<f64>,
    /// Whether the goal's bound is met; `true` for goals without one. An arm that misses it by up to 1 % meets
    /// it. `false` also where there were too few iterations to know: the sentence says which.
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
    /// Iterations a second alone in a plain stream: the median in the course of the search, or the clock's rate
    /// where the job keeps up with that.
    pub rate: f64,
    /// Those iterations a second, in the order in which they were measured.
    pub references: Vec<f64>,
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
    /// What the goal makes of it: the greater, the better. `None` where it was not measured.
    pub score: Option<f64>,
    /// By how much it misses the goal's bound, as a part of that; 0 where it meets it.
    pub miss: f64,
    /// How many blocks ran.
    pub samples: usize,
    /// The blocks, in their order.
    pub blocks: Vec<BlockReport>,
    /// Why it was not measured.
    pub skipped: Option<String>,
}

/// One block of an arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "BlockInFile", into = "BlockInFile")]
#[non_exhaustive]
pub struct BlockReport {
    /// What the goal makes of it.
    pub score: f64,
    /// Iterations a second of each job, in the order of the jobs.
    pub rates: Vec<f64>,
    /// Each job's latencies in microseconds, to a tenth.
    pub latencies_us: Vec<Vec<f64>>,
    /// What each round took in microseconds, where the goal is the time of a round.
    pub rounds_us: Vec<f64>,
}

/// A block in a file. It has nearly all of a file's numbers: whole numbers are read in a fraction of the time of
/// others.
#[derive(Serialize, Deserialize)]
struct BlockInFile {
    score: f64,
    rates: Vec<f64>,
    /// Latencies in tenths of a microsecond.
    latencies_tenth_us: Vec<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rounds_tenth_us: Vec<u64>,
}

impl From<BlockInFile> for BlockReport {
    fn from(block: BlockInFile) -> BlockReport {
        let BlockInFile { score, rates, latencies_tenth_us, rounds_tenth_us } = block;
        let times =
            |tenths: Vec<u64>| tenths.into_iter().map(|tenths| tenths as f64 / 10.0).collect();
        let latencies_us = latencies_tenth_us.into_iter().map(times).collect();
        BlockReport { score, rates, latencies_us, rounds_us: times(rounds_tenth_us) }
    }
}

impl From<BlockReport> for BlockInFile {
    fn from(block: BlockReport) -> BlockInFile {
        let BlockReport { score, rates, latencies_us, rounds_us } = block;
        let tenths =
            |times: Vec<f64>| times.into_iter().map(|time| (10.0 * time).round() as u64).collect();
        let latencies_tenth_us = latencies_us.into_iter().map(tenths).collect();
        BlockInFile { score, rates, latencies_tenth_us, rounds_tenth_us: tenths(rounds_us) }
    }
}

impl BlockReport {
    pub(super) fn of(sample: &Sample, score: f64) -> BlockReport {
        let tenths =
            |times: &[f64]| times.iter().map(|time| (10.0 * time).round() / 10.0).collect();
        BlockReport {
            score,
            rates: sample.jobs.iter().map(|job| job.rate).collect(),
            latencies_us: sample.jobs.iter().map(|job| tenths(&job.latencies_us)).collect(),
            rounds_us: tenths(&sample.rounds_us),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_each_timing_as_a_whole_number() {
        let block = BlockReport {
            score: 1.5,
            rates: vec![2.0],
            latencies_us: vec![vec![0.0, 0.1, 0.3, 12.7, 1e6], vec![]],
            rounds_us: vec![99.9],
        };
        let text = serde_json::to_string(&block).expect("it can be written");
        assert!(text.contains("[[0,1,3,127,10000000],[]]") && text.contains("[999]"), "{text}");
        assert_eq!(serde_json::from_str::<BlockReport>(&text).expect("it can be read"), block);
    }
}

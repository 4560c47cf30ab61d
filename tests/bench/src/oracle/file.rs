//! What is kept of a mix: one file, with a figure for each block and not with every latency.

use std::path::{Path, PathBuf};

use green_ctx::Device;
use green_ctx::tune::{
    Arm, ArmKind, Goal, JobSample, Outcome, Part, Pieces, Sample, Value, Verdict,
};
use serde::{Deserialize, Serialize};

use super::Oracle;
use super::bed::Bed;
use super::grid::{Measured, PERCENTILE};
use super::mix::Mix;
use super::stats::{median, reachable};
use crate::machine::Machine;
use crate::setup::{Failure, Result};

/// The format that is written here, and the only one that is read.
pub(super) const FORMAT: u32 = 2;

/// All of one mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MixFile {
    pub(crate) format: u32,
    pub(crate) mix: String,
    #[serde(flatten)]
    pub(crate) machine: Machine,
    /// The program that ran the jobs, where it was not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// How long all of it took.
    pub(crate) seconds: f64,
    pub(crate) pieces: Pieces,
    pub(crate) settings: Settings,
    /// Each job alone.
    pub(crate) jobs: Vec<JobRecord>,
    /// Every arm of the grid.
    pub(crate) arms: Vec<ArmRecord>,
    /// The mix with each goal.
    pub(crate) combinations: Vec<Combination>,
}

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) step: u32,
    pub(crate) passes: u32,
    pub(crate) block_ms: u64,
    pub(crate) budget_s: f64,
    pub(crate) tuner_step: u32,
    pub(crate) blocks: usize,
    pub(crate) most_blocks: usize,
    pub(crate) final_ms: u64,
}

/// A job alone in a plain stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub(crate) name: String,
    pub(crate) spec: String,
    /// Iterations a second: the median of the blocks.
    pub(crate) rate: f64,
    pub(crate) p99_us: f64,
    pub(crate) blocks: Vec<BlockRecord>,
}

/// An arm, as files have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArmShape {
    pub(crate) kind: ArmKind,
    /// Floor and ceiling of each job.
    pub(crate) parts: Vec<[u32; 2]>,
    pub(crate) priorities: Vec<i32>,
}

/// An arm of the grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ArmRecord {
    #[serde(flatten)]
    pub(crate) arm: ArmShape,
    pub(crate) blocks: Vec<BlockRecord>,
    /// Blocks in rounds, for the makespan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rounds: Vec<BlockRecord>,
    /// Why it could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
}

/// One block. Lists have an entry for each job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BlockRecord {
    /// Iterations a second.
    pub(crate) rates: Vec<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) p50_us: Vec<Option<f64>>,
    /// Of fewer than 500 iterations, the highest percentile that they are enough for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) p99_us: Vec<Option<f64>>,
    /// How many latencies the percentiles are of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) iterations: Vec<usize>,
    /// Of a block in rounds: the median of their times, and how many there were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rounds_us: Option<(f64, usize)>,
}

/// A mix with a goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Combination {
    /// The goal as it was requested, such as `keep:50`.
    pub(crate) template: String,
    /// The goal with the mix's own bound.
    pub(crate) goal: Goal,
    pub(crate) tuner: Option<TunerRecord>,
    /// What it found each further time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeats: Vec<TunerRecord>,
    /// The arms of the comparison at the end.
    pub(crate) finalists: Vec<Finalist>,
    /// Why there is no comparison.
    pub(crate) error: Option<String>,
}

/// What the tuner found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TunerRecord {
    pub(crate) arm: ArmShape,
    pub(crate) sentence: String,
    pub(crate) seconds: f64,
    pub(crate) gain: Option<f64>,
    pub(crate) meets: bool,
    /// How many arms it looked at.
    pub(crate) arms: usize,
}

/// An arm of the comparison at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finalist {
    #[serde(flatten)]
    pub(crate) arm: ArmShape,
    /// Whether the tuner chose it the first time.
    pub(crate) chosen: bool,
    /// Its place among the oracle's best, from 1.
    pub(crate) rank: Option<usize>,
    /// Whether it is the oracle's best arm without partitions.
    pub(crate) unpartitioned: bool,
    /// What the grid's blocks are worth, where it is on the grid.
    pub(crate) grid: Option<Worth>,
    /// What all of its blocks are worth.
    pub(crate) value: Worth,
    /// What each block is worth by itself.
    pub(crate) worths: Vec<Worth>,
    pub(crate) blocks: Vec<BlockRecord>,
}

/// What a goal makes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Worth {
    pub(crate) miss: f64,
    pub(crate) score: f64,
}

impl From<Value> for Worth {
    fn from(Value { miss, score }: Value) -> Worth {
        Worth { miss, score }
    }
}

impl Worth {
    /// What one block is worth: of many, and so with as many digits as say something.
    pub(super) fn of_block(value: Value) -> Worth {
        Worth { miss: rounded(value.miss), score: rounded(value.score) }
    }
}

impl Combination {
    /// What the tuner found, each time that it searched.
    pub(super) fn searches(&self) -> impl Iterator<Item = &TunerRecord> {
        self.tuner.iter().chain(&self.repeats)
    }
}

impl TunerRecord {
    pub(super) fn of(outcome: &Outcome, arm: &Arm) -> TunerRecord {
        let Verdict { sentence, gain, meets, .. } = &outcome.verdict;
        TunerRecord {
            arm: ArmShape::of(arm),
            sentence: sentence.clone(),
            seconds: outcome.seconds,
            gain: *gain,
            meets: *meets,
            arms: outcome.arms.len(),
        }
    }
}

impl Finalist {
    /// Whether it is one of those that the choice is judged by: the oracle's best three and its best without
    /// partitions.
    pub(super) fn is_rival(&self) -> bool {
        self.rank.is_some() || self.unpartitioned
    }

    /// What all of its blocks are worth.
    pub(super) fn value(&self) -> Value {
        Value { miss: self.value.miss, score: self.value.score }
    }
}

impl ArmShape {
    pub(super) fn of(arm: &Arm) -> ArmShape {
        let parts = arm.parts().iter().map(|part| [part.floor, part.ceiling]).collect();
        ArmShape { kind: arm.kind(), parts, priorities: arm.priorities().to_vec() }
    }

    fn arm(&self, sms: u32) -> Arm {
        let part = |[floor, ceiling]: &[u32; 2]| Part { floor: *floor, ceiling: *ceiling };
        match self.kind {
            ArmKind::Sequential => Arm::sequential(self.parts.len(), sms),
            ArmKind::Streams => Arm::streams(self.parts.len(), sms),
            ArmKind::Priority => Arm::priority(self.priorities.clone(), sms),
            _ => Arm::partition(self.parts.iter().map(part).collect())
                .with_priorities(self.priorities.clone()),
        }
    }
}

impl ArmRecord {
    pub(super) fn of(measured: &Measured) -> ArmRecord {
        let records = |samples: &[Sample]| samples.iter().map(BlockRecord::of).collect();
        ArmRecord {
            arm: ArmShape::of(&measured.arm),
            blocks: records(&measured.beside),
            rounds: records(&measured.rounds),
            skipped: measured.skipped.clone(),
        }
    }
}

impl BlockRecord {
    pub(super) fn of(sample: &Sample) -> BlockRecord {
        let rates = sample.jobs.iter().map(|job| rounded(job.rate)).collect();
        if let Some(round) = median(&sample.rounds_us) {
            let rounds_us = Some((rounded(round), sample.rounds_us.len()));
            return BlockRecord { rates, rounds_us, ..BlockRecord::default() };
        }
        let of_jobs = |share: f64| {
            let percentile = |job: &JobSample| reachable(&job.latencies_us, share).map(rounded);
            sample.jobs.iter().map(percentile).collect()
        };
        let iterations = sample.jobs.iter().map(|job| job.latencies_us.len()).collect();
        let (p50_us, p99_us) = (of_jobs(0.5), of_jobs(PERCENTILE));
        BlockRecord { rates, p50_us, p99_us, iterations, rounds_us: None }
    }
}

/// Five digits: what a timer has to say.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

impl MixFile {
    pub(super) fn new(
        options: &Oracle,
        mix: &Mix,
        device: &Device,
        simulated: bool,
        bed: &dyn Bed,
    ) -> Result<MixFile> {
        let settings = Settings {
            step: options.step,
            passes: options.passes,
            block_ms: options.block_ms,
            budget_s: options.budget,
            tuner_step: options.tuner_step,
            blocks: options.blocks,
            most_blocks: options.most_blocks,
            final_ms: options.final_ms,
        };
        let job = |(name, spec): (String, &String)| JobRecord {
            name,
            spec: spec.clone(),
            rate: 0.0,
            p99_us: 0.0,
            blocks: Vec::new(),
        };
        Ok(MixFile {
            format: FORMAT,
            mix: mix.to_string(),
            machine: Machine::of(device, simulated, &options.commit)?,
            program: bed.about().map(str::to_owned),
            seconds: 0.0,
            pieces: bed.pieces().clone(),
            settings,
            jobs: mix.names().into_iter().zip(mix.jobs()).map(job).collect(),
            arms: Vec::new(),
            combinations: Vec::new(),
        })
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.jobs.iter().map(|job| job.name.as_str()).collect()
    }

    /// An arm, as a person reads it.
    pub(crate) fn describe(&self, arm: &ArmShape) -> String {
        let sms = self.pieces.sms;
        arm.arm(sms).describe(&self.names(), sms)
    }

    /// Writes the file of this mix in a folder. A file that is there is replaced at once and not
    /// written over, so that one of the two is there whatever happens.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(format!("{}.json", self.mix));
        let new = folder.join(format!("{}.json.new", self.mix));
        let text = format!("{}\n", serde_json::to_string(self)?);
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &path))
            .map_err(|error| Failure::from(format!("{}: {error}", path.display())))
    }
}

/// Reads files and folders of files, in the order of their names.
pub(super) fn read_all(paths: &[PathBuf]) -> Result<Vec<MixFile>> {
    let mut files = Vec::new();
    for path in paths {
        let about =
            |error: &dyn std::fmt::Display| Failure::from(format!("{}: {error}", path.display()));
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| about(&error))?;
        let mut found = Vec::new();
        for entry in entries {
            found.push(entry.map_err(|error| about(&error))?.path());
        }
        found.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        found.sort();
        if found.is_empty() {
            return Err(about(&"the folder has no file of a mix"));
        }
        files.append(&mut found);
    }
    files.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<MixFile> {
    let about =
        |error: &dyn std::fmt::Display| Failure::from(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
    let file: MixFile = serde_json::from_str(&text).map_err(|error| about(&error))?;
    if file.format != FORMAT {
        return Err(about(&format!("format {}; this program reads {FORMAT}", file.format)));
    }
    Ok(file)
}

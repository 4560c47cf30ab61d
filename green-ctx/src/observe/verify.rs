//! Verification: a kernel shows on which SMs each partition runs.
//!
//! Each block of the probe kernel writes its SM's id and when it started and ended. An SM holds at most two
//! blocks, each block stays for milliseconds (`DEFAULT_STAY`), and there are twice as many blocks as fit, so
//! every SM of a partition takes part. The driver does not report which SMs a floor has. The probe therefore
//! also runs in a context of the floor's units alone (`divide/resource/floor.rs`), which is recycled like any
//! other.
//!
//! The probe runs in each partition alone, on each floor, and in all partitions together. A partition is
//! verified (`Report::kept`) if
//!
//! - alone, it ran on as many SMs as its ceiling, its floor among them;
//! - together with the others, it ran on all of its floor, and only on SMs that it used alone;
//! - no other partition ran on its floor.
//!
//! Overlap in time is reported but not required: disjoint SMs do not promise concurrency.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::divide::partition::Partition;
use crate::divide::resource::context_of_units;
use crate::handle::context::Context;
use crate::handle::device::{ComputeCapability, Device};
use crate::handle::driver::DriverInfo;
use crate::handle::error::{Error, Result};
use crate::handle::group::SmGroup;
use crate::ledger::{Share, SplitRequest};
use crate::observe::probe::Probe;
use crate::work::stream::{Stream, StreamOptions};

pub use crate::observe::probe::Block;

/// How long each block of the probe stays on its SM, unless asked otherwise.
pub const DEFAULT_STAY: Duration = Duration::from_millis(4);

/// Where partitions ran, as their own blocks saw it: each alone, on its floor, and all at the same time.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, SplitRequest, sim::Sim, verify};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
/// let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
/// assert!(report.ok());
/// assert_eq!(report.partitions[0].floor_sms.len(), 32);
/// assert!(!report.disjoint());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// The driver.
    pub driver: DriverInfo,
    /// The device's ordinal.
    pub ordinal: u32,
    /// The device's name.
    pub device_name: String,
    /// The device's SMs.
    pub sm_count: u32,
    /// The device's compute capability.
    pub compute_capability: ComputeCapability,
    /// The partitions, in the order given.
    pub partitions: Vec<PartitionReport>,
}

/// Where one partition ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PartitionReport {
    /// The partition's name; `primary` or `borrowed` for a context that owns no group.
    pub name: String,
    /// The share asked for; `None` for a context that owns no group.
    pub share: Option<Share>,
    /// The SMs that no other partition may use.
    pub floor: u32,
    /// The SMs that the partition may use: its ceiling.
    pub sm_count: u32,
    /// The ids of the SMs that it ran on alone.
    pub alone_sms: BTreeSet<u32>,
    /// The ids of the SMs of its floor.
    pub floor_sms: BTreeSet<u32>,
    /// Every block that ran while all partitions did, in the grid's order.
    pub blocks: Vec<Block>,
}

impl PartitionReport {
    /// The ids of the SMs that blocks ran on while all partitions did.
    #[must_use]
    pub fn observed_sms(&self) -> BTreeSet<u32> {
        self.blocks.iter().map(|block| block.sm).collect()
    }

    /// When the first block started, in nanoseconds of the device's clock.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.blocks.iter().map(|block| block.start_ns).min().unwrap_or(0)
    }

    /// When the last block ended, in nanoseconds of the device's clock.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.blocks.iter().map(|block| block.end_ns).max().unwrap_or(0)
    }

    /// Whether the partition ran alone on as many SMs as it was given, its floor among them.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.alone_sms.len() == self.sm_count as usize
            && self.floor_sms.len() == self.floor as usize
            && self.floor_sms.is_subset(&self.alone_sms)
    }

    /// Whether it ran beside the others on all of its floor, and only within its ceiling.
    #[must_use]
    pub fn within(&self) -> bool {
        let observed = self.observed_sms();
        self.floor_sms.is_subset(&observed) && observed.is_subset(&self.alone_sms)
    }
}

impl Report {
    /// Whether no SM ran blocks of two partitions. Those that share SMs most often do not.
    #[must_use]
    pub fn disjoint(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.partitions.iter().flat_map(PartitionReport::observed_sms).all(|sm| seen.insert(sm))
    }

    /// Whether there was a time at which every partition was running.
    #[must_use]
    pub fn concurrent(&self) -> bool {
        let last_start = self.partitions.iter().map(PartitionReport::start_ns).max();
        let first_end = self.partitions.iter().map(PartitionReport::end_ns).min();
        last_start < first_end
    }

    /// The ids of a partition's floor on which other partitions ran; none for a number that no partition
    /// has.
    #[must_use]
    pub fn intruded(&self, partition: usize) -> BTreeSet<u32> {
        let Some(owner) = self.partitions.get(partition) else { return BTreeSet::new() };
        let others = self.partitions.iter().enumerate().filter(|(other, _)| *other != partition);
        let others = others.flat_map(|(_, other)| other.observed_sms());
        others.filter(|sm| owner.floor_sms.contains(sm)).collect()
    }

    /// Whether a partition kept to its share and had it: alone it ran on as many SMs as its ceiling,
    /// beside the others only there and on all of its floor, and nobody else on its floor.
    #[must_use]
    pub fn kept(&self, partition: usize) -> bool {
        let part = self.partitions.get(partition);
        part.is_some_and(|part| part.complete() && part.within())
            && self.intruded(partition).is_empty()
    }

    /// Whether no partition ran on another's floor.
    #[must_use]
    pub fn floors_kept(&self) -> bool {
        (0..self.partitions.len()).all(|partition| self.intruded(partition).is_empty())
    }

    /// Whether every partition kept to its share and had it. Time is no part of it: SMs of its own
    /// promise a partition no concurrency.
    #[must_use]
    pub fn ok(&self) -> bool {
        (0..self.partitions.len()).all(|partition| self.kept(partition))
    }
}

/// What is verified.
struct Subject {
    name: String,
    share: Option<Share>,
    floor: u32,
    sm_count: u32,
    context: Context,
    stream: Stream,
    /// The units of its floor, where it has others too.
    floor_units: Vec<usize>,
}

impl Subject {
    fn of_context(context: &Context) -> Result<Subject> {
        let group = context.group();
        let name = context.label().to_owned();
        let share = group.map(SmGroup::share);
        let floor = group.map_or(0, SmGroup::floor);
        let floor_units = group.map_or_else(Vec::new, SmGroup::floor_unit_indices);
        Subject::new(context, name, share, floor, floor_units)
    }

    fn of_partition(part: &Partition) -> Result<Subject> {
        let (name, floor_units) = (part.name().to_owned(), part.floor_unit_indices());
        Subject::new(part.context(), name, Some(part.share()), part.floor(), floor_units)
    }

    fn new(
        context: &Context,
        name: String,
        share: Option<Share>,
        floor: u32,
        floor_units: Vec<usize>,
    ) -> Result<Subject> {
        let stream = context.create_stream(StreamOptions::default())?;
        let sm_count = context.sm_count()?;
        Ok(Subject { name, share, floor, sm_count, context: context.clone(), stream, floor_units })
    }

    /// The SMs of its floor, which only running there shows: in a context of nothing else.
    fn floor_sms(
        &self,
        probe: &Probe,
        alone: &BTreeSet<u32>,
        stay: Duration,
    ) -> Result<BTreeSet<u32>> {
        if self.floor == self.sm_count || self.floor == 0 {
            return Ok(if self.floor == 0 { BTreeSet::new() } else { alone.clone() });
        }
        let context = context_of_units(&self.context, &self.floor_units, self.floor)?;
        let stream = context.create_stream(StreamOptions::default())?;
        let blocks = probe.launch(&stream, self.floor, stay)?.finish()?;
        Ok(sms(&blocks))
    }
}

fn sms(blocks: &[Block]) -> BTreeSet<u32> {
    blocks.iter().map(|block| block.sm).collect()
}

/// Divides a device, and runs the probe in each partition alone and then in all at the same time. The
/// partitions are gone afterwards.
///
/// # Errors
///
/// As [`Device::partition`] and [`partitions`].
pub fn split(device: &Device, request: impl Into<SplitRequest>, stay: Duration) -> Result<Report> {
    partitions(&device.partition(request)?, stay)
}

/// Runs the probe in each partition alone, on the floor of each, and then in all of them at the same time;
/// each block stays for at least `stay`. Of a plan verify the active one.
///
/// # Errors
///
/// [`Error::InvalidRequest`] for no partitions, [`Error::DeviceMismatch`] for partitions of two devices,
/// and [`Error::Driver`].
pub fn partitions<'a>(
    partitions: impl IntoIterator<Item = &'a Partition>,
    stay: Duration,
) -> Result<Report> {
    run(partitions.into_iter().map(Subject::of_partition).collect::<Result<_>>()?, stay)
}

/// As [`partitions`], for contexts. One that owns no group has no floor, and is given the SMs that the
/// driver says.
///
/// # Errors
///
/// As [`partitions`].
pub fn contexts<'a>(
    contexts: impl IntoIterator<Item = &'a Context>,
    stay: Duration,
) -> Result<Report> {
    run(contexts.into_iter().map(Subject::of_context).collect::<Result<_>>()?, stay)
}

fn run(subjects: Vec<Subject>, stay: Duration) -> Result<Report> {
    let Some(first) = subjects.first() else {
        return Err(Error::InvalidRequest("there is nothing to verify".to_owned()));
    };
    let device = first.context.device().clone();
    if subjects.iter().any(|subject| *subject.context.device() != device) {
        return Err(Error::DeviceMismatch { what: "the contexts" });
    }
    let probe = Probe::load(&device)?;
    // Once without staying, so that loading the kernel into each context is over when it counts.
    together(&probe, &subjects, Duration::ZERO)?;
    let mut reports = Vec::with_capacity(subjects.len());
    for subject in &subjects {
        let alone_sms = sms(&probe.launch(&subject.stream, subject.sm_count, stay)?.finish()?);
        let floor_sms = subject.floor_sms(&probe, &alone_sms, stay)?;
        reports.push(PartitionReport {
            name: subject.name.clone(),
            share: subject.share,
            floor: subject.floor,
            sm_count: subject.sm_count,
            alone_sms,
            floor_sms,
            blocks: Vec::new(),
        });
    }
    for (report, blocks) in reports.iter_mut().zip(together(&probe, &subjects, stay)?) {
        report.blocks = blocks;
    }
    Ok(Report {
        driver: device.driver().info(),
        ordinal: device.ordinal(),
        device_name: device.name()?,
        sm_count: device.sm_count()?,
        compute_capability: device.compute_capability()?,
        partitions: reports,
    })
}

/// Launches the probe in every subject before waiting for any.
fn together(probe: &Probe, subjects: &[Subject], stay: Duration) -> Result<Vec<Vec<Block>>> {
    let running = subjects
        .iter()
        .map(|subject| probe.launch(&subject.stream, subject.sm_count, stay))
        .collect::<Result<Vec<_>>>()?;
    running.into_iter().map(|probe| probe.finish()).collect()
}

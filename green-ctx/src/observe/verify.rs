//! Verification: running a kernel that reports its SMs, to prove where partitions run.
//!
//! Each block of the probe kernel writes its SM's id, and the times at which it started and ended. An SM holds at
//! most two blocks, each block stays for milliseconds ([`DEFAULT_STAY`]), and there are twice as many blocks as fit.
//! So every SM of a partition runs blocks of the probe. The driver does not report which SMs belong to a floor. The
//! probe therefore also runs in a context that consists of the floor's units only.
//!
//! The probe runs in each partition alone, on each floor, and in all partitions together. A partition passes the
//! verification ([`Report::kept`]) if these statements are true:
//!
//! - In the run alone, the partition used as many SMs as its ceiling, including its whole floor.
//! - In the run together with the others, the partition used its whole floor, and only SMs that it had used in the
//!   run alone.
//! - No other partition ran on the floor of this partition.
//!
//! Overlap in time is reported but not required: disjoint SMs do not promise concurrency.
//!
//! Under a [reserve](crate::guide::reserve), the probe also runs in the primary context. The report lists it last, as
//! `work outside of partitions`, so a floor that such work could use does not pass.
//!
//! # Examples
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use green_ctx::{Driver, sim::Sim, verify};
//! # let driver = Driver::simulated(&Sim::new("h200")?)?;
//! # let device = driver.device(0)?;
//! let parts = device.partition([32, 64])?;
//! let report = verify::partitions(&parts, verify::DEFAULT_STAY)?;
//! assert!(report.ok() && report.disjoint());
//! assert_eq!(report.partitions[1].observed_sms().len(), 64);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use crate::divide::partition::Partition;
use crate::divide::resource::context_of_units;
use crate::handle::context::Context;
use crate::handle::device::{ComputeCapability, Device};
use crate::handle::driver::DriverInfo;
use crate::handle::error::{Error, Result};
use crate::handle::group::SmGroup;
use crate::ledger::{Share, SplitRequest, UNBOUND};
use crate::observe::probe::Probe;
use crate::work::stream::{Stream, StreamOptions};

pub use crate::observe::probe::Block;

/// The default time for which each block of the probe stays on its SM.
pub const DEFAULT_STAY: Duration = Duration::from_millis(4);

/// The result of a verification: the SMs that each partition used alone, on its floor, and together with the
/// others.
///
/// # Examples
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
    /// The driver's version and origin.
    pub driver: DriverInfo,
    /// The device's ordinal.
    pub ordinal: u32,
    /// The device's name.
    pub device_name: String,
    /// The device's SMs.
    pub sm_count: u32,
    /// The device's compute capability.
    pub compute_capability: ComputeCapability,
    /// The partitions, in the order in which they were passed. Under a reserve, work outside of partitions is last,
    /// unless it was passed.
    pub partitions: Vec<PartitionReport>,
}

/// The SMs that one partition used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PartitionReport {
    /// The partition's name. The name is `primary` or `borrowed` for a context that owns no group, and
    /// `work outside of partitions` for the primary context under a reserve.
    pub name: String,
    /// The partition's share. `None` for a context that owns no group.
    pub share: Option<Share>,
    /// The partition's floor, in SMs.
    pub floor: u32,
    /// The partition's ceiling, in SMs.
    pub sm_count: u32,
    /// The ids of the SMs that the partition used while it ran alone.
    pub alone_sms: BTreeSet<u32>,
    /// The ids of the SMs of the partition's floor.
    pub floor_sms: BTreeSet<u32>,
    /// The blocks that ran while all partitions ran, in the grid's order.
    pub blocks: Vec<Block>,
}

impl PartitionReport {
    /// Returns the ids of the SMs that the partition used while all partitions ran.
    #[must_use]
    pub fn observed_sms(&self) -> BTreeSet<u32> {
        self.blocks.iter().map(|block| block.sm).collect()
    }

    /// Returns the time at which the first block started, in nanoseconds of the device's clock.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.blocks.iter().map(|block| block.start_ns).min().unwrap_or(0)
    }

    /// Returns the time at which the last block ended, in nanoseconds of the device's clock.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.blocks.iter().map(|block| block.end_ns).max().unwrap_or(0)
    }

    /// Returns whether the partition, in the run alone, used as many SMs as its ceiling, including its whole floor.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.alone_sms.len() == self.sm_count as usize
            && self.floor_sms.len() == self.floor as usize
            && self.floor_sms.is_subset(&self.alone_sms)
    }

    /// Returns whether the partition, in the run together with the others, used its whole floor, and only SMs that it
    /// had used in the run alone.
    #[must_use]
    pub fn within(&self) -> bool {
        let observed = self.observed_sms();
        self.floor_sms.is_subset(&observed) && observed.is_subset(&self.alone_sms)
    }
}

impl Report {
    /// Returns the entry of [`partitions`](Report::partitions) for work outside of partitions. Returns `None` without a
    /// reserve.
    #[must_use]
    pub fn rest(&self) -> Option<&PartitionReport> {
        self.partitions.iter().find(|part| part.share.is_none() && part.name == UNBOUND)
    }

    /// Returns whether each SM ran blocks of only one partition. Partitions that share SMs usually are not
    /// disjoint.
    #[must_use]
    pub fn disjoint(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.partitions.iter().flat_map(PartitionReport::observed_sms).all(|sm| seen.insert(sm))
    }

    /// Returns whether all partitions were running at the same moment.
    #[must_use]
    pub fn concurrent(&self) -> bool {
        let last_start = self.partitions.iter().map(PartitionReport::start_ns).max();
        let first_end = self.partitions.iter().map(PartitionReport::end_ns).min();
        last_start < first_end
    }

    /// Returns the ids of the SMs of a partition's floor on which other partitions ran. `partition` is an index into
    /// [`partitions`](Report::partitions). If there is no such partition, the result is empty.
    #[must_use]
    pub fn intruded(&self, partition: usize) -> BTreeSet<u32> {
        let Some(owner) = self.partitions.get(partition) else { return BTreeSet::new() };
        let others = self.partitions.iter().enumerate().filter(|(other, _)| *other != partition);
        let others = others.flat_map(|(_, other)| other.observed_sms());
        others.filter(|sm| owner.floor_sms.contains(sm)).collect()
    }

    /// Returns whether a partition stayed within its share and received the whole share. This is the case if
    /// [`complete`](PartitionReport::complete) and [`within`](PartitionReport::within) are true for the partition,
    /// and if no other partition ran on the partition's floor.
    #[must_use]
    pub fn kept(&self, partition: usize) -> bool {
        let part = self.partitions.get(partition);
        part.is_some_and(|part| part.complete() && part.within())
            && self.intruded(partition).is_empty()
    }

    /// Returns whether no partition ran on the floor of another partition.
    #[must_use]
    pub fn floors_kept(&self) -> bool {
        (0..self.partitions.len()).all(|partition| self.intruded(partition).is_empty())
    }

    /// Returns whether every partition passed the verification ([`kept`](Report::kept)). Timing is not checked:
    /// disjoint SMs do not promise concurrency.
    #[must_use]
    pub fn ok(&self) -> bool {
        (0..self.partitions.len()).all(|partition| self.kept(partition))
    }
}

/// A partition or a context to verify, for [`subjects`].
#[derive(Debug)]
pub struct Subject {
    name: String,
    share: Option<Share>,
    floor: u32,
    sm_count: u32,
    context: Context,
    stream: Stream,
    /// The indices of the units of the floor.
    floor_units: Vec<usize>,
}

impl Subject {
    /// Creates the subject for a context. A context that owns no group has no floor. If several plans share the
    /// context, the subject has the floor of the plan that was prepared first. For a partition of a plan, use
    /// [`partition`](Subject::partition).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver cannot create another stream in the context.
    pub fn context(context: &Context) -> Result<Subject> {
        let group = context.group();
        let name = context.rest()?.map_or(context.label(), |_| UNBOUND).to_owned();
        let share = group.map(SmGroup::share);
        let floor = group.map_or(0, SmGroup::floor);
        let floor_units = group.map_or_else(Vec::new, SmGroup::floor_unit_indices);
        Subject::new(context, name, share, floor, floor_units)
    }

    /// Creates the subject for a partition.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver cannot create another stream in the partition.
    pub fn partition(part: &Partition) -> Result<Subject> {
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

    /// Returns the ids of the floor's SMs. If the floor is neither empty nor equal to the ceiling, the probe runs in
    /// a context that consists of the floor's units only, to find these SMs.
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

/// Partitions a device and verifies the partitions, as [`partitions`] does. The partitions are closed afterwards.
///
/// # Errors
///
/// The errors are those of [`Device::partition`] and [`partitions`].
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, sim::Sim, verify};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let report = verify::split(&device, [16, 24], verify::DEFAULT_STAY)?;
/// assert!((0..2).all(|partition| report.kept(partition)));
/// # Ok(())
/// # }
/// ```
pub fn split(device: &Device, request: impl Into<SplitRequest>, stay: Duration) -> Result<Report> {
    partitions(&device.partition(request)?, stay)
}

/// Runs the probe in each partition alone, on the floor of each, and in all partitions at the same time. Each block
/// stays on its SM for at least `stay`. If the partitions belong to a plan set, pass only the partitions of the
/// active plan.
///
/// # Errors
///
/// [`Error::InvalidRequest`] if there are no partitions. [`Error::DeviceMismatch`] if the partitions are on different
/// devices. [`Error::Driver`] if a driver call fails.
pub fn partitions<'a>(
    partitions: impl IntoIterator<Item = &'a Partition>,
    stay: Duration,
) -> Result<Report> {
    subjects(partitions.into_iter().map(Subject::partition).collect::<Result<_>>()?, stay)
}

/// Verifies contexts, as [`partitions`] does. A context that owns no group has no floor, and its ceiling is the
/// number of SMs that the driver reports.
///
/// # Errors
///
/// As for [`partitions`].
pub fn contexts<'a>(
    contexts: impl IntoIterator<Item = &'a Context>,
    stay: Duration,
) -> Result<Report> {
    subjects(contexts.into_iter().map(Subject::context).collect::<Result<_>>()?, stay)
}

/// Verifies partitions and contexts together, as [`partitions`] does.
///
/// # Errors
///
/// As for [`partitions`].
pub fn subjects(mut subjects: Vec<Subject>, stay: Duration) -> Result<Report> {
    let Some(first) = subjects.first() else {
        let problem = "there is nothing to verify; pass at least one partition or context";
        return Err(Error::InvalidRequest(problem.to_owned()));
    };
    let device = first.context.device().clone();
    if subjects.iter().any(|subject| *subject.context.device() != device) {
        return Err(Error::DeviceMismatch { what: "the contexts" });
    }
    if device.unbound()?.is_some() {
        let rest = device.primary_context()?;
        if subjects.iter().all(|subject| subject.context != rest) {
            subjects.push(Subject::context(&rest)?);
        }
    }
    let probe = Probe::load(&device)?;
    // A first run with no stay loads the kernel into each context, so that loading does not delay the measured
    // runs.
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

/// Launches the probe in every subject, and only then waits for the results.
fn together(probe: &Probe, subjects: &[Subject], stay: Duration) -> Result<Vec<Vec<Block>>> {
    let running = subjects
        .iter()
        .map(|subject| probe.launch(&subject.stream, subject.sm_count, stay))
        .collect::<Result<Vec<_>>>()?;
    running.into_iter().map(|probe| probe.finish()).collect()
}

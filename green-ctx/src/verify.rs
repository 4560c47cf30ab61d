//! Verification: a kernel proves where each partition runs.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::context::Context;
use crate::device::{ComputeCapability, Device};
use crate::driver::DriverInfo;
use crate::error::{Error, Result};
use crate::ledger::SplitRequest;
use crate::probe::{Block, Probe};
use crate::stream::{Stream, StreamOptions};

/// How long each block of the probe stays on its SM, unless asked otherwise.
pub const DEFAULT_STAY: Duration = Duration::from_millis(4);

/// Where partitions ran, as their own blocks saw it.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use green_ctx::{Driver, SplitRequest, sim::Sim, verify};
/// # let driver = Driver::simulated(&Sim::new("h200")?)?;
/// # let device = driver.device(0)?;
/// let request = SplitRequest::from([16, 24]).rest("remainder");
/// let report = verify::split(&device, request, verify::DEFAULT_STAY)?;
/// assert!(report.ok());
/// assert_eq!(report.partitions[2].sm_count, 92);
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
    /// The SMs asked for; `None` for a remainder.
    pub requested: Option<u32>,
    /// The SMs that the partition was given.
    pub sm_count: u32,
    /// Every block that ran, in the grid's order.
    pub blocks: Vec<Block>,
}

impl PartitionReport {
    /// The ids of the SMs that blocks ran on.
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

    /// Whether the partition ran on as many SMs as it was given.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.observed_sms().len() == self.sm_count as usize
    }
}

impl Report {
    /// Whether no SM ran blocks of two partitions.
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

    /// Whether every partition ran on its own SMs, all of them and only there. Time is no part of
    /// it: disjoint SMs promise no concurrency.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.disjoint() && self.partitions.iter().all(PartitionReport::complete)
    }
}

/// Splits a device, makes the partitions, and runs the probe in all of them at the same time. The
/// partitions are gone afterwards.
///
/// # Errors
///
/// As [`SmResource::split`](crate::SmResource::split),
/// [`Device::create_context`] and [`partitions`].
pub fn split(device: &Device, request: impl Into<SplitRequest>, stay: Duration) -> Result<Report> {
    let split = device.resources().sm()?.split(request)?;
    let contexts: Vec<Context> = split
        .groups
        .into_iter()
        .chain(split.remainder)
        .map(|group| device.create_context(group))
        .collect::<Result<_, _>>()?;
    partitions(&contexts, stay)
}

/// Runs the probe in all contexts at the same time; each block stays for at least `stay`.
///
/// # Errors
///
/// [`Error::InvalidRequest`] for no contexts, [`Error::DeviceMismatch`] for contexts of two devices,
/// and [`Error::Driver`].
pub fn partitions(contexts: &[Context], stay: Duration) -> Result<Report> {
    let Some(first) = contexts.first() else {
        return Err(Error::InvalidRequest("there is nothing to verify".to_owned()));
    };
    let device = first.device();
    if contexts.iter().any(|context| context.device() != device) {
        return Err(Error::DeviceMismatch { what: "the contexts" });
    }
    let probe = Probe::load(device)?;
    let lanes: Vec<(Stream, u32)> = contexts
        .iter()
        .map(|context| Ok((context.create_stream(StreamOptions::default())?, context.sm_count()?)))
        .collect::<Result<_>>()?;
    // Once without staying, so that loading the kernel into each context is over when it counts.
    run(&probe, &lanes, Duration::ZERO)?;
    let blocks = run(&probe, &lanes, stay)?;

    let partitions = contexts.iter().zip(&lanes).zip(blocks);
    Ok(Report {
        driver: device.driver().info(),
        ordinal: device.ordinal(),
        device_name: device.name()?,
        sm_count: device.sm_count()?,
        compute_capability: device.compute_capability()?,
        partitions: partitions
            .map(|((context, (_, sm_count)), blocks)| PartitionReport {
                name: context.label().to_owned(),
                requested: context.group().and_then(|group| group.requested()),
                sm_count: *sm_count,
                blocks,
            })
            .collect(),
    })
}

/// Launches the probe on every stream before waiting for any.
fn run(probe: &Probe, lanes: &[(Stream, u32)], stay: Duration) -> Result<Vec<Vec<Block>>> {
    let running = lanes
        .iter()
        .map(|(stream, sm_count)| probe.launch(stream, *sm_count, stay))
        .collect::<Result<Vec<_>>>()?;
    running.into_iter().map(|probe| probe.finish()).collect()
}

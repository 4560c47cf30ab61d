//! The streams and partitions that a verdict recommends.

use std::collections::BTreeMap;

use green_ctx::{Device, Partitions, Result, Stream, StreamOptions};

use crate::arm::ArmKind;
use crate::outcome::Outcome;

/// The streams and partitions that a verdict recommends. [`Outcome::apply`] creates them.
///
/// If the verdict is to partition, the partitions exist until this value is dropped.
#[derive(Debug)]
pub struct Applied {
    kind: ArmKind,
    streams: BTreeMap<String, Stream>,
    partitions: Option<Partitions>,
}

impl Applied {
    pub(crate) fn new(outcome: &Outcome, device: &Device) -> Result<Applied> {
        let kind = outcome.verdict.kind;
        let plain = |priority| {
            let options = StreamOptions::default().priority(priority);
            device.primary_context()?.create_stream(options)
        };
        let shared = (kind == ArmKind::Sequential).then(|| plain(0)).transpose()?;
        let is_partition = kind == ArmKind::Partition;
        let partitions = is_partition.then(|| outcome.partitions(device)).transpose()?;
        let stream = |name: &str| match (&partitions, &shared) {
            (Some(partitions), _) => Ok(partitions[name].stream().clone()),
            (None, Some(shared)) => Ok(shared.clone()),
            (None, None) => plain(outcome.verdict.priority.get(name).copied().unwrap_or(0)),
        };
        let names = outcome.jobs.iter().map(|job| job.name.clone());
        let streams =
            names.map(|name| Ok((name.clone(), stream(&name)?))).collect::<Result<_>>()?;
        Ok(Applied { kind, streams, partitions })
    }

    /// Returns the kind of the recommended arm.
    #[must_use]
    pub fn kind(&self) -> ArmKind {
        self.kind
    }

    /// Returns the stream that a job should submit to; `None` if there is no job of this name.
    #[must_use]
    pub fn stream(&self, job: &str) -> Option<&Stream> {
        self.streams.get(job)
    }

    /// Returns the partitions; `None` if the verdict is not to partition.
    #[must_use]
    pub fn partitions(&self) -> Option<&Partitions> {
        self.partitions.as_ref()
    }
}

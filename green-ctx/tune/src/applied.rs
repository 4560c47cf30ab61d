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
        let names = || outcome.jobs.iter().map(|job| job.name.clone());
        if kind == ArmKind::Partition {
            let partitions = outcome.partitions(device)?;
            let stream = |name: String| {
                let stream = partitions[name.as_str()].stream().clone();
                (name, stream)
            };
            let streams = names().map(stream).collect();
            return Ok(Applied { kind, streams, partitions: Some(partitions) });
        }
        let primary = device.primary_context()?;
        let stream = |name: &str| {
            let priority = outcome.verdict.priority.get(name).copied().unwrap_or(0);
            primary.create_stream(StreamOptions::default().priority(priority))
        };
        let streams = match kind {
            ArmKind::Sequential => {
                let one = primary.create_stream(StreamOptions::default())?;
                names().map(|name| (name, one.clone())).collect()
            }
            _ => names()
                .map(|name| stream(&name).map(|stream| (name, stream)))
                .collect::<Result<_>>()?,
        };
        Ok(Applied { kind, streams, partitions: None })
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

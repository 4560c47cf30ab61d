//! How fast a part sets and copies its memory.

/// How fast memory is set and copied on a device. SMs do that work, so its speed depends on how many
/// take part. Copies between host and device do not need SMs and have no rate here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRates {
    /// Memsets, in bytes written.
    pub memset: TransferRate,
    /// A stream's copies from device memory to device memory, in bytes copied.
    pub copy: TransferRate,
    /// The same copies as nodes of a graph.
    pub graph_copy: TransferRate,
}

/// How many bytes SMs transfer in a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRate {
    /// What one SM transfers.
    pub per_sm: u64,
    /// What the memory allows, however many SMs take part.
    pub limit: u64,
}

impl TransferRate {
    /// What so many SMs transfer together, in bytes per microsecond.
    pub(crate) fn with(self, sms: usize) -> u64 {
        (self.per_sm * sms as u64).clamp(1, self.limit)
    }
}

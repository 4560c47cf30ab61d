//! The speed of memsets and copies within a device.

/// The speed of memsets and copies within a device. SMs do this work, so the speed depends on the number of
/// SMs in the context. Copies between host and device need no SMs and have no rate here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRates {
    /// The rate of memsets, in bytes written.
    pub memset: TransferRate,
    /// The rate of a stream's copies within device memory, in bytes copied.
    pub copy: TransferRate,
    /// The rate of the same copies as nodes of a graph.
    pub graph_copy: TransferRate,
}

/// A transfer rate, in bytes per microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRate {
    /// The rate of one SM.
    pub per_sm: u64,
    /// The limit of the memory, reached with many SMs.
    pub limit: u64,
}

impl TransferRate {
    /// Returns the rate of `sms` SMs together, in bytes per microsecond.
    pub(crate) fn with(self, sms: usize) -> u64 {
        (self.per_sm * sms as u64).clamp(1, self.limit)
    }
}

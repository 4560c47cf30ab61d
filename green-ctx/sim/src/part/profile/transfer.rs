//! The speed of memsets and copies within a device.

/// The speed of memsets and copies within a device. SMs do this work, so the speed depends on the number of
/// SMs in the context. Copies between host and device need no SMs, so this struct has no rate for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRates {
    /// The rate of memsets, counted in written bytes.
    pub memset: TransferRate,
    /// The rate of copies within device memory in a stream, counted in copied bytes.
    pub copy: TransferRate,
    /// The rate of copies within device memory that are nodes of a graph.
    pub graph_copy: TransferRate,
}

/// A transfer rate, in bytes per microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRate {
    /// The rate of one SM.
    pub per_sm: u64,
    /// The maximum rate, which is limited by the device memory.
    pub limit: u64,
}

impl TransferRate {
    /// Returns the combined rate of `sms` SMs, in bytes per microsecond.
    pub(crate) fn with(self, sms: usize) -> u64 {
        (self.per_sm * sms as u64).clamp(1, self.limit)
    }
}

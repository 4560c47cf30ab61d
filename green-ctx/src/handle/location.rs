//! Descriptions of where work runs.

use std::fmt;

/// The context that work runs in, and the number of its SMs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Location {
    /// The device's ordinal.
    pub device: u32,
    /// The name of the partition's group, `primary` for the primary context, or `borrowed` for a context that this
    /// crate did not create.
    pub context: String,
    /// The identifier of the context, as returned by [`Context::id`](crate::context::Context::id).
    pub context_id: u64,
    /// The number of SMs in the context.
    pub sm_count: u32,
    /// True if the context is a green context that this crate did not create. The SMs of such a context are in no
    /// ledger, so they may be part of the floor of any partition.
    pub foreign: bool,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SMs of {} (device {})", self.sm_count, self.context, self.device)?;
        if self.foreign { f.write_str(", perhaps on the floors of partitions") } else { Ok(()) }
    }
}

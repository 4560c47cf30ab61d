//! Where work runs, in a form that can be written down.

use std::fmt;

/// The SMs that work may use: those of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Location {
    /// The device's number.
    pub device: u32,
    /// The name of the partition's group; `primary` for the primary context, and `borrowed` for one
    /// that this crate did not make.
    pub context: String,
    /// The context's number, as [`Context::id`](crate::context::Context::id) gives it.
    pub context_id: u64,
    /// The context's SMs.
    pub sm_count: u32,
    /// Whether it is a green context that this crate did not make. Its SMs are in no ledger, so they may be those
    /// of any partition's floor.
    pub foreign: bool,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SMs of {} (device {})", self.sm_count, self.context, self.device)?;
        if self.foreign { f.write_str(", perhaps on the floors of partitions") } else { Ok(()) }
    }
}

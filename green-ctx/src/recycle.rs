//! Recycling: driver contexts that nobody uses, kept for whoever asks for their SMs next.
//!
//! Making a context takes 800 µs and 4 to 5 MiB of device memory, and destroying it gives no memory
//! back (measured on an H200, driver 580.159.04). So the last handle of a partition leaves the
//! driver's context here, and the next partition of the same SMs gets it for the price of a look-up.

use green_ctx_sys::{CUctx_st, CUgreenCtx_st};

use crate::raw::Raw;
use crate::resource::{Cut, WorkqueueConfig};

/// A driver's green context with the handle that other calls take.
#[derive(Clone, Copy)]
pub(crate) struct RawGreen {
    pub(crate) green: Raw<CUgreenCtx_st>,
    pub(crate) context: Raw<CUctx_st>,
}

/// Which SMs a context runs on: units of a device that was cut in some way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) cut: Cut,
    /// The units' indices, in order.
    pub(crate) members: Vec<usize>,
}

/// How many idle contexts a device keeps unless told otherwise.
const DEFAULT_LIMIT: usize = 64;

/// One device's idle contexts, oldest first. Pure bookkeeping, no driver call: whoever takes a
/// context out owns it.
pub(crate) struct Recycler {
    idle: Vec<Idle>,
    limit: usize,
    created: u64,
    reused: u64,
}

/// A context that nobody uses, and what it was made of.
pub(crate) struct Idle {
    pub(crate) place: Place,
    pub(crate) workqueue: Option<WorkqueueConfig>,
    pub(crate) sm_count: u32,
    pub(crate) raw: RawGreen,
}

/// How many contexts a device has made, and how often one was used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ContextCounts {
    /// Green contexts that the driver created. Each costs about 800 µs and 4 to 5 MiB of device
    /// memory, which no destruction gives back (measured on an H200, driver 580.159.04).
    pub created: u64,
    /// Partitions that got a context which another one had left.
    pub reused: u64,
    /// Contexts that wait to be used again.
    pub idle: usize,
}

impl Default for Recycler {
    fn default() -> Recycler {
        Recycler { idle: Vec::new(), limit: DEFAULT_LIMIT, created: 0, reused: 0 }
    }
}

impl Recycler {
    /// The idle context of exactly these SMs and this workqueue, if there is one.
    pub(crate) fn take(
        &mut self,
        place: &Place,
        workqueue: Option<WorkqueueConfig>,
    ) -> Option<RawGreen> {
        let fits = |idle: &Idle| idle.place == *place && idle.workqueue == workqueue;
        let index = self.idle.iter().position(fits)?;
        self.reused += 1;
        Some(self.idle.remove(index).raw)
    }

    /// Keeps a context. Returns those to destroy, the oldest, where there are more than the limit.
    pub(crate) fn put(&mut self, idle: Idle) -> Vec<RawGreen> {
        self.idle.push(idle);
        self.overflow()
    }

    /// Sets how many contexts are kept. Returns those to destroy.
    pub(crate) fn set_limit(&mut self, limit: usize) -> Vec<RawGreen> {
        self.limit = limit;
        self.overflow()
    }

    /// Takes all contexts out, to be destroyed.
    pub(crate) fn drain(&mut self) -> Vec<RawGreen> {
        self.idle.drain(..).map(|idle| idle.raw).collect()
    }

    /// The units of an idle context of this count that are all free, if there is one.
    pub(crate) fn prefer(&self, cut: &Cut, sm_count: u32, free: &[bool]) -> Option<&[usize]> {
        self.idle
            .iter()
            .filter(|idle| idle.sm_count == sm_count && idle.place.cut == *cut)
            .map(|idle| idle.place.members.as_slice())
            .find(|members| members.iter().all(|index| free[*index]))
    }

    pub(crate) fn count_created(&mut self) {
        self.created += 1;
    }

    pub(crate) fn counts(&self) -> ContextCounts {
        ContextCounts { created: self.created, reused: self.reused, idle: self.idle.len() }
    }

    fn overflow(&mut self) -> Vec<RawGreen> {
        let surplus = self.idle.len().saturating_sub(self.limit);
        self.idle.drain(..surplus).map(|idle| idle.raw).collect()
    }
}

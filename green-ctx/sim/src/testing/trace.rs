//! What was launched.

use std::sync::Arc;

use crate::clock::{Tick, VectorClock};

/// One launch of a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Launch {
    /// The kernel's name.
    pub kernel: Arc<str>,
    /// The device that it ran on.
    pub device: usize,
    /// The id of its stream, as `cuStreamGetId` gives it.
    pub stream: u64,
    /// The id of its context, as `cuCtxGetId` gives it.
    pub context: u64,
    /// Whether that context is a green one.
    pub is_green: bool,
    /// The ids of the SMs that its blocks ran on, ascending.
    pub sms: Arc<[u32]>,
    /// The grid, in blocks.
    pub grid: [u32; 3],
    /// A block, in threads.
    pub block: [u32; 3],
    /// When it began, in virtual nanoseconds.
    pub start_ns: u64,
    /// When it ended, in virtual nanoseconds.
    pub end_ns: u64,
    /// Of which launch of a graph it was part: such launches are counted from 1.
    pub graph_launch: Option<u64>,
    pub(crate) tick: Tick,
    pub(crate) clock: VectorClock,
}

impl Launch {
    /// Whether this launch was certain to have ended before `other` began: there is a path from one
    /// to the other by stream order, events, the edges of a graph, or the waiting of the launching
    /// thread.
    ///
    /// How the program's own threads synchronize is not seen: of two threads, one that waited
    /// for a stream and one that launches later, only the first is known to have waited.
    #[must_use]
    pub fn happens_before(&self, other: &Launch) -> bool {
        self.tick != other.tick && other.clock.knows(&self.tick)
    }

    /// Whether both ran at the same time, in virtual time.
    #[must_use]
    pub fn overlaps(&self, other: &Launch) -> bool {
        self.start_ns < other.end_ns && other.start_ns < self.end_ns
    }
}

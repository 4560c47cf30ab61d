//! Records of kernel launches.

use std::sync::Arc;

use crate::clock::{Tick, VectorClock};

/// One launch of a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Launch {
    /// The kernel's name.
    pub kernel: Arc<str>,
    /// The index of the device that the kernel ran on.
    pub device: usize,
    /// The id of the launch's stream, as `cuStreamGetId` returns it.
    pub stream: u64,
    /// The id of the launch's context, as `cuCtxGetId` returns it.
    pub context: u64,
    /// Whether the context is a green context.
    pub is_green: bool,
    /// The number of SMs of the context.
    pub context_sms: u32,
    /// The ids of the SMs on which the kernel's blocks ran, in ascending order.
    pub sms: Arc<[u32]>,
    /// The size of the grid, in blocks.
    pub grid: [u32; 3],
    /// The size of a block, in threads.
    pub block: [u32; 3],
    /// The start, in virtual nanoseconds.
    pub start_ns: u64,
    /// The end, in virtual nanoseconds.
    pub end_ns: u64,
    /// The number of the graph launch that this kernel launch belongs to, counted from 1; `None` if the
    /// kernel was not launched by a graph.
    pub graph_launch: Option<u64>,
    pub(crate) tick: Tick,
    pub(crate) clock: VectorClock,
}

impl Launch {
    /// Returns whether this launch certainly ended before `other` began. This is the case if a chain of
    /// stream order, events, graph edges or waits of the launching thread leads from this launch to
    /// `other`.
    ///
    /// The simulator does not see how the program's threads synchronise with each other. If one thread
    /// waits for a stream and another thread launches afterwards, the wait does not order the second
    /// thread's launch.
    ///
    /// The documentation of [`Sim::launches`](crate::Sim::launches) contains an example.
    #[must_use]
    pub fn happens_before(&self, other: &Launch) -> bool {
        self.tick != other.tick && other.clock.knows(&self.tick)
    }

    /// Returns whether this launch and `other` overlapped in virtual time.
    #[must_use]
    pub fn overlaps(&self, other: &Launch) -> bool {
        self.start_ns < other.end_ns && other.start_ns < self.end_ns
    }
}

//! Counts of the objects that a program has not released.

use crate::memory::Allocation;
use crate::state::State;

/// The number of existing objects in a simulated driver. [`Live::default`] means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// Calls of `cuDevicePrimaryCtxRetain` without a matching release.
    pub primary_retains: u64,
    /// Contexts from `cuCtxCreate` that were not destroyed.
    pub contexts: u64,
    /// Green contexts that were not destroyed.
    pub green_contexts: u64,
    /// Streams that were not destroyed. Streams of destroyed green contexts count too, because the driver
    /// leaks them.
    pub streams: u64,
    /// Events that were not destroyed.
    pub events: u64,
    /// Libraries that were not unloaded.
    pub libraries: u64,
    /// Modules that were not unloaded, not counting modules that libraries loaded.
    pub modules: u64,
    /// Graphs that were not destroyed, not counting child graphs and graphs under capture.
    pub graphs: u64,
    /// Executable graphs that were not destroyed.
    pub graph_executables: u64,
    /// Allocations of device memory that were not freed.
    pub allocations: u64,
    /// The total size of the device memory that was not freed, in bytes.
    pub allocated_bytes: u64,
    /// Page-locked host allocations and registrations that were not freed or unregistered.
    pub host_allocations: u64,
    /// Memory pools that were not destroyed.
    pub memory_pools: u64,
}

impl State {
    pub(crate) fn live(&self) -> Live {
        let standing = |memory: &&Allocation| !memory.freed && !memory.on_host();
        Live {
            primary_retains: self.devices[..self.ordinals]
                .iter()
                .map(|device| u64::from(device.retains))
                .sum(),
            contexts: self.created() as u64,
            green_contexts: self.devices.iter().map(|device| device.greens.len() as u64).sum(),
            streams: self.streams.values().filter(|stream| stream.counted).count() as u64,
            events: self.events.values().filter(|event| event.counted).count() as u64,
            libraries: self.libraries.len() as u64,
            modules: self.modules.values().filter(|module| !module.of_library).count() as u64,
            graphs: self.graphs.values().filter(|graph| graph.is_of_program()).count() as u64,
            graph_executables: self.executables.len() as u64,
            allocations: self.memory.values().filter(standing).count() as u64,
            allocated_bytes: {
                self.memory.values().filter(standing).map(|memory| memory.len() as u64).sum()
            },
            host_allocations: self.memory.values().filter(|memory| memory.on_host()).count() as u64,
            memory_pools: self.pools.live(),
        }
    }
}

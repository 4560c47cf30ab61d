//! What a simulated part is: data read off hardware and sheets, one file a part.

mod h200;

pub(crate) use h200::H200;

use crate::topology::Topology;

/// A GPU that can be simulated.
///
/// # Example
///
/// ```
/// use green_ctx_sim::Profile;
///
/// let profile = Profile::by_name("h200").expect("it is built in");
/// assert_eq!(profile.device_name, "NVIDIA H200");
/// assert_eq!(profile.topology.sm_count, 132);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Profile {
    /// The name that a [`Spec`](crate::Spec) uses.
    pub name: &'static str,
    /// The name that `cuDeviceGetName` returns.
    pub device_name: &'static str,
    /// Which driver's answers are played; the crate's documentation says what is not recorded.
    pub provenance: &'static str,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Device memory that an active primary context takes, in bytes.
    pub primary_context_bytes: u64,
    /// Device memory that each green context takes and its destruction does not give back, in
    /// bytes.
    pub green_context_bytes: u64,
    /// How the SMs are numbered and grouped.
    pub topology: Topology,
    /// The smallest partition that the driver states, in SMs.
    pub min_partition: u32,
    /// The multiple of SMs that the driver states for partitions.
    pub alignment: u32,
    /// The largest cluster that runs without opting in, in blocks.
    pub max_cluster: u32,
    /// How many stream-ordered workloads the workqueues of a device are for, unless told otherwise.
    pub workqueue_limit: u32,
    /// The stream priorities, from the least to the greatest.
    pub stream_priorities: (i32, i32),
    /// Device attributes by number; the other known attributes are 0. Attributes that follow from
    /// another field are left out.
    pub attributes: &'static [(u32, i32)],
}

impl Profile {
    /// Every profile, in the order of their names.
    #[must_use]
    pub fn all() -> &'static [Profile] {
        static ALL: [Profile; 1] = [H200];
        &ALL
    }

    /// The profile of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        Profile::all().iter().find(|profile| profile.name == name)
    }

    /// The names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Profile::all().iter().map(|profile| profile.name)
    }

    /// A device attribute by number, `None` for a number that no driver knows.
    pub(crate) fn attribute(&self, attribute: u32) -> Option<i32> {
        let known = match attribute {
            attribute::MULTIPROCESSOR_COUNT => self.topology.sm_count as i32,
            attribute::COMPUTE_CAPABILITY_MAJOR => self.compute_capability.0 as i32,
            attribute::COMPUTE_CAPABILITY_MINOR => self.compute_capability.1 as i32,
            1..=attribute::LAST => {
                let listed = self.attributes.iter().find(|(number, _)| *number == attribute);
                listed.map_or(0, |(_, value)| *value)
            }
            _ => return None,
        };
        Some(known)
    }

    /// How many blocks of this shape one SM holds at a time.
    pub(crate) fn blocks_per_sm(&self, threads: u32, shared_bytes: u64) -> u32 {
        let limit = |number| self.attribute(number).unwrap_or(0).max(0) as u64;
        let warp = limit(attribute::WARP_SIZE).max(1);
        let threads = u64::from(threads.max(1)).div_ceil(warp) * warp;
        let by_threads = limit(attribute::MAX_THREADS_PER_MULTIPROCESSOR) / threads;
        let reserved = limit(attribute::RESERVED_SHARED_MEMORY_PER_BLOCK);
        let shared = (shared_bytes + reserved).max(1);
        let by_shared = limit(attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / shared;
        let blocks = by_threads.min(by_shared).min(limit(attribute::MAX_BLOCKS_PER_MULTIPROCESSOR));
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }
}

/// The attribute numbers that the simulator itself reads.
pub(crate) mod attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub(crate) const MAX_BLOCK_DIM_X: u32 = 2;
    pub(crate) const MAX_GRID_DIM_X: u32 = 5;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK: u32 = 8;
    pub(crate) const WARP_SIZE: u32 = 10;
    pub(crate) const MULTIPROCESSOR_COUNT: u32 = 16;
    pub(crate) const PCI_BUS_ID: u32 = 33;
    pub(crate) const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: u32 = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: u32 = 81;
    pub(crate) const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 106;
    pub(crate) const RESERVED_SHARED_MEMORY_PER_BLOCK: u32 = 111;
    /// The last attribute of CUDA 13.5.
    pub(crate) const LAST: u32 = 161;
}

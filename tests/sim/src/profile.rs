//! What a simulated part is: data read off hardware, no code.

use crate::topology::{Band, Topology};

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
    /// Where the answers come from.
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

const MIB: u64 = 1 << 20;

/// NVIDIA H200. SM ids, splits and cluster counts are recorded; the memory size and the attributes
/// are those of its data sheet and of the architecture.
pub(crate) const H200: Profile = Profile {
    name: "h200",
    device_name: "NVIDIA H200",
    provenance: "recorded on driver 580.159.04",
    compute_capability: (9, 0),
    memory_bytes: 143_156 * MIB,
    primary_context_bytes: 512 * MIB,
    green_context_bytes: 4 * MIB,
    topology: Topology {
        sm_count: 132,
        fine_unit: 2,
        coarse_unit: 8,
        bands: &[Band { gpcs: 8 }, Band { gpcs: 7 }],
        fine_order: &[(0, 8), (62, 66), (8, 62)],
        tail_pair: true,
    },
    min_partition: 8,
    alignment: 8,
    max_cluster: 8,
    stream_priorities: (0, -5),
    attributes: &[
        (1, 1024), // threads in a block
        (2, 1024), // block dimensions
        (3, 1024),
        (4, 64),
        (5, 2_147_483_647), // grid dimensions
        (6, 65_535),
        (7, 65_535),
        (8, 49_152),         // shared memory of a block
        (9, 65_536),         // constant memory
        (10, 32),            // warp
        (11, 2_147_483_647), // pitch
        (12, 65_536),        // registers of a block
        (13, 1_980_000),     // clock, kHz
        (14, 512),           // texture alignment
        (15, 1),             // copy and run at once
        (19, 1),             // maps host memory
        (31, 1),             // concurrent kernels
        (32, 1),             // ECC
        (36, 3_201_000),     // memory clock, kHz
        (37, 6_144),         // memory bus, bits
        (38, 62_914_560),    // L2 cache
        (39, 2_048),         // threads of an SM
        (40, 3),             // copy engines
        (41, 1),             // unified addressing
        (51, 32),            // texture pitch alignment
        (78, 1),             // stream priorities
        (79, 1),             // L1 cache for global and local memory
        (80, 1),
        (81, 233_472),      // shared memory of an SM
        (82, 65_536),       // registers of an SM
        (83, 1),            // managed memory
        (87, 2),            // double precision ratio
        (89, 1),            // concurrent managed access
        (90, 1),            // compute preemption
        (95, 1),            // cooperative launch
        (97, 232_448),      // shared memory of a block, opted in
        (99, 1),            // host registration
        (102, 1),           // virtual memory management
        (103, 1),           // file descriptor handles
        (106, 32),          // blocks of an SM
        (108, 39_321_600),  // persisting L2
        (109, 134_217_728), // access policy window
        (111, 1_024),       // reserved shared memory of a block
        (115, 1),           // memory pools
        (116, 1),           // GPUDirect RDMA
        (119, 9),           // handles of memory pools
        (120, 1),           // clusters
        (122, 1),           // 64-bit stream memory operations
        (123, 1),
        (124, 1), // dma-buf
        (125, 1), // IPC events
        (126, 4), // memory synchronisation domains
        (127, 1), // tensor maps
        (129, 1), // unified function pointers
    ],
};

//! Data that profiles share: for all GPUs, for an architecture, or for a class of products.

use super::provenance::{documented, modelled, reported};
use super::{H200, Source};
use crate::topology::Topology;

/// The topology of the H200, except that the driver gives out units in ascending order. GPUs that were not recorded
/// are assumed to have units of the same sizes.
pub(super) const TOPOLOGY: Topology = Topology { fine_order: &[], splits: &[], ..H200.topology };

/// Attributes by number, with their values.
type Attributes = &'static [(u32, i32)];

/// The default of `CUDA_DEVICE_MAX_CONNECTIONS` in CUDA's documentation.
pub(super) const WORKQUEUE_LIMIT: u32 = 8;

pub(super) const WORKQUEUES: Source =
    documented("workqueue limit", "the default of CUDA_DEVICE_MAX_CONNECTIONS");

/// The source of memory sizes that are smaller than the round number in the data sheet.
pub(super) const USABLE_MEMORY: Source =
    reported("usable memory", "nvidia-smi output that users published");

/// The source of the minimum and the alignment of GPUs that were not recorded.
pub(super) const LIMITS: Source = documented(
    "minimum and alignment",
    "the guidelines for compute capabilities in cuda.h of CUDA 13.0 and 13.5",
);

/// The source of the remaining behaviour of GPUs that were not recorded.
pub(super) const AS_ON_H200: Source =
    modelled("split rules, memory per context, transfer rates, statuses", "the recorded H200");

/// Attributes of every profile: the technical specifications of the CUDA programming guide, and features
/// that every GPU from compute capability 8.0 on has.
pub(super) const ALL: Attributes = &[
    (1, 1024), // maximum threads per block
    (2, 1024), // maximum block dimensions
    (3, 1024),
    (4, 64),
    (5, 2_147_483_647), // maximum grid dimensions
    (6, 65_535),
    (7, 65_535),
    (8, 49_152),         // shared memory per block
    (9, 65_536),         // constant memory
    (10, 32),            // warp size
    (11, 2_147_483_647), // maximum pitch
    (12, 65_536),        // registers per block
    (14, 512),           // texture alignment
    (15, 1),             // copies overlap with kernels
    (19, 1),             // can map host memory
    (31, 1),             // concurrent kernels
    (40, 1),             // copy engines: 1 if no number is published
    (41, 1),             // unified addressing
    (51, 32),            // texture pitch alignment
    (78, 1),             // stream priorities
    (79, 1),             // L1 cache for global and local memory
    (80, 1),
    (82, 65_536), // registers per SM
    (83, 1),      // managed memory
    (89, 1),      // concurrent managed access
    (90, 1),      // compute preemption
    (91, 1),      // host pointers can be used for registered memory
    (95, 1),      // cooperative launch, and the same on several devices
    (96, 1),
    (99, 1),            // host memory registration
    (102, 1),           // virtual memory management
    (103, 1),           // file descriptor handles
    (109, 134_217_728), // access policy window
    (111, 1_024),       // reserved shared memory per block
    (115, 1),           // memory pools
    (119, 1),           // handle types of memory pools: file descriptors
    (122, 1),           // 64-bit stream memory operations
    (123, 1),
    (125, 1), // IPC events
    (126, 1), // memory synchronisation domains
    (129, 1), // unified function pointers
];

/// Features of data centre GPUs.
pub(super) const DATA_CENTRE: Attributes = &[
    (32, 1),  // ECC
    (116, 1), // GPUDirect RDMA
    (124, 1), // dma-buf
];

/// Attributes of compute capability 8.9, from the technical specifications of the CUDA programming guide.
pub(super) const COMPUTE_8_9: Attributes =
    &[(39, 1_536), (81, 102_400), (87, 64), (97, 101_376), (106, 24)];

/// Attributes of compute capability 8.0, from the technical specifications of the CUDA programming guide.
pub(super) const COMPUTE_8_0: Attributes = &[
    (39, 2_048),   // threads per SM
    (81, 167_936), // shared memory per SM
    (87, 2),       // single to double precision ratio
    (97, 166_912), // shared memory per block with opt-in
    (106, 32),     // blocks per SM
];

/// Attributes of compute capabilities 9.0 and 10.0, from the technical specifications of the CUDA programming guide.
pub(super) const COMPUTE_9_0: Attributes = &[
    (39, 2_048),
    (81, 233_472),
    (87, 2),
    (97, 232_448),
    (106, 32),
    (119, 9), // handle types of memory pools: file descriptors and fabric handles
    (120, 1), // clusters
    (126, 4), // memory synchronisation domains
    (127, 1), // tensor maps
];

/// Attributes of compute capability 11.0, from the technical specifications of the CUDA programming guide.
pub(super) const COMPUTE_11_0: Attributes =
    &[(39, 1_536), (81, 233_472), (87, 64), (97, 232_448), (106, 24), (120, 1), (126, 4), (127, 1)];

/// Attributes of compute capability 12.0, from the technical specifications of the CUDA programming guide.
pub(super) const COMPUTE_12_0: Attributes =
    &[(39, 1_536), (81, 102_400), (87, 64), (97, 101_376), (106, 24), (120, 1), (126, 4), (127, 1)];

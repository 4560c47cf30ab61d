//! What parts have in common: of all, of an architecture, of a kind of product.

use super::provenance::{documented, modelled, reported};
use super::{H200, Source};
use crate::topology::Topology;

/// Units of the H200's size, handed out in order: what is not known of parts that were not recorded.
pub(super) const TOPOLOGY: Topology = Topology { fine_order: &[], splits: &[], ..H200.topology };

/// Attributes by number, with their values.
type Attributes = &'static [(u32, i32)];

/// The default of `CUDA_DEVICE_MAX_CONNECTIONS` in CUDA's documentation.
pub(super) const WORKQUEUE_LIMIT: u32 = 8;

pub(super) const WORKQUEUES: Source =
    documented("workqueue limit", "the default of CUDA_DEVICE_MAX_CONNECTIONS");

/// Memory that is less than the data sheet's round figure.
pub(super) const USABLE_MEMORY: Source =
    reported("usable memory", "nvidia-smi, as its users print it");

/// Of parts that were not recorded.
pub(super) const LIMITS: Source = documented(
    "minimum and alignment",
    "the guidelines for compute capabilities in cuda.h of 13.0 and 13.5",
);

/// Of parts that were not recorded.
pub(super) const AS_ON_H200: Source = modelled(
    "rules of splits, contexts' memory, transfer rates, statuses",
    "those of the recorded H200",
);

/// Attributes of every part, from the technical specifications of the CUDA programming guide, and
/// features that every part from compute capability 8.0 on has.
pub(super) const ALL: Attributes = &[
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
    (14, 512),           // texture alignment
    (15, 1),             // copy and run at once
    (19, 1),             // maps host memory
    (31, 1),             // concurrent kernels
    (40, 1),             // copy engines: at least one, where no number is published
    (41, 1),             // unified addressing
    (51, 32),            // texture pitch alignment
    (78, 1),             // stream priorities
    (79, 1),             // L1 cache for global and local memory
    (80, 1),
    (82, 65_536), // registers of an SM
    (83, 1),      // managed memory
    (89, 1),      // concurrent managed access
    (90, 1),      // compute preemption
    (91, 1),      // the host's pointers to registered memory
    (95, 1),      // cooperative launch, and that of several devices
    (96, 1),
    (99, 1),            // host registration
    (102, 1),           // virtual memory management
    (103, 1),           // file descriptor handles
    (109, 134_217_728), // access policy window
    (111, 1_024),       // reserved shared memory of a block
    (115, 1),           // memory pools
    (119, 1),           // handles of memory pools: file descriptors
    (122, 1),           // 64-bit stream memory operations
    (123, 1),
    (125, 1), // IPC events
    (126, 1), // memory synchronisation domains
    (129, 1), // unified function pointers
];

/// Features of data centre parts.
pub(super) const DATA_CENTRE: Attributes = &[
    (32, 1),  // ECC
    (116, 1), // GPUDirect RDMA
    (124, 1), // dma-buf
];

/// Compute capability 8.0, from the technical specifications of the CUDA programming guide.
pub(super) const COMPUTE_8_0: Attributes = &[
    (39, 2_048),   // threads of an SM
    (81, 167_936), // shared memory of an SM
    (87, 2),       // double precision ratio
    (97, 166_912), // shared memory of a block, opted in
    (106, 32),     // blocks of an SM
];

/// Compute capabilities 9.0 and 10.0, from the same table.
pub(super) const COMPUTE_9_0: Attributes = &[
    (39, 2_048),
    (81, 233_472),
    (87, 2),
    (97, 232_448),
    (106, 32),
    (119, 9), // handles of memory pools: file descriptors and fabric handles
    (120, 1), // clusters
    (126, 4), // memory synchronisation domains
    (127, 1), // tensor maps
];

/// Compute capability 11.0, from the same table.
pub(super) const COMPUTE_11_0: Attributes =
    &[(39, 1_536), (81, 233_472), (87, 64), (97, 232_448), (106, 24), (120, 1), (126, 4), (127, 1)];

/// Compute capability 12.0, from the same table.
pub(super) const COMPUTE_12_0: Attributes =
    &[(39, 1_536), (81, 102_400), (87, 64), (97, 101_376), (106, 24), (120, 1), (126, 4), (127, 1)];

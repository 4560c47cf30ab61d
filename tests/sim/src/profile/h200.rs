//! NVIDIA H200.
//!
//! Recorded on driver 580.159.04, case by case in the conformance record of that driver: how SMs are
//! split and numbered, cluster capacities, symbols and their versions, statuses, stream
//! priorities. From the data sheet and the architecture: the memory size and the attributes. Measured
//! once and rounded: the memory that contexts take. From the documentation: the limit of workqueues.
//! Modelled: what [`Topology`] says for splits and combinations that are in no case.

use super::Profile;
use crate::topology::{Band, RecordedSplit, Topology};

const MIB: u64 = 1 << 20;

/// The groups that SMs outside whole units help to fill. All other recorded splits of the device
/// follow from the units.
const SPLITS: &[RecordedSplit] = &[
    RecordedSplit {
        size: 16,
        groups: &[
            &[0, 8, 16, 24, 32, 39, 47, 64],
            &[1, 9, 17, 25, 33, 40, 48, 65],
            &[2, 10, 18, 26, 34, 41, 49, 54],
            &[3, 11, 19, 27, 35, 42, 50, 55],
            &[4, 12, 20, 28, 36, 43, 51, 56],
            &[5, 13, 21, 29, 37, 44, 52, 57],
            &[6, 14, 22, 30, 38, 45, 58, 62],
            &[7, 15, 23, 31, 46, 53, 59, 63],
        ],
    },
    RecordedSplit {
        size: 32,
        groups: &[
            &[0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 39, 43, 46, 51, 53, 64],
            &[1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 40, 44, 47, 52, 54, 65],
            &[2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 41, 45, 48, 55, 58, 62],
            &[3, 7, 11, 15, 19, 23, 27, 31, 35, 42, 49, 50, 56, 57, 59, 63],
        ],
    },
    RecordedSplit {
        size: 64,
        groups: &[
            &[
                0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 39, 41,
                43, 45, 46, 48, 50, 53, 55, 57, 60, 62,
            ],
            &[
                1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 40, 42, 44,
                47, 49, 51, 52, 54, 56, 58, 59, 61, 63,
            ],
        ],
    },
];

/// SM ids, splits and cluster counts are recorded; the memory size and the attributes are those of the
/// data sheet and of the architecture.
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
        splits: SPLITS,
    },
    min_partition: 8,
    alignment: 8,
    max_cluster: 8,
    // The default of CUDA_DEVICE_MAX_CONNECTIONS in CUDA's documentation.
    workqueue_limit: 8,
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

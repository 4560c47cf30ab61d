//! NVIDIA H200, recorded case by case.

use super::provenance::{documented, modelled, recorded};
use super::{MIB, Profile, Provenance, Record, TransferRate, TransferRates, common};
use crate::topology::{RecordedSplit, Topology};

/// The recorded splits in which SMs outside whole units help to fill groups. The units alone explain all
/// other recorded splits of the device.
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

/// The topology of the H200, recorded on driver 580.159.04.
pub(super) const TOPOLOGY: Topology = Topology {
    sm_count: 132,
    fine_unit: 2,
    coarse_unit: 8,
    min_group: 8,
    // The numbers of clusters of 4 to 17 blocks imply two GPCs of 18 SMs, five of 16, one of 8, and four
    // TPCs that share clusters with no other TPC. The split of 16 shows that the GPC of 8 SMs is one of the
    // first two: its TPCs 33 and 40 do not lie in the same GPC as the unit of TPC 1. The record does not
    // determine the order of the other GPCs; it is assumed to be by size as well.
    gpcs: &[4, 8, 8, 8, 8, 8, 9, 9, 1, 1, 1, 1],
    domains: &[],
    fine_order: &[(0, 8), (62, 66), (8, 62)],
    splits: SPLITS,
};

/// Rates in bytes per microsecond, rounded from the measured times for 1 GiB.
pub(super) const TRANSFER: TransferRates = TransferRates {
    // 240 µs on 132 SMs, 648 µs on 32 and 2570 µs on 8.
    memset: TransferRate { per_sm: 52_000, limit: 4_474_000 },
    // 512, 974 and 3334 µs.
    copy: TransferRate { per_sm: 37_000, limit: 2_097_000 },
    // 798, 2748 and 9799 µs.
    graph_copy: TransferRate { per_sm: 13_000, limit: 1_345_000 },
};

pub(crate) const H200: Profile = Profile {
    name: "h200",
    device_name: "NVIDIA H200",
    provenance: Provenance {
        recorded: Some(Record { driver: "580.159.04", version: 13_000 }),
        sources: &[
            recorded("SM ids, splits and clusters", "the conformance record"),
            recorded("symbols, statuses and priorities", "the conformance record"),
            recorded("memory per context, transfer rates", "measured once, rounded"),
            documented(
                "memory and attributes",
                "the data sheet of the H200 and the CUDA programming guide",
            ),
            common::WORKQUEUES,
            modelled("other splits", "the rules that reproduce the recorded splits"),
        ],
    },
    first_driver: 0,
    compute_capability: (9, 0),
    memory_bytes: 143_156 * MIB,
    primary_context_bytes: 512 * MIB,
    green_context_bytes: 4 * MIB,
    topology: TOPOLOGY,
    max_cluster: 8,
    transfer: TRANSFER,
    workqueue_limit: common::WORKQUEUE_LIMIT,
    stream_priorities: (0, -5),
    attributes: &[
        &[
            (13, 1_980_000),   // clock, kHz
            (36, 3_201_000),   // memory clock, kHz
            (37, 6_144),       // memory bus, bits
            (38, 62_914_560),  // L2 cache
            (40, 3),           // copy engines
            (108, 39_321_600), // persisting L2
        ],
        common::COMPUTE_9_0,
        common::DATA_CENTRE,
        common::ALL,
    ],
};

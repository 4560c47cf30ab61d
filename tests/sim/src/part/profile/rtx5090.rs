//! NVIDIA GeForce RTX 5090. Nothing was recorded on one.

use super::provenance::{documented, modelled, reported};
use super::{H200, Profile, Provenance, common};
use crate::topology::Topology;

pub(super) const RTX5090: Profile = Profile {
    name: "rtx5090",
    device_name: "NVIDIA GeForce RTX 5090",
    provenance: Provenance {
        recorded: None,
        sources: &[
            documented("SM count and number of GPCs", "the RTX Blackwell white paper"),
            modelled("TPCs of each GPC", "85 TPCs spread evenly over 11 GPCs"),
            reported("memory, memory bus and L2", "https://github.com/NVIDIA/nccl/issues/1637"),
            documented(
                "attributes",
                "the RTX Blackwell white paper and the CUDA programming guide",
            ),
            common::LIMITS,
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 12_080,
    compute_capability: (12, 0),
    memory_bytes: 33_680_457_728,
    topology: Topology {
        sm_count: 170,
        // 11 GPCs of up to 8 TPCs and 85 TPCs in all, by the white paper. How many each GPC has is
        // not public: this is the most even way.
        gpcs: &[8, 8, 8, 8, 8, 8, 8, 8, 7, 7, 7],
        ..common::TOPOLOGY
    },
    attributes: &[
        &[
            (13, 2_407_000),   // clock, kHz
            (36, 14_001_000),  // memory clock, kHz
            (37, 512),         // memory bus, bits
            (38, 100_663_296), // L2 cache
            (108, 62_914_560), // persisting L2: the share that it is on an H200
        ],
        common::COMPUTE_12_0,
        common::ALL,
    ],
    ..H200
};

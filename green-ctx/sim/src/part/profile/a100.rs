//! NVIDIA A100 (SXM4, 80 GB). Not recorded.

use super::provenance::documented;
use super::{H200, MIB, Profile, Provenance, common};
use crate::topology::Topology;

pub(super) const A100: Profile = Profile {
    name: "a100",
    device_name: "NVIDIA A100-SXM4-80GB",
    provenance: Provenance {
        recorded: None,
        sources: &[
            documented("SM count and GPCs", "the white paper of the A100 architecture"),
            documented(
                "memory and attributes",
                "the data sheet of the A100 and the CUDA programming guide",
            ),
            common::USABLE_MEMORY,
            common::LIMITS,
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 0,
    compute_capability: (8, 0),
    memory_bytes: 81_920 * MIB,
    topology: Topology {
        sm_count: 108,
        coarse_unit: 2,
        min_group: 4,
        // The white paper has 7 GPCs of 7 or 8 TPCs, and 54 TPCs fit in only one way. Individual chips may
        // differ.
        gpcs: &[8, 8, 8, 8, 8, 7, 7],
        ..common::TOPOLOGY
    },
    max_cluster: 1,
    attributes: &[
        &[
            (13, 1_410_000),   // clock, kHz
            (36, 1_593_000),   // memory clock, kHz
            (37, 5_120),       // memory bus, bits
            (38, 41_943_040),  // L2 cache
            (40, 3),           // copy engines
            (108, 26_214_400), // persisting L2: the same fraction of the L2 as on an H200
        ],
        common::COMPUTE_8_0,
        common::DATA_CENTRE,
        common::ALL,
    ],
    ..H200
};

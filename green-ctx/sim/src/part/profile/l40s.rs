//! NVIDIA L40S. Not recorded.
//!
//! A user of PyTorch reports a group of 114 SMs for a request of 120
//! (<https://github.com/pytorch/pytorch/issues/195378>). The header rules out a group of this size, so the
//! simulated group has 120 SMs. The same report shows a split of the 142 SMs into groups of 22 and 120 SMs.

use super::provenance::{documented, reported};
use super::{H200, MIB, Profile, Provenance, common};
use crate::topology::Topology;

pub(super) const L40S: Profile = Profile {
    name: "l40s",
    device_name: "NVIDIA L40S",
    provenance: Provenance {
        recorded: None,
        sources: &[
            documented("SM count and GPCs", "the data sheet of the L40S and the Ada white paper"),
            documented(
                "memory and attributes",
                "the data sheet of the L40S and the CUDA programming guide",
            ),
            reported("usable memory", "https://github.com/akash-network/provider-configs/pull/99"),
            common::LIMITS,
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 0,
    compute_capability: (8, 9),
    memory_bytes: 46_068 * MIB,
    topology: Topology {
        sm_count: 142,
        coarse_unit: 2,
        min_group: 4,
        // The full AD102 has 12 GPCs of 6 TPCs. The L40S has one TPC less.
        gpcs: &[6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5],
        ..common::TOPOLOGY
    },
    max_cluster: 1,
    attributes: &[
        &[
            (13, 2_520_000),   // clock, kHz
            (36, 9_001_000),   // memory clock, kHz
            (37, 384),         // memory bus, bits
            (38, 100_663_296), // L2 cache
            (108, 62_914_560), // persisting L2: the same fraction of the L2 as on an H200
        ],
        common::COMPUTE_8_9,
        common::DATA_CENTRE,
        common::ALL,
    ],
    ..H200
};

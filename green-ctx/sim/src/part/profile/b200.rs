//! NVIDIA B200. Not recorded.

use super::provenance::{documented, modelled, reported};
use super::{H200, MIB, Profile, Provenance, common};
use crate::topology::Topology;

pub(super) const B200: Profile = Profile {
    name: "b200",
    device_name: "NVIDIA B200",
    provenance: Provenance {
        recorded: None,
        sources: &[
            documented("SM count", "the Blackwell tuning guide and the data sheet of HGX B200"),
            modelled("GPCs", "148 SMs spread evenly over two dies of four GPCs"),
            modelled(
                "locality domains, from CUDA 13.4 on",
                "one domain per die, following the header of CUDA 13.5",
            ),
            reported("memory, memory bus and L2", "https://github.com/pytorch/ao/pull/4002"),
            documented("attributes", "the CUDA programming guide"),
            reported("clock", "nvidia-smi output that users published"),
            common::LIMITS,
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 12_080,
    compute_capability: (10, 0),
    memory_bytes: 182_630 * MIB,
    topology: Topology {
        sm_count: 148,
        // Two dies with 37 TPCs each, in 4 GPCs of up to 10. The TPCs per GPC are not public; this is the
        // most even distribution.
        gpcs: &[10, 10, 9, 9, 9, 9, 9, 9],
        domains: &[4, 4],
        ..common::TOPOLOGY
    },
    attributes: &[
        &[
            (13, 1_965_000),   // clock, kHz
            (36, 3_996_000),   // memory clock, kHz
            (37, 7_680),       // memory bus, bits
            (38, 132_644_864), // L2 cache
            (108, 82_903_040), // persisting L2: the same fraction of the L2 as on an H200
        ],
        common::COMPUTE_9_0,
        common::DATA_CENTRE,
        common::ALL,
    ],
    ..H200
};

//! NVIDIA GeForce RTX 5080. Not recorded.
//!
//! Structured splits of this GPU accept only some of the aligned counts, according to NVIDIA's maintainers of
//! cuda.core (<https://github.com/NVIDIA/cuda-python/issues/2025>). Without backfill, the other counts fail with
//! `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION`; with backfill, these counts are accepted. The maintainers do not say
//! which counts are accepted. In the simulator, the GPCs determine the accepted counts. Each GPC has 12 SMs and
//! holds one set of 8 co-scheduled SMs, so two equal groups can have 8, 16 or 24 SMs but not 32 or 40.

use super::provenance::{documented, modelled};
use super::{H200, MIB, Profile, Provenance, common};
use crate::topology::Topology;

pub(super) const RTX5080: Profile = Profile {
    name: "rtx5080",
    device_name: "NVIDIA GeForce RTX 5080",
    provenance: Provenance {
        recorded: None,
        sources: &[
            documented("SM count and GPCs", "the RTX Blackwell white paper"),
            modelled(
                "accepted counts",
                "the GPCs, and https://github.com/NVIDIA/cuda-python/issues/2025",
            ),
            documented(
                "memory and attributes",
                "the RTX Blackwell white paper and the CUDA programming guide",
            ),
            common::USABLE_MEMORY,
            common::LIMITS,
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 12_080,
    compute_capability: (12, 0),
    memory_bytes: 16_303 * MIB,
    topology: Topology {
        sm_count: 84,
        // The full GB203 according to the white paper: 7 GPCs of 6 TPCs.
        gpcs: &[6, 6, 6, 6, 6, 6, 6],
        ..common::TOPOLOGY
    },
    attributes: &[
        &[
            (13, 2_617_000),   // clock, kHz
            (36, 15_001_000),  // memory clock, kHz
            (37, 256),         // memory bus, bits
            (38, 67_108_864),  // L2 cache
            (108, 41_943_040), // persisting L2: the same fraction of the L2 as on an H200
        ],
        common::COMPUTE_12_0,
        common::ALL,
    ],
    ..H200
};

//! NVIDIA Jetson AGX Thor (T5000), an SoC. Not recorded.
//!
//! The header of CUDA 13.5 gives all Tegra SoCs an alignment of 2. The tests of cuda.core once expected 8,
//! and no longer do since they ran on such an SoC (<https://github.com/NVIDIA/cuda-python/pull/2098>). The
//! tests also no longer expect that two groups of the minimum size can be split off. No public source lists
//! the possible counts; the simulator accepts all even counts.

use super::provenance::{documented, modelled, reported};
use super::{H200, MIB, Profile, Provenance, common};
use crate::topology::Topology;

pub(super) const THOR: Profile = Profile {
    name: "thor",
    device_name: "NVIDIA Thor",
    provenance: Provenance {
        recorded: None,
        sources: &[
            documented("SM count", "the data sheet of the Jetson AGX Thor"),
            modelled("GPCs", "10 TPCs spread evenly over 3 GPCs"),
            documented("minimum and alignment", "the Tegra guideline in cuda.h of CUDA 13.5"),
            documented(
                "memory and attributes",
                "the data sheet of the Jetson AGX Thor and the CUDA programming guide",
            ),
            reported("memory clock and bus of 0", "https://github.com/openxla/xla/pull/36970"),
            reported("L2 and shared memory", "https://github.com/apache/tvm/pull/20259"),
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 13_000,
    compute_capability: (11, 0),
    memory_bytes: 131_072 * MIB,
    topology: Topology {
        sm_count: 20,
        coarse_unit: 2,
        min_group: 2,
        // 3 GPCs of up to 4 TPCs, according to the technical reference manual. How the 10 TPCs of a T5000
        // are distributed is not public; this is the most even distribution.
        gpcs: &[4, 3, 3],
        ..common::TOPOLOGY
    },
    attributes: &[
        &[
            (13, 1_575_000),  // clock, kHz
            (18, 1),          // integrated GPU
            (36, 0),          // memory clock and bus: the driver reports 0
            (37, 0),          // like the clock
            (38, 33_554_432), // L2 cache
            (88, 1),          // pageable memory access, coherent, through the host's page tables
            (91, 0),          // no host memory registration
            (99, 0),
            (100, 1), // like 88
        ],
        common::COMPUTE_11_0,
        common::ALL,
    ],
    ..H200
};

//! NVIDIA Jetson AGX Thor (T5000), an SoC. Nothing was recorded on one.
//!
//! The header of 13.5 gives all Tegra SoCs an alignment of 2, and cuda.core's tests no longer
//! expect 8 since they ran on one (<https://github.com/NVIDIA/cuda-python/pull/2098>). They also no
//! longer expect that two groups of the minimum can be split off; which counts can is not public,
//! and here all even ones can.

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
            documented("minimum and alignment", "the guideline for Tegra SoCs in cuda.h of 13.5"),
            documented(
                "memory and attributes",
                "the data sheet of the Jetson AGX Thor, the CUDA programming guide",
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
        // 3 GPCs of up to 4 TPCs, by the technical reference manual. How many each has of the 10
        // TPCs of a T5000 is not public: this is the most even way.
        gpcs: &[4, 3, 3],
        ..common::TOPOLOGY
    },
    attributes: &[
        &[
            (13, 1_575_000),  // clock, kHz
            (18, 1),          // integrated
            (36, 0),          // memory clock and bus: the driver reports none
            (37, 0),          // as the clock
            (38, 33_554_432), // L2 cache
            (88, 1), // reads pageable memory, coherently, through the page tables of the host
            (91, 0), // no host registration
            (99, 0),
            (100, 1), // as 88
        ],
        common::COMPUTE_11_0,
        common::ALL,
    ],
    ..H200
};

//! NVIDIA H100 (SXM5, 80 GB). Nothing was recorded on one.
//!
//! It is the chip of the H200 with as many SMs, so that the H200's topology is taken over: which
//! SMs a group has differs from part to part in any case. Minimum, alignment and 132 SMs are as a
//! user's driver prints them (<https://github.com/NVIDIA/cuda-python/issues/2765>).

use super::h200;
use super::{MIB, Origin, Profile, Provenance, Source, common};

pub(super) const H100: Profile = Profile {
    name: "h100",
    device_name: "NVIDIA H100 80GB HBM3",
    provenance: Provenance {
        recorded: None,
        sources: &[
            Source {
                data: "SM count",
                origin: Origin::Documented,
                from: "the white paper of the H100 architecture",
            },
            Source {
                data: "memory and attributes",
                origin: Origin::Documented,
                from: "the data sheet of the H100 and the CUDA programming guide",
            },
            Source {
                data: "SM ids, splits and clusters",
                origin: Origin::Modelled,
                from: "the record of the H200, which is the same chip",
            },
            common::USABLE_MEMORY,
            common::LIMITS,
            common::WORKQUEUES,
            common::AS_ON_H200,
        ],
    },
    first_driver: 0,
    compute_capability: (9, 0),
    memory_bytes: 81_559 * MIB,
    primary_context_bytes: common::PRIMARY_CONTEXT_BYTES,
    green_context_bytes: common::GREEN_CONTEXT_BYTES,
    topology: h200::TOPOLOGY,
    min_partition: 8,
    alignment: 8,
    max_cluster: 8,
    transfer: common::TRANSFER,
    workqueue_limit: common::WORKQUEUE_LIMIT,
    stream_priorities: common::STREAM_PRIORITIES,
    attributes: &[
        &[
            (13, 1_980_000),   // clock, kHz
            (36, 2_619_000),   // memory clock, kHz
            (37, 5_120),       // memory bus, bits
            (38, 52_428_800),  // L2 cache
            (40, 3),           // copy engines
            (108, 32_768_000), // persisting L2: the share that it is on an H200
        ],
        common::COMPUTE_9_0,
        common::DATA_CENTRE,
        common::ALL,
    ],
};

//! NVIDIA H100 (SXM5, 80 GB), recorded case by case.
//!
//! The H100 has the same chip and the same SM count as the H200, but slower memory. Except for seven cases,
//! every recorded result equals the result on the H200, including SM ids and clusters. Those seven cases
//! compare the time of a copy on few SMs with the time on all SMs.

use super::h200;
use super::provenance::{documented, modelled, recorded};
use super::{H200, MIB, Profile, Provenance, Record, TransferRate, TransferRates, common};

/// Rates in bytes per microsecond. The record contains ratios of times but no absolute times. In a graph
/// and in a stream, a copy takes 1.5 to 5 times as long on 8 SMs as on all SMs, and at most 1.5 times as
/// long on 32 SMs. A memset takes more than 5 times as long on 8 SMs as on all SMs, and 1.5 to 5 times as
/// long on 32 SMs.
///
/// Memsets and stream copies have the H200's rates per SM. The limits for memsets and stream copies are the
/// H200's limits, scaled by the ratio of the memory bandwidths, 3.35 to 4.92. With the H200's rate for
/// graph copies, a copy in a graph would take 8.8 times as long on 8 SMs as on all SMs. Graph copies
/// therefore have the rate of stream copies.
const TRANSFER: TransferRates = TransferRates {
    memset: TransferRate { per_sm: 52_000, limit: 3_050_000 },
    copy: COPY,
    graph_copy: COPY,
};

const COPY: TransferRate = TransferRate { per_sm: 37_000, limit: 1_430_000 };

pub(super) const H100: Profile = Profile {
    name: "h100",
    device_name: "NVIDIA H100 80GB HBM3",
    provenance: Provenance {
        recorded: Some(Record { driver: "580.159.04", version: 13_000 }),
        sources: &[
            recorded("SM ids, splits and clusters", "the conformance record"),
            recorded("symbols, statuses and priorities", "the conformance record"),
            documented(
                "memory and attributes",
                "the data sheet of the H100 and the CUDA programming guide",
            ),
            common::USABLE_MEMORY,
            common::WORKQUEUES,
            modelled("transfer rates", "the H200's rates, fitted to the recorded ratios"),
            modelled("memory per context", "measured on an H200"),
            modelled("other splits", "the rules that reproduce the recorded splits"),
        ],
    },
    first_driver: 0,
    compute_capability: (9, 0),
    memory_bytes: 81_559 * MIB,
    topology: h200::TOPOLOGY,
    transfer: TRANSFER,
    attributes: &[
        &[
            (13, 1_980_000),   // clock, kHz
            (36, 2_619_000),   // memory clock, kHz
            (37, 5_120),       // memory bus, bits
            (38, 52_428_800),  // L2 cache
            (40, 3),           // copy engines
            (108, 32_768_000), // persisting L2: the same fraction of the L2 as on an H200
        ],
        common::COMPUTE_9_0,
        common::DATA_CENTRE,
        common::ALL,
    ],
    ..H200
};

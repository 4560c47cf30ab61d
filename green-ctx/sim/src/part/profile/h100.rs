//! NVIDIA H100 (SXM5, 80 GB), recorded case by case.
//!
//! It has the chip of the H200 with the same SM count and slower memory. Every recorded case has the H200's
//! answer, including SM ids and clusters, except seven. Those seven compare the time of a copy on few SMs
//! with the time on all SMs.

use super::h200;
use super::provenance::{documented, modelled, recorded};
use super::{H200, MIB, Profile, Provenance, Record, TransferRate, TransferRates, common};

/// Bytes per microsecond. The record has only ratios of times, no times. A copy takes 1.5 to 5 times as
/// long on 8 SMs as on all of them, and at most 1.5 times as long on 32 SMs, in a graph and in a stream. A
/// memset takes more than 5 times as long on 8 SMs and 1.5 to 5 times as long on 32.
///
/// Memsets and stream copies have the rates of the H200. Their limits are scaled by the ratio of the memory
/// bandwidths, 3.35 to 4.92. With the H200's rate for graph copies, a graph's copy would take 8.8 times as
/// long on 8 SMs, so graph copies have the rate of stream copies.
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

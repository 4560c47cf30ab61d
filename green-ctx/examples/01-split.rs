//! Divides a device into two partitions with given SM counts and a third with the rest, and proves where each
//! partition runs.
//!
//! ```text
//! cargo run -p green-ctx --example 01-split                            # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 01-split      # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{Device, SplitRequest, verify};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let sms = device.resources().sm()?;
    writeln!(out, "{}: {} SMs", device.name()?, sms.sm_count())?;

    let request = SplitRequest::new().group("decode", 16).group("sampling", 13).rest("prefill");
    let parts = device.partition(request)?;
    for part in &parts {
        // Counts are rounded up to whole units. A partition reports both counts.
        writeln!(out, "{}: asked for {}, has {}", part.name(), part.share(), part.sm_count())?;
    }
    let given: u32 = parts.iter().map(|part| part.sm_count()).sum();
    assert_eq!(given, sms.sm_count(), "the rest leaves nothing over");

    // A probe kernel runs in each partition alone, then in all of them at the same time. Its blocks write down the
    // SM on which they run.
    let report = verify::partitions(&parts, verify::DEFAULT_STAY)?;
    for part in &report.partitions {
        writeln!(out, "{} ran on {} SMs", part.name, part.observed_sms().len())?;
    }
    assert!(report.ok(), "each partition ran on all of its SMs and on no others");
    assert!(report.disjoint());
    writeln!(out, "no SM ran blocks of two partitions")?;

    // SMs that a partition holds cannot be given out twice. The error names the holder.
    let refused = device.partition([32]).expect_err("no SMs are free");
    writeln!(out, "refused: {refused}")?;

    drop(parts);
    assert_eq!(sms.free_sm_count(), sms.sm_count(), "the SMs come back with the last handle");
    writeln!(out, "{} SMs are free again", sms.free_sm_count())?;
    Ok(())
}

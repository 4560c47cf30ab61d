//! Floors and ceilings: SMs that only one partition uses, and SMs that two partitions share.
//!
//! ```text
//! cargo run -p green-ctx --example 02-shares                           # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 02-shares     # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{Device, Partitions, SplitRequest, verify};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let sms = device.resources().sm()?;

    // Decode has a floor of 32 SMs and may use all other SMs while prefill leaves them idle. Prefill has no floor
    // and uses at most 100 SMs.
    let request = SplitRequest::new().group("decode", 32..).group("prefill", ..=100);
    let parts = device.partition(request)?;
    show(&parts, out)?;
    assert_eq!(parts["decode"].sm_count(), sms.sm_count());
    assert_eq!(parts["prefill"].floor(), 0);

    let report = verify::partitions(&parts, verify::DEFAULT_STAY)?;
    assert!(report.ok(), "each partition had its floor and stayed below its ceiling");
    assert!(report.floors_kept());
    writeln!(out, "prefill ran on 0 of decode's {} own SMs", report.partitions[0].floor_sms.len())?;

    // An unbounded share such as `32..` may use every free SM, so no other partition can get a floor while it
    // exists.
    let refused = device.partition([16]).expect_err("every SM is held or shared");
    writeln!(out, "refused: {refused}")?;
    // A share without a floor can still be added.
    let more = device.partition(SplitRequest::new().group("sampling", ..=16))?;
    show(&more, out)?;
    drop((parts, more));

    // A bounded ceiling leaves SMs for later floors.
    let dry = sms.dry_run(SplitRequest::new().group("decode", 32..=64))?;
    writeln!(out, "32..=64 leaves {} SMs for later floors", dry.free_for_floors)?;
    let _decode = device.partition(SplitRequest::new().group("decode", 32..=64))?;
    let late = device.partition(SplitRequest::new().group("late", 16))?;
    show(&late, out)?;
    assert!(late["late"].shared_with().is_empty(), "a count is exclusive");
    Ok(())
}

fn show(parts: &Partitions, out: &mut dyn Write) -> Outcome {
    for part in parts {
        write!(out, "{} asked for {}: ", part.name(), part.share())?;
        write!(out, "{} SMs of its own, at most {}", part.floor(), part.sm_count())?;
        for holder in part.shared_with() {
            write!(out, "; shares with {holder}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

//! Fit: the number of blocks that a partition holds at the same time, known before a launch.
//!
//! ```text
//! cargo run -p green-ctx --example 06-fit                              # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 06-fit        # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{Device, Error, LaunchConfig, Library, SplitRequest};

const WORK: &str = ".version 5.0 .target sm_52 .address_size 64 .visible .entry work() { ret; }";

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let work = Library::from_ptx(device, WORK)?.kernel("work")?;
    let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
    let decode = &parts["decode"];

    // A grid that fills the device with two blocks per SM, as code that knows nothing about partitions would choose
    // it.
    let whole = 2 * device.sm_count()?;
    let fit = work.fit(decode.context(), LaunchConfig::new(whole, 1024))?;
    writeln!(out, "{fit}")?;
    assert_eq!(fit.sm_count, decode.sm_count(), "it counts the partition's SMs");
    assert!(!fit.fits_at_once());

    // Blocks of a cooperative launch wait for each other, so all of them must be resident at the same time. A
    // launch that does not fit is refused before the driver is called, also during a capture.
    let config = LaunchConfig::new(whole, 1024).cooperative(true);
    // SAFETY: the kernel has no parameters and accesses no memory.
    match unsafe { decode.stream().launch(&work, config, ()) } {
        Err(Error::DoesNotFit(problem)) => writeln!(out, "refused: {problem}")?,
        other => return Err(format!("it was not refused: {other:?}").into()),
    }

    // The grid for a persistent kernel has as many blocks as fit at the same time.
    let (x, y, z) = fit.persistent_grid();
    let config = LaunchConfig::with_shape((x, y, z), (1024, 1, 1)).cooperative(true);
    // SAFETY: the kernel has no parameters and accesses no memory.
    unsafe { decode.stream().launch(&work, config, ()) }?;
    decode.stream().synchronize()?;
    writeln!(out, "a cooperative grid of {x} blocks ran")?;
    assert_eq!(x, fit.cooperative_blocks());

    // A plain launch may have any number of blocks: later blocks start when earlier ones end.
    // SAFETY: the kernel has no parameters and accesses no memory.
    unsafe { decode.stream().launch(&work, LaunchConfig::new(whole, 1024), ()) }?;
    decode.stream().synchronize()?;
    writeln!(out, "a plain grid of {whole} blocks ran")?;
    Ok(())
}

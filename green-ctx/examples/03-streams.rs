//! Two partitions whose work depends on each other. Like any other streams, streams of different partitions run
//! concurrently unless an event orders them.
//!
//! ```text
//! cargo run -p green-ctx --example 03-streams                          # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 03-streams    # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{
    Device, DeviceBuffer, LaunchConfig, SplitRequest, StreamOptions, event::EventOptions,
};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let step = common::step(device)?;
    let value = DeviceBuffer::<u32>::zeroed(device, 1)?;
    let config = LaunchConfig::new(1, 1);

    let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
    let (prefill, decode) = (parts["prefill"].stream(), parts["decode"].stream());

    // 1. Prefill produces: 0 × 1 + 20.
    // SAFETY: these are the kernel's three parameters. The buffer outlives the work, and the events below order
    // every access to it.
    unsafe { prefill.launch(&step, config, (value.as_argument(), 1u32, 20u32)) }?;
    let produced = device.create_event(EventOptions::default())?;
    prefill.record(&produced)?;

    // 2. Decode waits for the event on the device, and consumes: 20 × 2 + 2. Without the wait, both kernels would
    //    run at the same time, each on its own SMs.
    decode.wait(&produced)?;
    // SAFETY: as for the first launch.
    unsafe { decode.launch(&step, config, (value.as_argument(), 2u32, 2u32)) }?;
    let result = value.read(decode)?[0];
    writeln!(out, "prefill, then decode: {result}")?;
    assert_eq!(result, 42, "decode ran after prefill");

    // 3. The same with one call, between two streams of one partition.
    let sampling = parts["decode"].create_stream(StreamOptions::default().priority(-1))?;
    // SAFETY: as for the first launch. `read` has waited for the earlier work.
    unsafe { decode.launch(&step, config, (value.as_argument(), 10u32, 0u32)) }?;
    sampling.wait_for(decode)?;
    // SAFETY: as for the first launch. The wait orders this launch after the previous one.
    unsafe { sampling.launch(&step, config, (value.as_argument(), 1u32, 3u32)) }?;
    let result = value.read(&sampling)?[0];
    writeln!(out, "decode, then sampling: {result}")?;
    assert_eq!(result, 423);

    // 4. The host waits for one partition. This waits for all of its streams, and for no other streams.
    parts["decode"].context().synchronize()?;
    assert!(decode.is_idle()? && sampling.is_idle()?);
    writeln!(out, "decode is idle")?;
    Ok(())
}

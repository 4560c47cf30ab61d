//! Escapes: finding work that runs outside its partition, which causes no error by itself.
//!
//! ```text
//! cargo run -p green-ctx --example 07-watch                            # simulated H200
//! GREEN_CTX_DRIVER=cuda cargo run -p green-ctx --example 07-watch      # GPU
//! ```

mod common;

use std::io::Write;
use std::process::ExitCode;

use common::Outcome;
use green_ctx::{
    Device, DeviceBuffer, Error, LaunchConfig, SplitRequest, StreamOptions, graph::CaptureMode,
    watch::Watch,
};

fn main() -> ExitCode {
    common::start(run)
}

pub(crate) fn run(device: &Device, out: &mut dyn Write) -> Outcome {
    let step = common::step(device)?;
    let value = DeviceBuffer::<u32>::zeroed(device, 1)?;
    let (config, arguments) = (LaunchConfig::new(1, 1), (value.as_argument(), 1u32, 1u32));

    let parts = device.partition(SplitRequest::new().group("decode", 16).rest("prefill"))?;
    let decode = parts["decode"].stream();
    // A stream of the primary context, such as another library takes from its pool.
    let pooled = device.primary_context()?.create_stream(StreamOptions::default())?;

    let watch = Watch::new(parts["decode"].context());
    // Pass streams and graphs to the watch with a name for each. The watch asks the driver where they run.
    assert!(watch.stream("attention", decode)?);
    assert!(!watch.stream("sampling", &pooled)?);
    let graph = pooled.capture(CaptureMode::default(), || {
        // SAFETY: these are the kernel's three parameters, and the graph is never launched.
        unsafe { pooled.launch(&step, config, arguments) }
    })?;
    assert!(!watch.graph("captured elsewhere", &graph)?);
    {
        // While the guard exists, launches that this thread makes through this crate are watched.
        let _watching = watch.launches();
        // SAFETY: these are the kernel's three parameters. The buffer outlives the work, and `wait_for` orders the
        // two launches.
        unsafe { decode.launch(&step, config, arguments) }?;
        pooled.wait_for(decode)?;
        // SAFETY: as for the launch above.
        unsafe { pooled.launch(&step, config, arguments) }?;
    }
    for escape in watch.escapes() {
        writeln!(out, "{escape}")?;
    }
    assert_eq!(watch.escapes().len(), 3, "a stream, a graph and a launch");
    // Work that escapes runs nevertheless.
    assert_eq!(value.read(&pooled)?, [2]);

    // For debugging, every launch outside a partition can be refused, on all threads.
    device.driver().check_launches(true);
    // SAFETY: as for the launches above.
    let refused = unsafe { pooled.launch(&step, config, arguments) };
    device.driver().check_launches(false);
    match refused {
        Err(Error::Escapes(escape)) => writeln!(out, "refused: {escape}")?,
        other => return Err(format!("it was not refused: {other:?}").into()),
    }
    assert_eq!(value.read(&pooled)?, [2], "nothing was launched");
    Ok(())
}

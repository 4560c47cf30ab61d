//! Fit queries, and launches that are checked against them.

use green_ctx::{
    Device, DeviceBuffer, Error, Kernel, LaunchConfig, Library, Result, Stream, StreamOptions,
    context::Context, fit::RawKernel,
};

use super::scenario::Scenario;
use crate::common::{Outcome, kernels, partition};

/// Objects created before any call fails: a partition, and kernels of every kind.
struct Made {
    context: Context,
    stream: Stream,
    probe: Kernel,
    any_size: Kernel,
    pairs: Kernel,
    results: DeviceBuffer<u64>,
}

fn set_up(device: &Device) -> Result<Made> {
    let context = partition(device, 16)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let library = Library::from_ptx(device, kernels::CLUSTERED)?;
    Ok(Made {
        context,
        stream,
        probe: kernels::probe(device)?,
        any_size: library.kernel("any_size")?,
        pairs: library.kernel("pairs")?,
        results: DeviceBuffer::zeroed(device, 3 * 32)?,
    })
}

fn launch(made: &Made, config: LaunchConfig) -> Result<()> {
    // SAFETY: the arguments match the kernel's two parameters. `results` has three words for each block, and
    // freeing it waits for the work.
    unsafe { made.stream.launch(&made.probe, config, (made.results.as_argument(), 0_u64)) }
}

/// Makes a launch that does not fit. Returns the error if a driver call prevented the check.
fn refused(made: &Made, config: LaunchConfig) -> Result<()> {
    match launch(made, config).expect_err("it does not fit") {
        Error::DoesNotFit(_) => Ok(()),
        error => Err(error),
    }
}

fn run(_device: &Device, made: &mut Made) -> Result<()> {
    let config = LaunchConfig::new(32, 1024);
    assert_eq!(made.probe.fit(&made.context, config)?.resident_blocks, 32);
    let pairs = config.cluster((2, 1, 1));
    for kernel in [&made.probe, &made.any_size, &made.pairs] {
        assert_eq!(kernel.fit(&made.context, pairs)?.resident_blocks, 32);
    }
    let foreign = RawKernel::Kernel(made.pairs.as_raw());
    // SAFETY: `made.pairs` keeps the kernel loaded.
    assert_eq!(unsafe { foreign.fit(&made.context, pairs) }?.resident_blocks, 32);
    launch(made, config.cooperative(true))?;
    launch(made, pairs.cooperative(true))?;
    refused(made, LaunchConfig::new(33, 1024).cooperative(true))?;
    refused(made, LaunchConfig::new(16, 1024).cluster((16, 1, 1)))?;
    made.stream.synchronize()
}

fn tear_down(_device: &Device, made: Made) -> Outcome {
    // A refused or failed launch never ran.
    let Made { stream, results, .. } = &made;
    results.read(stream)?;
    Ok(())
}

#[test]
fn fits() -> Outcome {
    for spec in ["h200@12.4", "h200@13.0"] {
        Scenario { name: "what fits", spec, at_least: 80, set_up, run, tear_down }.exhaust()?;
    }
    Ok(())
}

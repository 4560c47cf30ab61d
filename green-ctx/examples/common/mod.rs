//! Code that the examples share: the device on which they run, and a kernel.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use green_ctx::sim::{KernelCall, Sim};
use green_ctx::{Device, Driver, Kernel, Library};

/// The result of an example.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Runs an example on the first device of the driver that the environment variable `GREEN_CTX_DRIVER` names. The
/// value `cuda` means the installed driver. Values such as `sim:a100` and `sim:h200@12.8` mean a simulated driver.
/// The default is a simulated H200.
#[allow(dead_code, reason = "the tests include this file and use their own device")]
pub(crate) fn start(run: impl FnOnce(&Device, &mut dyn Write) -> Outcome) -> ExitCode {
    let outcome = device().and_then(|device| run(&device, &mut io::stdout()));
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprint!("error: {error}");
    let mut reason = error.source();
    while let Some(error) = reason {
        eprint!(": {error}");
        reason = error.source();
    }
    eprintln!();
    ExitCode::FAILURE
}

fn device() -> Result<Device, Box<dyn Error>> {
    let name = std::env::var("GREEN_CTX_DRIVER").unwrap_or_else(|_| "sim:h200@13.0".to_owned());
    let driver = match name.strip_prefix("sim:") {
        Some(spec) => Driver::simulated(&simulator(spec)?)?,
        None if name == "cuda" => Driver::load()?,
        None => return Err(format!("GREEN_CTX_DRIVER is cuda or sim:SPEC, and not {name}").into()),
    };
    eprintln!("on {}", driver.info());
    Ok(driver.device(0)?)
}

/// Creates a simulator that can run the kernel `step`.
pub(crate) fn simulator(spec: &str) -> Result<Sim, Box<dyn Error>> {
    let sim = Sim::new(spec)?;
    // The simulator does not execute PTX. It calls this function when the kernel is launched.
    sim.register_kernel("step", simulate_step);
    Ok(sim)
}

/// Loads the kernel `step(value, factor, term)`, which computes `*value = *value * factor + term`.
///
/// The result of two steps depends on their order, so the result shows which step ran first.
#[allow(dead_code, reason = "not every example launches this kernel")]
pub(crate) fn step(device: &Device) -> Result<Kernel, Box<dyn Error>> {
    Ok(Library::from_ptx(device, STEP)?.kernel("step")?)
}

#[allow(dead_code, reason = "not every example launches this kernel")]
const STEP: &str = "
.version 5.0
.target sm_52
.address_size 64

.visible .entry step(.param .u64 value, .param .u32 factor, .param .u32 term)
{
    .reg .b32 %factor, %term, %old, %new;
    .reg .b64 %value;

    ld.param.u64 %value, [value];
    ld.param.u32 %factor, [factor];
    ld.param.u32 %term, [term];
    cvta.to.global.u64 %value, %value;
    ld.global.u32 %old, [%value];
    mad.lo.u32 %new, %old, %factor, %term;
    st.global.u32 [%value], %new;
    ret;
}
";

fn simulate_step(call: &mut KernelCall<'_>) {
    let (Some(value), Some(factor), Some(term)) =
        (call.param_u64(0), call.param_u32(1), call.param_u32(2))
    else {
        return;
    };
    let mut old = [0; 4];
    // An illegal address fails the launch, as it does on a GPU.
    if call.read(value, &mut old).is_ok() {
        let new = u32::from_ne_bytes(old).wrapping_mul(factor).wrapping_add(term);
        let _ = call.write(value, &new.to_ne_bytes());
    }
}

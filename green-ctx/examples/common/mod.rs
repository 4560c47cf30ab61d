//! What the examples share: the device that they run on, and a kernel.

use std::error::Error;

use green_ctx::sim::{KernelCall, Sim};
use green_ctx::{Device, Driver, Kernel, Library};

/// The result of an example.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// The first device of the installed driver with `GREEN_CTX_DRIVER=cuda`, of a simulated H200 otherwise.
#[allow(dead_code, reason = "the tests bring a device of their own")]
pub(crate) fn device() -> Result<Device, Box<dyn Error>> {
    let driver = match std::env::var("GREEN_CTX_DRIVER") {
        Ok(name) if name == "cuda" => Driver::load()?,
        _ => Driver::simulated(&simulator()?)?,
    };
    eprintln!("on {}", driver.info());
    Ok(driver.device(0)?)
}

/// A simulated H200 that can run the kernel `step`.
pub(crate) fn simulator() -> Result<Sim, Box<dyn Error>> {
    let sim = Sim::new("h200@13.0")?;
    // The simulator executes no PTX. It calls this function where a launch asks for the kernel.
    sim.register_kernel("step", simulate_step);
    Ok(sim)
}

/// `step(value, factor, term)`: `*value = *value * factor + term`.
///
/// The result of two steps depends on their order, so that it shows which one ran first.
#[allow(dead_code, reason = "not every example launches it")]
pub(crate) fn step(device: &Device) -> Result<Kernel, Box<dyn Error>> {
    Ok(Library::from_ptx(device, STEP)?.kernel("step")?)
}

#[allow(dead_code, reason = "not every example launches it")]
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

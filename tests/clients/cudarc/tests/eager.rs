//! cudarc 0.15 to 0.18 look every function of their CUDA version up at the first call, and panic where
//! one is missing. This is the last of them; later versions look up what they call.

use std::error::Error;

use cudarc_eager::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc_eager::nvrtc::Ptx;

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry work(.param .u64 values, .param .u32 count) { ret; }
";

#[test]
fn every_function_is_found() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(PTX))?;
    let work = module.load_function("work")?;
    let stream = context.new_stream()?;
    let numbers: Vec<u32> = (0..1000).collect();
    let mut memory = stream.clone_htod(&numbers)?;
    let mut launch = stream.launch_builder(&work);
    launch.arg(&mut memory).arg(&1000_u32);
    // SAFETY: the arguments are those of the entry, which does nothing.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1000)) }?;
    let (event, other) = (stream.record_event(None)?, context.new_stream()?);
    other.wait(&event)?;
    assert_eq!(other.clone_dtoh(&memory)?, numbers);
    Ok(context.check_err()?)
}

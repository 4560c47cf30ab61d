//! Kernels that NVRTC compiles for cudarc.

use std::error::Error;

use cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

const SOURCE: &str = r#"
extern "C" __global__ void scale(float* values, float factor, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) values[index] *= factor;
}
"#;

#[test]
fn a_compiled_kernel_is_loaded_and_launched() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let options = CompileOptions { arch: Some("compute_90"), ..CompileOptions::default() };
    let module = context.load_module(compile_ptx_with_opts(SOURCE, options)?)?;
    let scale = module.load_function("scale")?;
    assert!(scale.get_attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? > 0);
    let stream = context.new_stream()?;
    let mut values = stream.alloc_zeros::<f32>(1000)?;
    let mut launch = stream.launch_builder(&scale);
    launch.arg(&mut values).arg(&2.0_f32).arg(&1000_i32);
    // SAFETY: the arguments are those of the source, and the memory has as many values as the last says.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1000)) }?;
    stream.synchronize()?;
    Ok(context.check_err()?)
}

#[test]
fn errors_of_the_source_are_reported() {
    let error = compile_ptx_with_opts("void broken() { undeclared(); }", CompileOptions::default());
    let Err(CompileError::CompileError { log, .. }) = error else { panic!("{error:?}") };
    assert!(log.to_string_lossy().contains("undeclared"), "{log:?}");
}

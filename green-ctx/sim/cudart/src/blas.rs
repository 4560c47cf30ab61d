//! cuBLAS without arithmetic: a function that would compute launches an empty kernel with its name.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use green_ctx_sys::{CUkernel, CUresult, CUstream};

use crate::context::in_context;
use crate::driver::cuLaunchKernel;
use crate::kernel;

/// The object behind a `cublasHandle_t`.
struct Handle {
    stream: CUstream,
}

/// A pointer that is not used.
type Unused = *const c_void;

/// `cublasLtMatmulHeuristicResult_t`, as bytes.
type Heuristic = [u8; 96];

/// Returns a cuBLAS status: `CUBLAS_STATUS_SUCCESS`, or `CUBLAS_STATUS_EXECUTION_FAILED`.
fn status(call: impl FnOnce() -> CUresult) -> CUresult {
    if in_context(call) == CUresult::CUDA_SUCCESS { CUresult(0) } else { CUresult(13) }
}

/// Launches the empty kernel with this name.
fn launch(name: &'static CStr, stream: CUstream) -> CUresult {
    let launch = |kernel: CUkernel| {
        // SAFETY: the kernel is alive and has no parameters.
        unsafe {
            cuLaunchKernel(kernel.cast(), 1, 1, 1, 32, 1, 1, 0, stream, null_mut(), null_mut())
        }
    };
    kernel(name).map_or_else(|refused| refused, launch)
}

fn kernel(name: &'static CStr) -> Result<CUkernel, CUresult> {
    /// The addresses of the kernels.
    static KERNELS: Mutex<Option<HashMap<&'static CStr, usize>>> = Mutex::new(None);
    let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    let kernels = kernels.get_or_insert_default();
    if let Some(&kernel) = kernels.get(name) {
        return Ok(kernel as CUkernel);
    }
    let entry = name.to_string_lossy();
    let text = format!(
        ".version 7.0 .target sm_52 .address_size 64 .visible .entry {entry}() {{ ret; }}\0"
    );
    // SAFETY: the text ends with a null byte.
    let library = unsafe { kernel::load(text.as_ptr().cast()) }?;
    // SAFETY: the name ends with a null byte.
    let kernel = unsafe { kernel::find(library, name.as_ptr()) }?;
    kernels.insert(name, kernel as usize);
    Ok(kernel)
}

functions! { status:
    cublasCreate_v2(out: *mut *mut Handle) => {
        out.write(Box::into_raw(Box::new(Handle { stream: null_mut() })));
        CUresult::CUDA_SUCCESS
    };
    cublasDestroy_v2(handle: *mut Handle) => {
        drop(Box::from_raw(handle));
        CUresult::CUDA_SUCCESS
    };
    cublasSetStream_v2(handle: *mut Handle, stream: CUstream) => {
        (*handle).stream = stream;
        CUresult::CUDA_SUCCESS
    };
    cublasGetStream_v2(handle: *mut Handle, stream: *mut CUstream) => {
        stream.write((*handle).stream);
        CUresult::CUDA_SUCCESS
    };
    /// Returns the default mode.
    cublasGetMathMode(_handle: *mut Handle, mode: *mut c_int) => {
        mode.write(0);
        CUresult::CUDA_SUCCESS
    };
    /// Returns the default mode.
    cublasGetPointerMode_v2(handle: *mut Handle, mode: *mut c_int) => cublasGetMathMode(handle, mode);
    /// The generated functions that would compute call this with their own name, a literal of this library.
    greenCtxSimulatedBlas(handle: *mut Handle, name: *const c_char) => launch(CStr::from_ptr(name), (*handle).stream);
    /// Returns one algorithm, without contents.
    cublasLtMatmulAlgoGetHeuristic(
        _handle: Unused, _operation: Unused, _a: Unused, _b: Unused, _c: Unused, _d: Unused, _preference: Unused,
        _requested: c_int, results: *mut Heuristic, count: *mut c_int
    ) => {
        results.write([0; 96]);
        count.write(1);
        CUresult::CUDA_SUCCESS
    };
    cublasLtMatmul(
        _handle: Unused, _operation: Unused, _alpha: Unused, _a: Unused, _a_layout: Unused, _b: Unused,
        _b_layout: Unused, _beta: Unused, _c: Unused, _c_layout: Unused, _d: Unused, _d_layout: Unused,
        _algorithm: Unused, _workspace: Unused, _bytes: usize, stream: CUstream
    ) => launch(c"cublasLtMatmul", stream);
}

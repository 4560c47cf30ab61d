//! Kernels: registered when a library is loaded, and loaded by the driver when they are first needed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{OnceLock, PoisonError, RwLock};

use green_ctx_sys::*;

use crate::context::{self, in_context};
use crate::driver::*;
use crate::error;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// The argument of `__cudaRegisterFatBinary`.
#[repr(C)]
struct Wrapper {
    magic: c_uint,
    version: c_uint,
    image: *const c_void,
}

/// A registered image, with the library that the driver made of it.
struct Module {
    image: *const c_void,
    library: OnceLock<Result<usize, CUresult>>,
}

// SAFETY: the image is constant. It is assumed that the library with it is not unloaded, as torch's libraries are not.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A registered kernel. It is loaded when it is first needed.
struct Kernel {
    module: &'static Module,
    name: *const c_char,
    loaded: OnceLock<Result<usize, CUresult>>,
}

// SAFETY: the name is constant, under the same assumption.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The registered kernels, by the address of the host function that represents the kernel.
static KERNELS: RwLock<Option<HashMap<usize, &'static Kernel>>> = RwLock::new(None);

/// A launch between `<<<` and `>>>`: grid, block, shared memory in bytes, stream.
type Configuration = (Dim3, Dim3, usize, CUstream);

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    bytes: usize,
    stream: CUstream,
    attributes: *mut CUlaunchAttribute,
    count: c_uint,
}

/// `cudaFuncAttributes`: three sizes in bytes, then numbers.
#[repr(C)]
struct Attributes {
    sizes: [usize; 3],
    numbers: [c_int; 29],
}

/// The driver's attributes in the order of `Attributes`. The first three are the sizes.
const ATTRIBUTES: [c_uint; 16] = [1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];

/// Loads an image or PTX text into the driver.
///
/// # Safety
///
/// `image` is a fat binary, or text that ends with a null byte.
pub(crate) unsafe fn load(image: *const c_void) -> Result<CUlibrary, CUresult> {
    let (mut library, none, values) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the image is valid by this function's contract, and there are no options.
    let loaded =
        unsafe { cuLibraryLoadData(&mut library, image, none, values, 0, null_mut(), values, 0) };
    error::of(loaded).map(|()| library)
}

/// Returns a kernel of a library.
///
/// # Safety
///
/// `name` ends with a null byte.
pub(crate) unsafe fn find(library: CUlibrary, name: *const c_char) -> Result<CUkernel, CUresult> {
    let mut kernel = null_mut();
    // SAFETY: the library is alive, since none is ever unloaded, and the name is valid by this function's contract.
    error::of(unsafe { cuLibraryGetKernel(&mut kernel, library, name) }).map(|()| kernel)
}

impl Kernel {
    fn load(&self) -> Result<CUkernel, CUresult> {
        let Module { image, library } = self.module;
        let kernel = self.loaded.get_or_init(|| {
            // SAFETY: the compiler registered a fat binary.
            let library =
                library.get_or_init(|| unsafe { load(*image) }.map(|library| library as usize));
            // SAFETY: the compiler registered the name.
            unsafe { find((*library)? as CUlibrary, self.name) }.map(|kernel| kernel as usize)
        });
        kernel.map(|kernel| kernel as CUkernel)
    }
}

/// Returns a size for the driver, which refuses what no device has.
fn clamp(bytes: usize) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

/// Makes a call with the kernel of a host function. An address that was not registered is passed to the driver, which
/// refuses it with `cudaErrorInvalidResourceHandle` unless it is a kernel (recorded on hardware).
fn with(function: *const c_void, call: impl FnOnce(CUkernel) -> CUresult) -> CUresult {
    let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    let kernel = kernels.as_ref().and_then(|kernels| kernels.get(&(function as usize)).copied());
    drop(kernels);
    kernel.map_or(Ok(function as CUkernel), Kernel::load).map_or_else(|refused| refused, call)
}

/// Writes the attributes of a kernel.
fn attributes(found: &mut Attributes, kernel: CUkernel) -> CUresult {
    *found = Attributes { sizes: [0; 3], numbers: [0; 29] };
    for (index, attribute) in ATTRIBUTES.into_iter().enumerate() {
        let (attribute, mut value) = (CUfunction_attribute(attribute), 0);
        // SAFETY: the pointer is to a local variable, and the driver checks the kernel.
        let known =
            unsafe { cuKernelGetAttribute(&mut value, attribute, kernel, context::device()) };
        match index {
            _ if known != CUresult::CUDA_SUCCESS => return known,
            0..3 => found.sizes[index] = value as usize,
            _ => found.numbers[index - 3] = value,
        }
    }
    CUresult::CUDA_SUCCESS
}

// SAFETY: no other function of the library has this name, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFatBinary(wrapper: *const Wrapper) -> *const Module {
    // SAFETY: the compiler passes a structure of this type.
    let image = unsafe { (*wrapper).image };
    Box::leak(Box::new(Module { image, library: OnceLock::new() }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFunction(
    module: *const Module,
    function: usize,
    _device_function: *const c_char,
    name: *const c_char,
) {
    // SAFETY: `__cudaRegisterFatBinary` returned the module, which is never freed.
    let module = unsafe { &*module };
    let kernel = Box::leak(Box::new(Kernel { module, name, loaded: OnceLock::new() }));
    let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    kernels.get_or_insert_default().insert(function, kernel);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule() -> c_char {
    1
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary() {}

/// The simulated driver has no variables of images.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar() {}

functions! { in_context:
    __cudaPushCallConfiguration(grid: Dim3, block: Dim3, bytes: usize, stream: CUstream) => {
        CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, bytes, stream)));
        CUresult::CUDA_SUCCESS
    };
    __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, bytes: *mut usize, stream: *mut CUstream) =>
        match CONFIGURATIONS.with_borrow_mut(Vec::pop) {
            Some(pushed) => {
                (*grid, *block, *bytes, *stream) = pushed;
                CUresult::CUDA_SUCCESS
            }
            None => CUresult::CUDA_ERROR_UNKNOWN,
        };
    __cudaGetKernel(out: *mut CUkernel, function: *const c_void) => with(function, |kernel| {
        out.write(kernel);
        CUresult::CUDA_SUCCESS
    });
    __cudaLaunchKernel(
        kernel: *const c_void, grid: Dim3, block: Dim3, parameters: *mut *mut c_void, bytes: usize, stream: CUstream
    ) => cudaLaunchKernel(kernel, grid, block, parameters, bytes, stream);
    cudaLaunchKernel(
        function: *const c_void, grid: Dim3, block: Dim3, parameters: *mut *mut c_void, bytes: usize, stream: CUstream
    ) => {
        let config = LaunchConfig { grid, block, bytes, stream, attributes: null_mut(), count: 0 };
        cudaLaunchKernelExC(&config, function, parameters)
    };
    cudaLaunchCooperativeKernel(
        function: *const c_void, grid: Dim3, block: Dim3, parameters: *mut *mut c_void, bytes: usize, stream: CUstream
    ) => with(function, |kernel| cuLaunchCooperativeKernel(
        kernel.cast(), grid.x, grid.y, grid.z, block.x, block.y, block.z, clamp(bytes), stream, parameters,
    ));
    cudaLaunchKernelExC(config: *const LaunchConfig, function: *const c_void, parameters: *mut *mut c_void) => {
        let LaunchConfig { grid, block, bytes, stream, attributes, count } = config.read();
        let config = CUlaunchConfig {
            gridDimX: grid.x, gridDimY: grid.y, gridDimZ: grid.z,
            blockDimX: block.x, blockDimY: block.y, blockDimZ: block.z,
            sharedMemBytes: clamp(bytes), hStream: stream, attrs: attributes, numAttrs: count,
        };
        with(function, |kernel| cuLaunchKernelEx(&config, kernel.cast(), parameters, null_mut()))
    };
    cudaFuncGetAttributes(out: *mut Attributes, function: *const c_void) =>
        with(function, |kernel| attributes(&mut *out, kernel));
    cudaFuncSetAttribute(function: *const c_void, attribute: CUfunction_attribute, value: c_int) =>
        with(function, |kernel| cuKernelSetAttribute(attribute, value, kernel, context::device()));
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: *const c_void, threads: c_int, bytes: usize
    ) => cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, bytes, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int, function: *const c_void, threads: c_int, bytes: usize, flags: c_uint
    ) => with(function, |kernel| cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, kernel.cast(), threads, bytes, flags,
    ));
}

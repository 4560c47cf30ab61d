//! Libraries: images that belong to no context.

mod attributes;
mod function;
mod jit;
mod kernel;
mod module;

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use green_ctx_sys::{CUjit_option, CUkern_st, CUlib_st, CUlibraryOption, CUresult};

pub(crate) use attributes::*;
pub(crate) use function::*;
pub(crate) use kernel::*;
pub(crate) use module::*;

use crate::crash;
use crate::driver::Driver;
use crate::handle;
use crate::image::{self, Image, KernelInfo, Target};
use crate::pointer::{Answer, Ptr, refuse_if};
use crate::state::State;

/// The object behind a `CUlibrary`.
pub(crate) struct Library {
    /// The contents of the image, or the error from reading it. A call that needs the contents returns this
    /// error.
    image: Answer<Arc<Image>>,
    /// The handles of the library's kernels, in the order of the image.
    kernels: Vec<usize>,
    /// The modules in which the library is loaded, by device.
    modules: HashMap<usize, usize>,
}

impl Library {
    fn image(&self) -> Answer<&Arc<Image>> {
        self.image.as_ref().map_err(|error| *error)
    }
}

impl State {
    /// Returns the kernel behind a handle, and the device of the handle. The handle is a `CUfunction`, or a
    /// `CUkernel` that is cast to a `CUfunction`; a `CUkernel` has no device.
    pub(crate) fn kernel_info(&self, handle: usize) -> Answer<(Arc<KernelInfo>, Option<usize>)> {
        if let Some(function) = self.functions.get(&handle) {
            return Ok((Arc::clone(&function.info), Some(function.device)));
        }
        let kernel = self.kernels.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok((Arc::clone(&kernel.info), None))
    }

    fn library(&self, library: Ptr<CUlib_st>) -> Answer<&Library> {
        self.libraries.get(&library.address()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Reads an image for this driver's devices.
    fn read_image(&self, bytes: &[u8]) -> Answer<Image> {
        image::read(bytes, Target::new(self.profile, self.version))
    }

    /// Adds a library. Any image that can be copied is accepted. Errors in the image are reported by the
    /// first call that needs the contents (recorded on hardware).
    fn add_library(&mut self, bytes: &[u8]) -> usize {
        let library = handle::next();
        let image = self.read_image(bytes).map(Arc::new);
        let mut kernels = Vec::new();
        for info in image.iter().flat_map(|image| &image.kernels) {
            let kernel = handle::next();
            self.kernels.insert(kernel, Kernel::new(library, kernels.len(), Arc::clone(info)));
            kernels.push(kernel);
        }
        self.libraries.insert(library, Library { image, kernels, modules: HashMap::new() });
        library
    }

    /// Returns the module of a library on a device, and loads the module on first use.
    fn module_of_library(&mut self, library: usize, device: usize) -> Answer<usize> {
        let known = self.libraries.get(&library).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        // A module from before a reset of the device no longer exists.
        if let Some(module) = known.modules.get(&device).filter(|it| self.modules.contains_key(it))
        {
            return Ok(*module);
        }
        let image = Arc::clone(known.image()?);
        let kernels = known.kernels.clone();
        let module = self.add_module(device, image, Some(&kernels));
        if let Some(known) = self.libraries.get_mut(&library) {
            known.modules.insert(device, module);
        }
        Ok(module)
    }
}

#[expect(clippy::too_many_arguments, reason = "the C functions have the same arguments")]
pub(crate) fn load(
    driver: &Driver,
    out: Ptr<*mut CUlib_st>,
    fetch: impl FnOnce() -> Answer<Vec<u8>>,
    jit_options: Ptr<CUjit_option>,
    jit_values: Ptr<*mut c_void>,
    jit_count: u32,
    options: Ptr<CUlibraryOption>,
    values: Ptr<*mut c_void>,
    count: u32,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    jit::read_library_options(options, values, count)?;
    jit::answer(jit_options, jit_values, jit_count)?;
    let library = state.add_library(&fetch()?);
    out.write(handle::pointer(library))
}

pub(crate) fn unload(driver: &Driver, library: Ptr<CUlib_st>) -> Answer {
    let mut state = driver.state();
    refuse_if(library.is_null(), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let Some(Library { kernels, modules, .. }) = state.libraries.remove(&library.address()) else {
        // The driver follows the handle of an unloaded library without a check (recorded on hardware).
        crash::segmentation_fault();
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    };
    // Its kernels may be running on any device.
    let devices: Vec<usize> = state.devices.iter().map(|device| device.primary).collect();
    for primary in devices {
        let busy = state.busy(primary);
        state.wait_on_host(&busy);
    }
    for kernel in kernels {
        state.kernels.remove(&kernel);
    }
    for module in modules.into_values() {
        state.remove_module(module);
    }
    Ok(())
}

pub(crate) fn get_kernel(
    driver: &Driver,
    out: Ptr<*mut CUkern_st>,
    library: Ptr<CUlib_st>,
    name: Ptr<c_char>,
) -> Answer {
    let state = driver.state();
    let library = state.library(library)?;
    let image = library.image()?;
    let name = name.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    let index = image.kernel(name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    out.write(handle::pointer(library.kernels[index]))
}

/// Writes the number of kernels in a library. For a library whose image could not be read, writes 0 and
/// succeeds (recorded on hardware).
pub(crate) fn get_kernel_count(driver: &Driver, out: Ptr<u32>, library: Ptr<CUlib_st>) -> Answer {
    let state = driver.state();
    out.write(state.library(library)?.kernels.len() as u32)
}

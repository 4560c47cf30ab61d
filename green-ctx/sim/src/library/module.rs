//! Modules: images loaded on a device.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use green_ctx_sys::{CUfunc_st, CUmod_st, CUresult};

use super::{Attributes, Function};
use crate::driver::Driver;
use crate::handle;
use crate::image::{self, Image};
use crate::pointer::{Answer, Ptr, invalid_if};
use crate::state::State;

/// The object behind a `CUmodule`.
pub(crate) struct Module {
    pub(crate) device: usize,
    /// Whether the module was loaded for a library. If so, the library unloads the module.
    pub(crate) of_library: bool,
    image: Arc<Image>,
    /// The handles of the module's functions, in the order of the image.
    pub(super) functions: Vec<usize>,
}

impl State {
    /// Returns the module; an error if the handle is invalid or the device has failed.
    fn module(&self, module: Ptr<CUmod_st>) -> Answer<&Module> {
        let module = self.modules.get(&module.address());
        let module = module.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        self.unpoisoned(module.device)?;
        Ok(module)
    }

    /// Loads an image on a device. `kernels` holds the kernels of the library that loads the image; `None`
    /// if there is no library.
    pub(super) fn add_module(
        &mut self,
        device: usize,
        image: Arc<Image>,
        kernels: Option<&[usize]>,
    ) -> usize {
        let module = handle::next();
        let functions = image.kernels.iter().enumerate().map(|(index, info)| {
            let function = handle::next();
            let kernel = kernels.and_then(|kernels| kernels.get(index).copied());
            let (info, attributes) = (Arc::clone(info), Attributes::default());
            self.functions.insert(function, Function { device, info, kernel, attributes });
            function
        });
        let functions = functions.collect();
        let of_library = kernels.is_some();
        self.modules.insert(module, Module { device, of_library, image, functions });
        module
    }

    pub(super) fn remove_module(&mut self, module: usize) {
        let Some(module) = self.modules.remove(&module) else { return };
        for function in module.functions {
            self.functions.remove(&function);
        }
    }

    /// Returns the function at an index of a module.
    pub(super) fn function_at(&self, module: usize, index: usize) -> Answer<usize> {
        let module = self.modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        module.functions.get(index).copied().ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }
}

/// Loads an image on the current context's device.
fn load(
    driver: &Driver,
    out: Ptr<*mut CUmod_st>,
    fetch: impl FnOnce() -> Answer<Vec<u8>>,
) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    let image = state.read_image(&fetch()?)?;
    let module = state.add_module(device, Arc::new(image), None);
    out.write(handle::pointer(module))
}

pub(crate) fn module_load_data(
    driver: &Driver,
    out: Ptr<*mut CUmod_st>,
    image: Ptr<c_void>,
) -> Answer {
    load(driver, out, || image::from_memory(image))
}

pub(crate) fn module_unload(driver: &Driver, module: Ptr<CUmod_st>) -> Answer {
    let mut state = driver.state();
    let device = state.module(module)?.device;
    let busy = state.busy(state.devices[device].primary);
    state.wait_on_host(&busy);
    state.remove_module(module.address());
    Ok(())
}

pub(crate) fn module_get_function(
    driver: &Driver,
    out: Ptr<*mut CUfunc_st>,
    module: Ptr<CUmod_st>,
    name: Ptr<c_char>,
) -> Answer {
    let state = driver.state();
    let found = state.module(module)?;
    let name = name.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    invalid_if(name.is_empty())?;
    let index = found.image.kernel(name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    out.given()?;
    let function = state.function_at(module.address(), index)?;
    out.write(handle::pointer(function))
}

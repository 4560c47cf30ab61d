//! Modules: images that are loaded on a device.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use green_ctx_sys::{CUfunc_st, CUjit_option, CUmod_st, CUmoduleLoadingMode, CUresult};

use super::{Attributes, Function, jit, write_handles};
use crate::driver::Driver;
use crate::handle;
use crate::image::{self, Image};
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if};
use crate::state::State;

/// What a `CUmodule` stands for.
pub(crate) struct Module {
    pub(crate) device: usize,
    /// The library that it was loaded for, which alone unloads it.
    pub(crate) library: Option<usize>,
    image: Arc<Image>,
    /// The handles of its functions, in the order of the image.
    pub(super) functions: Vec<usize>,
    /// Address and size of each variable.
    variables: HashMap<Arc<str>, (u64, usize)>,
}

impl State {
    /// A module that can be used.
    fn module(&self, module: Ptr<CUmod_st>) -> Answer<&Module> {
        let module = self.modules.get(&module.address());
        let module = module.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        self.unpoisoned(module.device)?;
        Ok(module)
    }

    /// Loads an image on a device, for itself or for a library with these kernels.
    pub(super) fn add_module(
        &mut self,
        device: usize,
        image: Arc<Image>,
        library: Option<(usize, &[usize])>,
    ) -> Answer<usize> {
        let module = handle::next();
        let mut variables = HashMap::new();
        for variable in &image.variables {
            match self.allocate_for_module(device, variable.size, &variable.init) {
                Ok(address) => {
                    variables.insert(Arc::clone(&variable.name), (address, variable.size));
                }
                Err(status) => {
                    variables.values().for_each(|(address, _)| drop(self.drop_memory(*address)));
                    return Err(status);
                }
            }
        }
        let functions = image.kernels.iter().enumerate().map(|(index, info)| {
            let function = handle::next();
            let kernel = library.and_then(|(_, kernels)| kernels.get(index).copied());
            let info = Arc::clone(info);
            let attributes = Attributes::default();
            let loaded = false;
            self.functions
                .insert(function, Function { device, info, module, kernel, attributes, loaded });
            function
        });
        let functions = functions.collect();
        let library = library.map(|(library, _)| library);
        self.modules.insert(module, Module { device, library, image, functions, variables });
        Ok(module)
    }

    pub(super) fn remove_module(&mut self, module: usize) {
        let Some(module) = self.modules.remove(&module) else { return };
        for function in module.functions {
            self.functions.remove(&function);
        }
        for (address, _) in module.variables.into_values() {
            self.drop_memory(address);
        }
    }

    /// The function at this place in a module, which is loaded from now on.
    pub(super) fn load_function(&mut self, module: usize, index: usize) -> Answer<usize> {
        let module = self.modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let function = *module.functions.get(index).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        self.note_loaded(function);
        Ok(function)
    }

    /// Writes where a variable is and how large, of which one may not be wanted (header).
    pub(super) fn write_variable(
        &self,
        module: usize,
        name: Ptr<c_char>,
        address: Ptr<u64>,
        bytes: Ptr<usize>,
    ) -> Answer {
        let module = self.modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        invalid_if(address.is_null() && bytes.is_null())?;
        let name = name.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
        let Some(&(start, size)) = module.variables.get(name) else {
            // What has the name and is no variable has an error of its own, as recorded of a kernel
            // and of no name, which every image's first symbol has.
            let is_symbol = name.is_empty() || module.image.kernel(name).is_some();
            return Err(if is_symbol {
                CUresult::CUDA_ERROR_INVALID_VALUE
            } else {
                CUresult::CUDA_ERROR_NOT_FOUND
            });
        };
        address.write_if_given(start);
        bytes.write_if_given(size);
        Ok(())
    }
}

/// Loads an image into the current context's device.
fn load(
    driver: &Driver,
    out: Ptr<*mut CUmod_st>,
    fetch: impl FnOnce() -> Answer<Vec<u8>>,
) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    let image = state.read_image(&fetch()?)?;
    let module = state.add_module(device, Arc::new(image), None)?;
    out.write(handle::pointer(module))
}

pub(crate) fn module_load(driver: &Driver, out: Ptr<*mut CUmod_st>, name: Ptr<c_char>) -> Answer {
    load(driver, out, || image::from_file(name.c_str()?))
}

/// Also `cuModuleLoadFatBinary`: the driver sees what an image is, and answers alike (recorded).
pub(crate) fn module_load_data(
    driver: &Driver,
    out: Ptr<*mut CUmod_st>,
    image: Ptr<c_void>,
) -> Answer {
    load(driver, out, || image::from_memory(image))
}

pub(crate) fn module_load_data_ex(
    driver: &Driver,
    out: Ptr<*mut CUmod_st>,
    image: Ptr<c_void>,
    count: u32,
    options: Ptr<CUjit_option>,
    values: Ptr<*mut c_void>,
) -> Answer {
    load(driver, out, || {
        jit::answer(options, values, count)?;
        image::from_memory(image)
    })
}

pub(crate) fn module_unload(driver: &Driver, module: Ptr<CUmod_st>) -> Answer {
    let mut state = driver.state();
    refuse_if(state.module(module)?.library.is_some(), CUresult::CUDA_ERROR_NOT_PERMITTED)?;
    state.remove_module(module.address());
    Ok(())
}

pub(crate) fn module_get_function(
    driver: &Driver,
    out: Ptr<*mut CUfunc_st>,
    module: Ptr<CUmod_st>,
    name: Ptr<c_char>,
) -> Answer {
    let mut state = driver.state();
    let found = state.module(module)?;
    let name = name.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    invalid_if(name.is_empty())?;
    let index = found.image.kernel(name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    out.given()?;
    let function = state.load_function(module.address(), index)?;
    out.write(handle::pointer(function))
}

pub(crate) fn module_get_function_count(
    driver: &Driver,
    out: Ptr<u32>,
    module: Ptr<CUmod_st>,
) -> Answer {
    let state = driver.state();
    out.write(state.module(module)?.functions.len() as u32)
}

/// Gives at most `count` functions, in the order of the image (which no document promises).
pub(crate) fn module_enumerate_functions(
    driver: &Driver,
    out: Ptr<*mut CUfunc_st>,
    count: u32,
    module: Ptr<CUmod_st>,
) -> Answer {
    let state = driver.state();
    write_handles(out, count, state.module(module)?.functions.iter())
}

pub(crate) fn module_get_global(
    driver: &Driver,
    address: Ptr<u64>,
    bytes: Ptr<usize>,
    module: Ptr<CUmod_st>,
    name: Ptr<c_char>,
) -> Answer {
    let state = driver.state();
    state.module(module)?;
    state.write_variable(module.address(), name, address, bytes)
}

/// Loading is lazy, the default from 12.2 on; the environment is not read.
pub(crate) fn module_get_loading_mode(_: &Driver, out: Ptr<CUmoduleLoadingMode>) -> Answer {
    out.followed().write(CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Variable;
    use crate::spec::Spec;

    #[test]
    fn a_module_that_does_not_fit_leaves_nothing() {
        let mut state = State::new(Spec::default(), 1, 0);
        let variable = |size| Variable { name: "some".into(), size, init: Vec::new() };
        let mut image = Image::default();
        image.variables = vec![variable(8), variable(usize::MAX / 2)];
        let module = state.add_module(0, Arc::new(image), None);
        assert_eq!(module, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!((state.memory.len(), state.modules.len()), (0, 0));
    }
}

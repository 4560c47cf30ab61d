//! Functions: kernels of a module, bound to its device.

use std::ffi::c_char;
use std::sync::Arc;

use green_ctx_sys::{CUfunc_st, CUfunction_attribute, CUfunctionLoadingState, CUmod_st, CUresult};

use super::kernel::write_param;
use super::{Attributes, Setting};
use crate::driver::Driver;
use crate::handle;
use crate::image::KernelInfo;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// What a `CUfunction` stands for.
pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) info: Arc<KernelInfo>,
    pub(super) module: usize,
    /// The library's kernel that it is the function of.
    pub(crate) kernel: Option<usize>,
    /// What was set on it.
    pub(super) attributes: Attributes,
    /// Whether it was asked for by name, launched or loaded. Functions that were only enumerated
    /// are not loaded yet, since loading is lazy (recorded).
    pub(super) loaded: bool,
}

impl State {
    pub(crate) fn function(&self, function: Ptr<CUfunc_st>) -> Answer<&Function> {
        let function = self.functions.get(&function.address());
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        self.unpoisoned(function.device)?;
        Ok(function)
    }

    /// Notes that a function is loaded, as launching it does.
    pub(crate) fn note_loaded(&mut self, function: usize) {
        if let Some(function) = self.functions.get_mut(&function) {
            function.loaded = true;
        }
    }

    /// What is set on a function, or on a kernel for a device. A kernel stands for its function there,
    /// where that is loaded. What was set on a function goes over what was set on its kernel, in
    /// whichever order that was done (recorded).
    pub(crate) fn attributes(&self, handle: usize, device: usize) -> Attributes {
        let function = self.functions.get(&handle).or_else(|| self.found_function(handle, device));
        let kernel = function.map_or(Some(handle), |function| function.kernel);
        let kernel = kernel.and_then(|kernel| self.kernels.get(&kernel));
        let below = kernel.map(|kernel| kernel.attributes(self.physical(device)));
        let own = function.map(|function| function.attributes).unwrap_or_default();
        own.over(below.unwrap_or_default())
    }
}

/// The attributes that need a loaded function (recorded).
const OF_LOADED: [CUfunction_attribute; 3] = [
    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    CUfunction_attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
];

pub(crate) fn func_get_attribute(
    driver: &Driver,
    out: Ptr<i32>,
    attribute: CUfunction_attribute,
    handle: Ptr<CUfunc_st>,
) -> Answer {
    let state = driver.state();
    out.given()?;
    let function = state.function(handle)?;
    if !function.loaded && OF_LOADED.contains(&attribute) {
        return Err(CUresult::CUDA_ERROR_FUNCTION_NOT_LOADED);
    }
    let attributes = state.attributes(handle.address(), function.device);
    let value = attributes.get(attribute, &function.info, &state)?;
    // A function says only whether it was set, a kernel to which number (recorded).
    let is_flag =
        attribute == CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    out.write(if is_flag { i32::from(value != 0) } else { value })
}

pub(crate) fn func_set(driver: &Driver, handle: Ptr<CUfunc_st>, setting: Setting) -> Answer {
    let mut state = driver.state();
    let function = state.function(handle)?;
    let attributes = function.attributes.with(setting, &function.info, &state)?;
    if let Some(function) = state.functions.get_mut(&handle.address()) {
        function.attributes = attributes;
    }
    Ok(())
}

// Null has an error of its own in the functions that ask what a function is, as recorded.

pub(crate) fn func_get_name(
    driver: &Driver,
    out: Ptr<*const c_char>,
    function: Ptr<CUfunc_st>,
) -> Answer {
    let state = driver.state();
    function.given()?;
    out.write(state.function(function)?.info.symbol.as_ptr())
}

pub(crate) fn func_get_module(
    driver: &Driver,
    out: Ptr<*mut CUmod_st>,
    function: Ptr<CUfunc_st>,
) -> Answer {
    let state = driver.state();
    function.given()?;
    out.write(handle::pointer(state.function(function)?.module))
}

pub(crate) fn func_get_param_info(
    driver: &Driver,
    function: Ptr<CUfunc_st>,
    index: usize,
    offset: Ptr<usize>,
    size: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    function.given()?;
    write_param(&state.function(function)?.info, index, offset, size)
}

pub(crate) fn func_is_loaded(
    driver: &Driver,
    out: Ptr<CUfunctionLoadingState>,
    function: Ptr<CUfunc_st>,
) -> Answer {
    let state = driver.state();
    out.write(if state.function(function)?.loaded {
        CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED
    } else {
        CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_UNLOADED
    })
}

pub(crate) fn func_load(driver: &Driver, function: Ptr<CUfunc_st>) -> Answer {
    let mut state = driver.state();
    state.function(function)?;
    state.note_loaded(function.address());
    Ok(())
}

//! Functions. A function is a kernel of a module, and is bound to the device of the module.

use std::ffi::c_char;
use std::sync::Arc;

use green_ctx_sys::{CUfunc_st, CUfunction_attribute, CUresult};

use super::{Attributes, Setting};
use crate::driver::Driver;
use crate::image::KernelInfo;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// The object behind a `CUfunction`.
pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) info: Arc<KernelInfo>,
    /// The handle of the library's kernel; `None` if the function does not belong to a library.
    pub(crate) kernel: Option<usize>,
    /// The settings of the function.
    pub(super) attributes: Attributes,
}

impl State {
    pub(crate) fn function(&self, function: Ptr<CUfunc_st>) -> Answer<&Function> {
        let function = self.functions.get(&function.address());
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        self.unpoisoned(function.device)?;
        Ok(function)
    }

    /// Returns the settings of a function, or of a kernel on a device. If a kernel is loaded on the device,
    /// the settings of the kernel's function apply too. The settings of a function take precedence over the
    /// settings of its kernel, no matter which settings were made first (recorded on hardware).
    pub(crate) fn attributes(&self, handle: usize, device: usize) -> Attributes {
        let function = self.functions.get(&handle).or_else(|| self.found_function(handle, device));
        let kernel = function.map_or(Some(handle), |function| function.kernel);
        let kernel = kernel.and_then(|kernel| self.kernels.get(&kernel));
        let below = kernel.map(|kernel| kernel.attributes(self.physical(device)));
        let own = function.map(|function| function.attributes).unwrap_or_default();
        own.over(below.unwrap_or_default())
    }
}

pub(crate) fn func_get_attribute(
    driver: &Driver,
    out: Ptr<i32>,
    attribute: CUfunction_attribute,
    handle: Ptr<CUfunc_st>,
) -> Answer {
    let state = driver.state();
    out.given()?;
    let function = state.function(handle)?;
    let attributes = state.attributes(handle.address(), function.device);
    let value = attributes.get(attribute, &function.info, &state)?;
    // A function reports only whether the flag was set; a kernel reports the number (recorded on hardware).
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

// Query functions return a different error for a null function (recorded on hardware).

pub(crate) fn func_get_name(
    driver: &Driver,
    out: Ptr<*const c_char>,
    function: Ptr<CUfunc_st>,
) -> Answer {
    let state = driver.state();
    function.given()?;
    out.write(state.function(function)?.info.symbol.as_ptr())
}

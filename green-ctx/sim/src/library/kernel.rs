//! Kernels of libraries. Such a kernel belongs to no context.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::Arc;

use green_ctx_sys::{CUfunc_st, CUfunction_attribute, CUkern_st, CUresult};

use super::{Attributes, Function, Setting};
use crate::driver::Driver;
use crate::handle;
use crate::image::KernelInfo;
use crate::pointer::{Answer, Ptr, valid};
use crate::state::State;

/// The object behind a `CUkernel`.
pub(crate) struct Kernel {
    library: usize,
    /// The index of the kernel in the image.
    index: usize,
    pub(super) info: Arc<KernelInfo>,
    /// The settings of the kernel, by device.
    attributes: HashMap<usize, Attributes>,
}

impl Kernel {
    pub(super) fn new(library: usize, index: usize, info: Arc<KernelInfo>) -> Kernel {
        Kernel { library, index, info, attributes: HashMap::new() }
    }

    /// Returns the settings for a device.
    pub(super) fn attributes(&self, device: usize) -> Attributes {
        self.attributes.get(&device).copied().unwrap_or_default()
    }
}

impl State {
    /// Returns the function of a kernel on a device, and loads the library there on first use.
    pub(crate) fn function_of(&mut self, kernel: usize, device: usize) -> Answer<usize> {
        let found = self.kernels.get(&kernel).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let &Kernel { library, index, .. } = found;
        let module = self.module_of_library(library, device)?;
        self.function_at(module, index)
    }

    /// Returns the function of a kernel on a device; `None` if the library is not loaded there.
    pub(super) fn found_function(&self, kernel: usize, device: usize) -> Option<&Function> {
        let Kernel { library, index, .. } = self.kernels.get(&kernel)?;
        let module = self.libraries.get(library)?.modules.get(&device)?;
        self.functions.get(self.modules.get(module)?.functions.get(*index)?)
    }

    pub(crate) fn kernel(&self, kernel: Ptr<CUkern_st>) -> Answer<&Kernel> {
        self.kernels.get(&kernel.address()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }
}

pub(crate) fn kernel_get_function(
    driver: &Driver,
    out: Ptr<*mut CUfunc_st>,
    kernel: Ptr<CUkern_st>,
) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    let function = state.function_of(kernel.address(), device)?;
    out.write(handle::pointer(function))
}

pub(crate) fn kernel_get_attribute(
    driver: &Driver,
    out: Ptr<i32>,
    attribute: CUfunction_attribute,
    kernel: Ptr<CUkern_st>,
    ordinal: i32,
) -> Answer {
    let state = driver.state();
    let kernel = state.kernel(kernel)?;
    let device = state.device(ordinal)?;
    out.write(kernel.attributes(device).get(attribute, &kernel.info, &state)?)
}

pub(crate) fn kernel_set(
    driver: &Driver,
    kernel: Ptr<CUkern_st>,
    ordinal: i32,
    setting: Setting,
) -> Answer {
    let mut state = driver.state();
    let found = state.kernel(kernel)?;
    let device = state.device(ordinal)?;
    let attributes = found.attributes(device).with(setting, &found.info, &state)?;
    if let Some(kernel) = state.kernels.get_mut(&kernel.address()) {
        kernel.attributes.insert(device, attributes);
    }
    Ok(())
}

pub(crate) fn kernel_get_param_info(
    driver: &Driver,
    kernel: Ptr<CUkern_st>,
    index: usize,
    offset: Ptr<usize>,
    size: Ptr<usize>,
) -> Answer {
    let mut state = driver.state();
    kernel.given()?;
    // An H200 requires a current context, although a kernel belongs to none (recorded on hardware).
    state.current()?;
    write_param(&state.kernel(kernel)?.info, index, offset, size)
}

/// Writes the offset of a parameter and, if requested, its size.
pub(super) fn write_param(
    info: &KernelInfo,
    index: usize,
    offset: Ptr<usize>,
    size: Ptr<usize>,
) -> Answer {
    let param = valid(info.params.get(index))?;
    offset.write(param.offset)?;
    size.write_if_given(param.size);
    Ok(())
}

pub(crate) fn kernel_get_name(
    driver: &Driver,
    out: Ptr<*const c_char>,
    kernel: Ptr<CUkern_st>,
) -> Answer {
    let state = driver.state();
    // A null handle has its own error (header).
    kernel.given()?;
    out.write(state.kernel(kernel)?.info.symbol.as_ptr())
}

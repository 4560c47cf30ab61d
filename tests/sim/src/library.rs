//! Libraries, modules, and the kernels in them.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use green_ctx_sys::{
    CUfunc_st, CUfunction_attribute, CUjit_option, CUkern_st, CUlib_st, CUlibraryOption, CUmod_st,
    CUresult,
};

use crate::Profile;
use crate::driver::Driver;
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::profile::attribute;
use crate::ptx::{self, KernelInfo};
use crate::state::State;

/// The registers that every kernel is said to use.
const REGISTERS: i32 = 32;

/// What a `CUlibrary` stands for: the handles of its kernels by name.
pub(crate) struct Library {
    kernels: HashMap<Arc<str>, usize>,
    /// Why the text could not be read, which shows when a kernel is asked for.
    error: Option<CUresult>,
}

/// What a `CUkernel` stands for.
pub(crate) struct Kernel {
    info: Arc<KernelInfo>,
    /// The name for C, at an address that lasts as long as the kernel.
    name: CString,
}

/// What a `CUmodule` stands for: the handles of its functions by name.
pub(crate) struct Module {
    pub(crate) device: usize,
    functions: HashMap<Arc<str>, usize>,
}

/// What a `CUfunction` stands for.
pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) info: Arc<KernelInfo>,
    /// The library's kernel that it was taken from.
    kernel: Option<usize>,
}

impl State {
    /// The kernel behind a `CUfunction` or a `CUkernel` that was cast to one, and the device that
    /// it is bound to.
    pub(crate) fn kernel_info(&self, handle: usize) -> Answer<(Arc<KernelInfo>, Option<usize>)> {
        if let Some(function) = self.functions.get(&handle) {
            return Ok((Arc::clone(&function.info), Some(function.device)));
        }
        let kernel = self.kernels.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok((Arc::clone(&kernel.info), None))
    }

    fn add_function(&mut self, function: Function) -> usize {
        let handle = handle::next();
        self.functions.insert(handle, function);
        handle
    }
}

/// The text of an image; `CUDA_ERROR_NOT_SUPPORTED` for a binary, of which none is understood.
fn read_text(image: &Ptr<c_char>) -> Answer<&CStr> {
    let mut magic = [0; 4];
    // Four bytes may be more than a short text has, so they are read one by one.
    for (index, byte) in magic.iter_mut().enumerate() {
        *byte = image.cast::<u8>().element(index).read()?;
        if *byte == 0 {
            break;
        }
    }
    if magic == *b"\x7fELF" || magic == 0xba55_ed50_u32.to_le_bytes() {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    image.c_str()
}

/// Reads the kernels of a PTX text; `CUDA_ERROR_INVALID_IMAGE` where nothing in it is PTX, as
/// recorded.
fn read_kernels(text: &CStr, profile: &Profile) -> Answer<Vec<Arc<KernelInfo>>> {
    if !text.to_bytes().windows(8).any(|word| word == b".version") {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    let text = text.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
    let ptx = ptx::parse(text).ok_or(CUresult::CUDA_ERROR_INVALID_PTX)?;
    if ptx.target > profile.compute_capability.0 * 10 + profile.compute_capability.1 {
        return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    Ok(ptx.kernels.into_iter().map(Arc::new).collect())
}

#[expect(clippy::too_many_arguments, reason = "the C function has them")]
pub(crate) fn load(
    driver: &Driver,
    out: Ptr<*mut CUlib_st>,
    image: Ptr<c_void>,
    _jit_options: Ptr<CUjit_option>,
    _jit_values: Ptr<*mut c_void>,
    _jit_count: u32,
    _options: Ptr<CUlibraryOption>,
    _values: Ptr<*mut c_void>,
    _count: u32,
) -> Answer {
    let mut state = driver.state();
    out.given()?;
    let image = image.cast();
    // A library takes any text, as recorded: what is wrong with it shows when a kernel is needed.
    let (kernels, error) = match read_kernels(read_text(&image)?, state.profile) {
        Ok(kernels) => (kernels, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut library = Library { kernels: HashMap::new(), error };
    for info in kernels {
        let name = CString::new(&*info.name).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
        let handle = handle::next();
        library.kernels.insert(Arc::clone(&info.name), handle);
        state.kernels.insert(handle, Kernel { info, name });
    }
    let handle = handle::next();
    state.libraries.insert(handle, library);
    out.write(handle::pointer(handle))
}

pub(crate) fn unload(driver: &Driver, library: Ptr<CUlib_st>) -> Answer {
    let mut state = driver.state();
    let library = state.libraries.remove(&library.address());
    let gone: Vec<usize> =
        library.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.kernels.into_values().collect();
    state
        .functions
        .retain(|_, function| function.kernel.is_none_or(|kernel| !gone.contains(&kernel)));
    for kernel in gone {
        state.kernels.remove(&kernel);
    }
    // Its kernels may be running on any device.
    let devices: Vec<usize> = state.devices.iter().map(|device| device.primary).collect();
    for primary in devices {
        let busy = state.busy(primary);
        state.wait_on_host(&busy);
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
    let library = state.libraries.get(&library.address());
    let library = library.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    library.error.map_or(Ok(()), Err)?;
    let name = name.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    let kernel = library.kernels.get(name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    out.write(handle::pointer(*kernel))
}

/// Counting the kernels of text that could not be read is no error, as recorded; no record says the
/// number, which is taken to be 0.
pub(crate) fn get_kernel_count(driver: &Driver, out: Ptr<u32>, library: Ptr<CUlib_st>) -> Answer {
    let state = driver.state();
    let library = state.libraries.get(&library.address());
    let library = library.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    out.write(library.kernels.len() as u32)
}

pub(crate) fn kernel_get_function(
    driver: &Driver,
    out: Ptr<*mut CUfunc_st>,
    kernel: Ptr<CUkern_st>,
) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    let kernel = kernel.address();
    let info = state.kernels.get(&kernel).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let info = Arc::clone(&info.info);
    let same = |function: &Function| function.kernel == Some(kernel) && function.device == device;
    let known =
        state.functions.iter().find(|(_, function)| same(function)).map(|(handle, _)| *handle);
    let function = Function { device, info, kernel: Some(kernel) };
    let handle = known.unwrap_or_else(|| state.add_function(function));
    out.write(handle::pointer(handle))
}

pub(crate) fn kernel_get_attribute(
    driver: &Driver,
    out: Ptr<i32>,
    attribute: CUfunction_attribute,
    kernel: Ptr<CUkern_st>,
    ordinal: i32,
) -> Answer {
    let state = driver.state();
    state.kernels.get(&kernel.address()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    state.device(ordinal)?;
    let (major, minor) = state.profile.compute_capability;
    let binary = (major * 10 + minor) as i32;
    out.write(match attribute {
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => {
            state.profile.attribute(attribute::MAX_THREADS_PER_BLOCK).unwrap_or(0)
        }
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => REGISTERS,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION
        | CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => binary,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            state.profile.attribute(attribute::MAX_SHARED_MEMORY_PER_BLOCK).unwrap_or(0)
        }
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
        CUfunction_attribute(number) if number < CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX.0 => 0,
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

pub(crate) fn kernel_get_param_info(
    driver: &Driver,
    kernel: Ptr<CUkern_st>,
    index: usize,
    offset: Ptr<usize>,
    size: Ptr<usize>,
) -> Answer {
    let state = driver.state();
    let kernel = state.kernels.get(&kernel.address()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let param = kernel.info.params.get(index).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
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
    let kernel = state.kernels.get(&kernel.address()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    out.write(kernel.name.as_ptr())
}

pub(crate) fn module_load(driver: &Driver, out: Ptr<*mut CUmod_st>, image: Ptr<c_void>) -> Answer {
    let mut state = driver.state();
    let device = state.current_device()?;
    out.given()?;
    let mut module = Module { device, functions: HashMap::new() };
    let image = image.cast();
    for info in read_kernels(read_text(&image)?, state.profile)? {
        let name = Arc::clone(&info.name);
        module.functions.insert(name, state.add_function(Function { device, info, kernel: None }));
    }
    let handle = handle::next();
    state.modules.insert(handle, module);
    out.write(handle::pointer(handle))
}

pub(crate) fn module_unload(driver: &Driver, module: Ptr<CUmod_st>) -> Answer {
    let mut state = driver.state();
    let module = state
        .modules
        .get(&module.address())
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
        .map(|found| (module.address(), found.device))?;
    state.unpoisoned(module.1)?;
    for function in state
        .modules
        .remove(&module.0)
        .into_iter()
        .flat_map(|module| module.functions.into_values())
    {
        state.functions.remove(&function);
    }
    Ok(())
}

pub(crate) fn module_get_function(
    driver: &Driver,
    out: Ptr<*mut CUfunc_st>,
    module: Ptr<CUmod_st>,
    name: Ptr<c_char>,
) -> Answer {
    let state = driver.state();
    let module = state.modules.get(&module.address()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    state.unpoisoned(module.device)?;
    let name = name.c_str()?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    let function = module.functions.get(name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    out.write(handle::pointer(*function))
}

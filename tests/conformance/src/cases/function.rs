//! Modules, functions, and the attributes that can be set on kernels.

use std::ptr::{null, null_mut};

use green_ctx_sys::{CUfunction, CUfunction_attribute, CUlaunchConfig, CUmodule, CUresult};
use serde_json::json;

use super::library::{KERNELS, kernel, library, text};
use super::{Case, Needs};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::Gpu;

const SHARED: CUfunction_attribute =
    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = of_modules();
    cases.extend(of_attributes());
    cases.extend(of_launches());
    cases
}

fn module(gpu: &Gpu) -> Result<CUmodule, Failure> {
    gpu.cuModuleLoadData(text())?.must()
}

fn of_modules() -> Vec<Case> {
    vec![
        Case::new("function/null", |gpu, answer| {
            let null = null_mut();
            answer.add("get_attribute", gpu.cuFuncGetAttribute(SHARED, null)?);
            answer.add("set_attribute", gpu.cuFuncSetAttribute(null, SHARED, 0)?);
            answer.add("get_name", gpu.cuFuncGetName(null)?);
            answer.add("kernel_get_attribute", gpu.cuKernelGetAttribute(SHARED, null_mut(), 0)?);
            answer.add("kernel_set_attribute", gpu.cuKernelSetAttribute(SHARED, 0, null_mut(), 0)?);
            answer.add("kernel_get_function", gpu.cuKernelGetFunction(null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("function/null-module", |gpu, answer| {
            answer.add("get_function", gpu.cuModuleGetFunction(null_mut(), c"second")?);
            answer.add("unload", gpu.cuModuleUnload(null_mut())?);
            answer.add("load", gpu.load_module(null())?);
            Ok(())
        })
        .alone(),
        Case::new("function/module-unloaded-twice", |gpu, answer| {
            let module = module(gpu)?;
            answer.add("first", gpu.cuModuleUnload(module)?);
            answer.add("second", gpu.cuModuleUnload(module)?);
            Ok(())
        })
        .alone(),
        Case::new("function/without-context", |gpu, answer| {
            gpu.push(gpu.primary()?)?;
            let module = module(gpu)?;
            let function = gpu.cuModuleGetFunction(module, c"second")?.must()?;
            gpu.pop()?;
            answer.add("get_function", gpu.cuModuleGetFunction(module, c"first")?);
            answer.add("get_attribute", gpu.cuFuncGetAttribute(SHARED, function)?);
            answer.add("set_attribute", gpu.cuFuncSetAttribute(function, SHARED, 1024)?);
            answer.add("get_name", gpu.cuFuncGetName(function)?);
            answer.add("unload", gpu.cuModuleUnload(module)?);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
    ]
}

fn of_attributes() -> Vec<Case> {
    let mut cases: Vec<Case> = KERNELS
        .into_iter()
        .map(|name| {
            let title = format!("function/attributes-of-{}", name.to_string_lossy());
            Case::new(title, move |gpu, answer| {
                let library = library(gpu)?;
                let kernel = kernel(gpu, library, name)?;
                let function = gpu.cuKernelGetFunction(kernel)?.must()?;
                // The compiler chooses the number of registers (4).
                for number in (0..18).chain([999, u32::MAX]).filter(|number| *number != 4) {
                    let attribute = CUfunction_attribute(number);
                    let of_function = gpu.cuFuncGetAttribute(attribute, function)?;
                    let of_kernel = gpu.cuKernelGetAttribute(attribute, kernel, gpu.device)?;
                    answer.add(number.to_string(), json!([of_function.value(), of_function.out]));
                    let of_kernel = json!([of_kernel.value(), of_kernel.out]);
                    answer.add(format!("{number} of the kernel"), of_kernel);
                }
                gpu.cuLibraryUnload(library)?.must()
            })
        })
        .collect();
    // Attributes by number, with the values to set.
    let tables: [(&str, u32, &[i32]); 9] = [
        (
            "shared",
            8,
            &[-1, 0, 1, 49_151, 49_152, 49_153, 232_192, 232_193, 232_448, 232_449, i32::MAX],
        ),
        ("carveout", 9, &[-2, -1, 0, 1, 50, 100, 101]),
        ("width", 11, &[-1, 0, 1, 2, 16, 17]),
        ("height", 12, &[-1, 0, 1, 2]),
        ("depth", 13, &[-1, 0, 1, 2]),
        ("non-portable", 14, &[-1, 0, 1, 2]),
        ("policy", 15, &[-1, 0, 1, 2, 3]),
        ("node-update", 16, &[0, 1]),
        ("unknown", 999, &[0]),
    ];
    for (name, number, values) in tables {
        for kernel in [c"first", c"clustered"] {
            let title = format!("function/set-{name}-of-{}", kernel.to_string_lossy());
            let values: Vec<i32> = values.into();
            cases.push(Case::new(title, move |gpu, answer| {
                set(gpu, answer, kernel, CUfunction_attribute(number), &values)
            }));
        }
    }
    cases.extend([
        Case::new("function/set-read-only", |gpu, answer| {
            let library = library(gpu)?;
            let kernel = kernel(gpu, library, c"second")?;
            let function = gpu.cuKernelGetFunction(kernel)?.must()?;
            for number in (0..8).chain([10]) {
                let attribute = CUfunction_attribute(number);
                answer.add(number.to_string(), gpu.cuFuncSetAttribute(function, attribute, 1)?);
                let of_kernel = gpu.cuKernelSetAttribute(attribute, 1, kernel, gpu.device)?;
                answer.add(format!("{number} of the kernel"), of_kernel);
            }
            gpu.cuLibraryUnload(library)?.must()
        }),
        Case::new("function/set-on-kernel-and-function", |gpu, answer| {
            let library = library(gpu)?;
            let kernel = kernel(gpu, library, c"second")?;
            let function = gpu.cuKernelGetFunction(kernel)?.must()?;
            let mut both = |step: &str| -> Outcome {
                let of_function = gpu.cuFuncGetAttribute(SHARED, function)?.out;
                let of_kernel = gpu.cuKernelGetAttribute(SHARED, kernel, gpu.device)?.out;
                answer.add(step, json!({ "function": of_function, "kernel": of_kernel }));
                Ok(())
            };
            both("at_first")?;
            gpu.cuKernelSetAttribute(SHARED, 60_000, kernel, gpu.device)?.must()?;
            both("after_kernel")?;
            gpu.cuFuncSetAttribute(function, SHARED, 70_000)?.must()?;
            both("after_function")?;
            gpu.cuKernelSetAttribute(SHARED, 80_000, kernel, gpu.device)?.must()?;
            both("after_kernel_again")?;
            gpu.cuLibraryUnload(library)?.must()
        }),
        Case::new("function/kernel-attributes-by-device", |gpu, answer| {
            let library = library(gpu)?;
            let kernel = kernel(gpu, library, c"second")?;
            for device in [-1, 99] {
                let get = gpu.cuKernelGetAttribute(SHARED, kernel, device)?;
                answer.add(format!("get {device}"), get);
                let set = gpu.cuKernelSetAttribute(SHARED, 1024, kernel, device)?;
                answer.add(format!("set {device}"), set);
            }
            gpu.cuLibraryUnload(library)?.must()
        }),
        Case::new("function/set-on-green", |gpu, answer| {
            let library = library(gpu)?;
            let kernel = kernel(gpu, library, c"second")?;
            let function = gpu.cuKernelGetFunction(kernel)?.must()?;
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            let of_green = gpu.cuKernelGetFunction(kernel)?.must()?;
            gpu.cuFuncSetAttribute(of_green, SHARED, 70_000)?.must()?;
            answer.add("of_green", gpu.cuFuncGetAttribute(SHARED, of_green)?.out);
            answer.add("of_primary", gpu.cuFuncGetAttribute(SHARED, function)?.out);
            gpu.cuLibraryUnload(library)?.must()
        }),
    ]);
    cases
}

/// Sets an attribute to each value in turn, on a kernel and on its function, and reads it back.
fn set(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
    name: &'static std::ffi::CStr,
    attribute: CUfunction_attribute,
    values: &[i32],
) -> Outcome {
    let library = library(gpu)?;
    let kernel = kernel(gpu, library, name)?;
    let function = gpu.cuKernelGetFunction(kernel)?.must()?;
    for &value in values {
        let of_kernel = gpu.cuKernelSetAttribute(attribute, value, kernel, gpu.device)?;
        let then = gpu.cuKernelGetAttribute(attribute, kernel, gpu.device)?.out;
        answer.add(format!("{value} on the kernel"), json!([of_kernel.value(), then]));
        let of_function = gpu.cuFuncSetAttribute(function, attribute, value)?;
        let then = gpu.cuFuncGetAttribute(attribute, function)?.out;
        answer.add(value.to_string(), json!([of_function.value(), then]));
    }
    gpu.cuLibraryUnload(library)?.must()
}

fn of_launches() -> Vec<Case> {
    vec![
        Case::new("function/launch-beyond-its-threads", |gpu, answer| {
            let library = library(gpu)?;
            let exact = gpu.cuKernelGetFunction(kernel(gpu, library, c"exact")?)?.must()?;
            for block in [[64, 2, 1], [128, 1, 1], [2, 64, 1], [32, 1, 1], [64, 2, 2]] {
                let status = launch(gpu, exact, [1, 1, 1], block, 0)?;
                answer.add(format!("exact {block:?}"), status);
            }
            let first = gpu.cuKernelGetFunction(kernel(gpu, library, c"first")?)?.must()?;
            let mut params = parameters(gpu)?;
            for block in [1, 128, 129, 256, 1024] {
                let status = gpu.cuLaunchKernel(first, 1, block, null_mut(), &mut params)?;
                answer.add(format!("first {block}"), status);
            }
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            gpu.cuLibraryUnload(library)?.must()
        })
        .alone(),
        Case::new("function/launch-with-shared-memory", |gpu, answer| {
            let library = library(gpu)?;
            let second = gpu.cuKernelGetFunction(kernel(gpu, library, c"second")?)?.must()?;
            for allowed in [None, Some(100_000), Some(1024), Some(232_448)] {
                let name =
                    allowed.map_or("at_first".to_owned(), |bytes| format!("{bytes} allowed"));
                if let Some(bytes) = allowed {
                    gpu.cuFuncSetAttribute(second, SHARED, bytes)?.must()?;
                }
                for bytes in [0, 1024, 1025, 49_152, 49_153, 100_000, 100_001, 232_448, 232_449] {
                    let status = launch(gpu, second, [1, 1, 1], [32, 1, 1], bytes)?;
                    answer.add(format!("{name}, {bytes}"), status);
                }
            }
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            gpu.cuLibraryUnload(library)?.must()
        })
        .alone(),
        Case::new("function/launch-clustered", |gpu, answer| {
            let library = library(gpu)?;
            for name in [c"clustered", c"open"] {
                let function = gpu.cuKernelGetFunction(kernel(gpu, library, name)?)?.must()?;
                for blocks in [1, 2, 3, 4] {
                    let status = launch(gpu, function, [blocks, 1, 1], [32, 1, 1], 0)?;
                    answer.add(format!("{} {blocks}", name.to_string_lossy()), status);
                }
            }
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            gpu.cuLibraryUnload(library)?.must()
        })
        .alone(),
    ]
}

/// Returns the parameters of `first`. Only the address matters.
fn parameters(gpu: &Gpu) -> Result<crate::calls::Params, Failure> {
    // The driver reads each of the four from eight bytes, except the third, which is longer.
    let memory = gpu.cuMemAlloc(64)?.must()?;
    Ok(crate::calls::Params::new(&[memory, 0, 0, 0, 0, 0]))
}

fn launch(
    gpu: &Gpu,
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
) -> Result<CUresult, Failure> {
    let config = CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        hStream: null_mut(),
        attrs: null_mut(),
        numAttrs: 0,
    };
    Ok(gpu.cuLaunchKernelEx(&config, function)?.status)
}

//! Memory and libraries: requests at the limits, and the contexts that they need.

pub(super) mod copy;
pub(super) mod fill;
pub(super) mod host;
pub(super) mod ipc;
pub(super) mod pointer;
pub(super) mod pool;

use std::ffi::CStr;
use std::ptr::null_mut;

use green_ctx_sys::CUstreamCaptureMode;

use super::{Case, Needs};
use crate::answer::{Answer, Outcome};
use crate::gpu::{Gpu, ptx};

/// Texts that are not PTX, or not PTX that the device can run.
const OTHER_TEXTS: [(&str, &CStr); 4] = [
    ("words", c"these are only words"),
    ("no_target", c".version 5.0\n"),
    ("unknown_target", c".version 5.0\n.target sm_1234\n.address_size 64\n"),
    ("broken", c".version 5.0\n.target sm_52\n.address_size 64\n.entry x( {"),
];

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("memory/alloc-nothing", |gpu, answer| alloc(gpu, answer, 0)),
        Case::new("memory/alloc-one-byte", |gpu, answer| alloc(gpu, answer, 1)),
        Case::new("memory/alloc-a-pebibyte", |gpu, answer| alloc(gpu, answer, 1 << 50)),
        Case::new("memory/alloc-everything", |gpu, answer| alloc(gpu, answer, usize::MAX)),
        Case::new("memory/free-null", |gpu, answer| {
            answer.add("status", gpu.cuMemFree(0)?);
            Ok(())
        }),
        Case::new("memory/free-garbage", |gpu, answer| {
            answer.add("status", gpu.cuMemFree(0x1234)?);
            Ok(())
        }),
        Case::new("memory/free-twice", |gpu, answer| {
            let address = gpu.cuMemAlloc(4096)?.must()?;
            answer.add("first", gpu.cuMemFree(address)?);
            answer.add("second", gpu.cuMemFree(address)?);
            Ok(())
        }),
        Case::new("memory/free-the-middle", |gpu, answer| {
            let address = gpu.cuMemAlloc(4096)?.must()?;
            answer.add("middle", gpu.cuMemFree(address + 256)?);
            answer.add("begin", gpu.cuMemFree(address)?);
            Ok(())
        }),
        Case::new("memory/copy-there-and-back", |gpu, answer| {
            let address = gpu.cuMemAlloc(4)?.must()?;
            answer.add("to_device", gpu.cuMemcpyHtoD(address, &[1, 2, 3, 4])?);
            let mut bytes = [0; 4];
            answer.add("to_host", gpu.cuMemcpyDtoH(&mut bytes, address)?);
            answer.add("equal", bytes == [1, 2, 3, 4]);
            answer.add("fill", gpu.cuMemsetD8(address + 1, 9, 2)?);
            gpu.cuCtxSynchronize()?.must()?;
            gpu.cuMemcpyDtoH(&mut bytes, address)?.must()?;
            answer.add("filled", bytes == [1, 9, 9, 4]);
            answer.add("copy_nothing", gpu.cuMemcpyHtoD(address, &[])?);
            answer.add("fill_nothing", gpu.cuMemsetD8(address, 0, 0)?);
            answer.add("free", gpu.cuMemFree(address)?);
            Ok(())
        }),
        Case::new("memory/copy-garbage", |gpu, answer| {
            answer.add("to_device", gpu.cuMemcpyHtoD(0x1234, &[1, 2, 3, 4])?);
            answer.add("to_host", gpu.cuMemcpyDtoH(&mut [0; 4], 0x1234)?);
            answer.add("fill", gpu.cuMemsetD8(0x1234, 0, 4)?);
            answer.add("to_null", gpu.cuMemcpyHtoD(0, &[1])?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("memory/alloc-async", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let other = gpu.stream()?;
            let memory = gpu.cuMemAllocAsync(4096, stream)?;
            answer.add("alloc_on_green", memory);
            answer.add("fill", gpu.cuMemsetD8Async(memory.out, 7, 4096, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            let mut bytes = vec![0; 4096];
            answer.add("copy", gpu.cuMemcpyDtoH(&mut bytes, memory.out)?);
            answer.add("filled", bytes.iter().all(|byte| *byte == 7));
            answer.add("free_on_primary", gpu.cuMemFreeAsync(memory.out, other)?);
            answer.add("free_again", gpu.cuMemFreeAsync(memory.out, other)?);
            answer.add("free_null", gpu.cuMemFreeAsync(0, other)?);
            let nothing = gpu.cuMemAllocAsync(0, stream)?;
            answer.add("alloc_nothing", nothing);
            answer.add("nothing_is_null", nothing.out == 0);
            Ok(())
        }),
        Case::new("memory/alloc-async-captured", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            gpu.cuStreamBeginCapture(stream, relaxed)?.must()?;
            let memory = gpu.cuMemAllocAsync(4096, stream)?;
            answer.add("alloc", memory);
            let nothing = gpu.cuMemAllocAsync(0, stream)?;
            answer.add("alloc_nothing", nothing);
            answer.add("nothing_is_null", nothing.out == 0);
            answer.add("fill", gpu.cuMemsetD8Async(memory.out, 7, 4096, stream)?);
            answer.add("free_null", gpu.cuMemFreeAsync(0, stream)?);
            answer.add("free", gpu.cuMemFreeAsync(memory.out, stream)?);
            answer.add("free_again", gpu.cuMemFreeAsync(memory.out, stream)?);
            let graph = gpu.cuStreamEndCapture(stream)?;
            answer.add("end", graph);
            let mut nodes = 0;
            gpu.cuGraphGetNodes(graph.out, null_mut(), &raw mut nodes)?.must()?;
            answer.add("nodes", nodes);
            Ok(())
        }),
        Case::new("memory/of-green-used-on-primary", |gpu, answer| {
            let stream = gpu.stream()?;
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            let memory = gpu.cuMemAlloc(4096)?;
            answer.add("alloc", memory);
            gpu.pop()?;
            answer.add("fill", gpu.cuMemsetD8Async(memory.out, 7, 4096, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("free", gpu.cuMemFree(memory.out)?);
            Ok(())
        }),
        Case::new("memory/outlives-its-green-context", |gpu, answer| {
            let green = gpu.green_with(64)?;
            gpu.push(gpu.context_of(green)?)?;
            let memory = gpu.cuMemAlloc(4)?.must()?;
            gpu.pop()?;
            gpu.cuMemcpyHtoD(memory, &[1, 2, 3, 4])?.must()?;
            answer.add("destroy", gpu.cuGreenCtxDestroy(green)?);
            let mut bytes = [0; 4];
            answer.add("copy", gpu.cuMemcpyDtoH(&mut bytes, memory)?);
            answer.add("equal", bytes == [1, 2, 3, 4]);
            answer.add("free", gpu.cuMemFree(memory)?);
            Ok(())
        })
        .alone(),
        Case::new("memory/freed-without-context", |gpu, answer| {
            let memory = gpu.cuMemAlloc(64)?.must()?;
            let ordered = gpu.cuMemAllocAsync(64, gpu.stream()?)?.must()?;
            gpu.pop()?;
            for (which, memory) in [("plain", memory), ("ordered", ordered)] {
                answer.add(which, gpu.cuMemFree(memory)?);
                answer.add(format!("{which}_again"), gpu.cuMemFree(memory)?);
            }
            Ok(())
        })
        .alone(),
        Case::new("memory/library-without-context", |gpu, answer| {
            let library = gpu.cuLibraryLoadData(ptx())?;
            answer.add("load", library);
            let count = gpu.cuLibraryGetKernelCount(library.out)?;
            answer.add("get_kernel_count", count);
            answer.add("kernels", count.out);
            let kernel = gpu.cuLibraryGetKernel(library.out, c"green_ctx_probe")?;
            answer.add("get_kernel", kernel);
            let again = gpu.cuLibraryGetKernel(library.out, c"green_ctx_probe")?;
            answer.add("same_kernel", kernel.out == again.out);
            answer.add("get_function", gpu.cuKernelGetFunction(kernel.out)?);
            let none = gpu.cuLibraryGetKernel(library.out, c"no_such_kernel")?;
            answer.add("unknown", none);
            answer.add("unknown_is_null", none.out.is_null());
            answer.add("empty_name", gpu.cuLibraryGetKernel(library.out, c"")?);
            answer.add("unload", gpu.cuLibraryUnload(library.out)?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("memory/library-of-other-text", |gpu, answer| {
            for (name, text) in OTHER_TEXTS {
                let library = gpu.cuLibraryLoadData(text)?;
                answer.add(name, library);
                if library.is_ok() {
                    answer.add(format!("{name}_unload"), gpu.cuLibraryUnload(library.out)?);
                }
            }
            Ok(())
        }),
        // Loading a library accepts any text. The errors appear only here.
        Case::new("memory/kernel-of-other-text", |gpu, answer| {
            for (name, text) in OTHER_TEXTS {
                let library = gpu.cuLibraryLoadData(text)?.must()?;
                let kernel = gpu.cuLibraryGetKernel(library, c"x")?;
                answer.add(format!("{name}_get_kernel"), kernel);
                answer.add(format!("{name}_is_null"), kernel.out.is_null());
                let count = gpu.cuLibraryGetKernelCount(library)?;
                answer.add(format!("{name}_count"), count);
                answer.add(format!("{name}_unload"), gpu.cuLibraryUnload(library)?);
            }
            Ok(())
        }),
        Case::new("memory/library-of-nothing", |gpu, answer| {
            let text = c".version 5.0\n.target sm_52\n.address_size 64\n";
            let library = gpu.cuLibraryLoadData(text)?;
            answer.add("load", library);
            if library.is_ok() {
                answer.add("kernels", gpu.cuLibraryGetKernelCount(library.out)?.out);
            }
            Ok(())
        }),
        Case::new("memory/module-and-function", |gpu, answer| {
            let module = gpu.cuModuleLoadData(ptx())?;
            answer.add("load", module);
            answer.add("probe", gpu.cuModuleGetFunction(module.out, c"green_ctx_probe")?);
            answer.add("unknown", gpu.cuModuleGetFunction(module.out, c"no_such_kernel")?);
            answer.add("unload", gpu.cuModuleUnload(module.out)?);
            answer.add("words", gpu.cuModuleLoadData(c"these are only words")?);
            Ok(())
        }),
    ]
}

fn alloc(gpu: &Gpu, answer: &mut Answer<'_>, bytes: usize) -> Outcome {
    let memory = gpu.cuMemAlloc(bytes)?;
    answer.add("alloc", memory);
    answer.add("null", memory.out == 0);
    if memory.is_ok() {
        answer.add("free", gpu.cuMemFree(memory.out)?);
    }
    Ok(())
}

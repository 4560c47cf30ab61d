//! Page-locked host memory.

use std::ffi::c_void;
use std::ptr::null_mut;

use green_ctx_sys::CUdeviceptr;

use crate::answer::Failure;
use crate::cases::{Case, Needs};
use crate::gpu::{Gpu, LONG, SHORT};

/// Page-aligned memory of the program.
#[repr(align(4096))]
struct Page([u8; 8192]);

impl Page {
    fn new() -> Box<Page> {
        Box::new(Page([0; 8192]))
    }

    fn at(&mut self, offset: usize) -> *mut c_void {
        self.0.as_mut_ptr().wrapping_add(offset).cast()
    }
}

fn address(pointer: *mut c_void) -> CUdeviceptr {
    pointer.expose_provenance() as CUdeviceptr
}

/// Returns the content as a host-to-host copy reads it.
fn bytes(gpu: &Gpu, pointer: *mut c_void) -> Result<Vec<u32>, Failure> {
    let mut bytes = [0_u8; 4];
    gpu.cuMemcpy(bytes.as_mut_ptr().expose_provenance() as CUdeviceptr, address(pointer), 4)?
        .must()?;
    gpu.cuCtxSynchronize()?.must()?;
    Ok(bytes.map(u32::from).to_vec())
}

pub(in crate::cases) fn cases() -> Vec<Case> {
    vec![
        Case::new("host/alloc-and-free", |gpu, answer| {
            let host = gpu.cuMemAllocHost(100)?;
            answer.add("alloc", host);
            answer.add("middle", gpu.cuMemFreeHost(host.out.wrapping_byte_add(64))?);
            answer.add("free", gpu.cuMemFreeHost(host.out)?);
            answer.add("again", gpu.cuMemFreeHost(host.out)?);
            answer.add("null", gpu.cuMemFreeHost(null_mut())?);
            let nothing = gpu.cuMemAllocHost(0)?;
            answer.add("nothing", nothing);
            answer.add("nothing_is_null", nothing.out.is_null());
            Ok(())
        })
        .alone(),
        Case::new("host/alloc-with-flags", |gpu, answer| {
            for flags in 0..10 {
                let host = gpu.cuMemHostAlloc(4096, flags)?;
                answer.add(format!("alloc_{flags}"), host);
                if host.is_ok() {
                    gpu.cuMemFreeHost(host.out)?.must()?;
                }
            }
            answer.add("nothing", gpu.cuMemHostAlloc(0, 0)?);
            Ok(())
        }),
        Case::new("host/register", |gpu, answer| {
            let mut page = Page::new();
            answer.add("unregister_first", gpu.cuMemHostUnregister(page.at(0))?);
            answer.add("register", gpu.cuMemHostRegister(page.at(0), 4096, 0)?);
            answer.add("again", gpu.cuMemHostRegister(page.at(0), 4096, 0)?);
            answer.add("overlap", gpu.cuMemHostRegister(page.at(2048), 4096, 0)?);
            answer.add("middle", gpu.cuMemHostUnregister(page.at(64))?);
            answer.add("unregister", gpu.cuMemHostUnregister(page.at(0))?);
            answer.add("unregister_again", gpu.cuMemHostUnregister(page.at(0))?);
            answer.add("part_of_a_page", gpu.cuMemHostRegister(page.at(64), 100, 0)?);
            answer.add("unregister_part", gpu.cuMemHostUnregister(page.at(64))?);
            Ok(())
        })
        .alone(),
        Case::new("host/register-the-impossible", |gpu, answer| {
            let mut page = Page::new();
            answer.add("null", gpu.cuMemHostRegister(null_mut(), 4096, 0)?);
            answer.add("nothing", gpu.cuMemHostRegister(page.at(0), 0, 0)?);
            answer.add("unregister_null", gpu.cuMemHostUnregister(null_mut())?);
            let host = gpu.cuMemAllocHost(4096)?.must()?;
            answer.add("pinned", gpu.cuMemHostRegister(host, 4096, 0)?);
            answer.add("unregister_pinned", gpu.cuMemHostUnregister(host)?);
            answer.add("free_pinned", gpu.cuMemFreeHost(host)?);
            Ok(())
        })
        .alone(),
        Case::new("host/register-with-flags", |gpu, answer| {
            for flags in [1, 2, 3, 8, 9, 16, 32] {
                let mut page = Page::new();
                let registered = gpu.cuMemHostRegister(page.at(0), 4096, flags)?;
                answer.add(format!("register_{flags}"), registered);
                if registered.is_ok() {
                    gpu.cuMemHostUnregister(page.at(0))?.must()?;
                }
            }
            Ok(())
        })
        .alone(),
        Case::new("host/free-the-wrong-way", |gpu, answer| {
            let mut page = Page::new();
            let host = gpu.cuMemAllocHost(4096)?.must()?;
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            gpu.cuMemHostRegister(page.at(0), 4096, 0)?.must()?;
            answer.add("host_as_device", gpu.cuMemFree(address(host))?);
            let device: *mut c_void = std::ptr::with_exposed_provenance_mut(memory as usize);
            answer.add("device_as_host", gpu.cuMemFreeHost(device)?);
            answer.add("registered_as_pinned", gpu.cuMemFreeHost(page.at(0))?);
            answer.add("pageable", gpu.cuMemFreeHost(page.at(4096))?);
            answer.add("in_stream_order", gpu.cuMemFreeAsync(address(host), null_mut())?);
            answer.add("unregister", gpu.cuMemHostUnregister(page.at(0))?);
            Ok(())
        })
        .alone(),
        Case::new("host/without-a-context", |gpu, answer| {
            answer.add("alloc", gpu.cuMemAllocHost(4096)?);
            answer.add("alloc_flags", gpu.cuMemHostAlloc(4096, 1)?);
            answer.add("register", gpu.cuMemHostRegister(Page::new().at(0), 4096, 0)?);
            answer.add("free", gpu.cuMemFreeHost(null_mut())?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("host/freed-without-a-context", |gpu, answer| {
            let mut page = Page::new();
            let host = gpu.cuMemAllocHost(4096)?.must()?;
            gpu.cuMemHostRegister(page.at(0), 4096, 0)?.must()?;
            gpu.pop()?;
            answer.add("free", gpu.cuMemFreeHost(host)?);
            answer.add("unregister", gpu.cuMemHostUnregister(page.at(0))?);
            gpu.push(gpu.primary()?)
        })
        .alone(),
        Case::new("host/copy-without-waiting", |gpu, answer| {
            let (memory, out, stream) =
                (gpu.cuMemAlloc(64)?.must()?, gpu.probe_memory(1)?, gpu.stream()?);
            let host = gpu.cuMemAllocHost(64)?.must()?;
            gpu.cuMemcpyHtoD(memory, &[7; 64])?.must()?;
            answer.add("launch", gpu.launch_probe(stream, 1, out, LONG)?);
            answer.add("to_pinned", gpu.cuMemcpyDtoHAsync(host, memory, 4, stream)?);
            answer.add("then", gpu.cuStreamQuery(stream)?);
            answer.add("from_pinned", gpu.cuMemcpyHtoDAsync(memory + 8, host, 4, stream)?);
            answer.add("then_too", gpu.cuStreamQuery(stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("bytes", bytes(gpu, host)?);
            answer.add("launch_again", gpu.launch_probe(stream, 1, out, LONG)?);
            let mut page = Page::new();
            answer.add("to_pageable", gpu.cuMemcpyDtoHAsync(page.at(0), memory, 4, stream)?);
            answer.add("at_last", gpu.cuStreamQuery(stream)?);
            gpu.cuMemFreeHost(host)?.must()
        }),
        Case::new("host/written-by-a-kernel", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(16)?)?;
            let host = gpu.cuMemAllocHost(64)?.must()?;
            answer.add("launch", gpu.launch_probe(stream, 1, address(host), SHORT)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("complete", gpu.probe_is_complete(address(host), 1)?);
            answer.add("free", gpu.cuMemFreeHost(host)?);
            let mut page = Page::new();
            gpu.cuMemHostRegister(page.at(0), 4096, 0)?.must()?;
            answer.add("registered", gpu.launch_probe(stream, 1, address(page.at(0)), SHORT)?);
            answer.add("unregister", gpu.cuMemHostUnregister(page.at(0))?);
            answer.add("written", page.0[..24].iter().any(|byte| *byte != 0));
            Ok(())
        }),
        Case::new("host/outlives-its-green-context", |gpu, answer| {
            let green = gpu.green_with(16)?;
            gpu.push(gpu.context_of(green)?)?;
            let host = gpu.cuMemAllocHost(64)?.must()?;
            gpu.pop()?;
            answer.add("destroy", gpu.cuGreenCtxDestroy(green)?);
            answer.add("fill", gpu.cuMemsetD8(address(host), 3, 4)?);
            answer.add("bytes", bytes(gpu, host)?);
            answer.add("free", gpu.cuMemFreeHost(host)?);
            Ok(())
        })
        .alone(),
    ]
}

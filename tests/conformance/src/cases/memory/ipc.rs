//! Interprocess memory handles, the profiler, and a device's PCI bus id.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use crate::cases::{Case, Needs};

pub(in crate::cases) fn cases() -> Vec<Case> {
    vec![
        Case::new("ipc/memory-handle", |gpu, answer| {
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            let handle = gpu.cuIpcGetMemHandle(memory)?;
            answer.add("get", handle);
            let again = gpu.cuIpcGetMemHandle(memory)?;
            answer.add("same_again", handle.out.reserved == again.out.reserved);
            answer.add("middle", gpu.cuIpcGetMemHandle(memory + 8)?);
            answer.add("null", gpu.cuIpcGetMemHandle(0)?);
            answer.add("garbage", gpu.cuIpcGetMemHandle(0x1234)?);
            let host = gpu.cuMemAllocHost(4096)?.must()?;
            answer.add("pinned", gpu.cuIpcGetMemHandle(host.expose_provenance() as u64)?);
            let pooled = gpu.cuMemAllocAsync(4096, null_mut())?.must()?;
            gpu.cuCtxSynchronize()?.must()?;
            answer.add("pooled", gpu.cuIpcGetMemHandle(pooled)?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/without-a-context", |gpu, answer| {
            answer.add("get", gpu.cuIpcGetMemHandle(0x1234)?);
            answer.add("profiler_start", gpu.cuProfilerStart()?);
            answer.add("profiler_stop", gpu.cuProfilerStop()?);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
        Case::new("ipc/profiler", |gpu, answer| {
            answer.add("stop_first", gpu.cuProfilerStop()?);
            answer.add("start", gpu.cuProfilerStart()?);
            answer.add("start_again", gpu.cuProfilerStart()?);
            answer.add("stop", gpu.cuProfilerStop()?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/device-by-its-bus", |gpu, answer| {
            let mut text: [c_char; 32] = [0; 32];
            answer.add("text", gpu.cuDeviceGetPCIBusId(&mut text, gpu.device)?);
            // The sign of a C character depends on the machine.
            let bytes = text.map(|byte| byte.to_ne_bytes()[0]);
            let text = CStr::from_bytes_until_nul(&bytes).unwrap_or(c"");
            let found = gpu.cuDeviceGetByPCIBusId(text)?;
            answer.add("device", found);
            answer.add("same", found.out == gpu.device);
            for (name, text) in
                [("empty", c""), ("words", c"these are only words"), ("other", c"fffe:fe:1f.7")]
            {
                answer.add(name, gpu.cuDeviceGetByPCIBusId(text)?);
            }
            Ok(())
        })
        .needs(Needs::Init),
    ]
}

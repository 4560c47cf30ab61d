//! Handles for other processes, peers, and what is asked of a device by its place.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use green_ctx_sys::{CUipcEventHandle_st, CUipcMemHandle_st, CUstreamCaptureMode};

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
            let managed = gpu.cuMemAllocManaged(4096, 1)?.must()?;
            answer.add("managed", gpu.cuIpcGetMemHandle(managed)?);
            let pooled = gpu.cuMemAllocAsync(4096, null_mut())?.must()?;
            gpu.cuCtxSynchronize()?.must()?;
            answer.add("pooled", gpu.cuIpcGetMemHandle(pooled)?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/open-own-memory", |gpu, answer| {
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            let handle = gpu.cuIpcGetMemHandle(memory)?.must()?;
            answer.add("no_flags", gpu.cuIpcOpenMemHandle(handle, 0)?);
            answer.add("other_flags", gpu.cuIpcOpenMemHandle(handle, 2)?);
            let opened = gpu.cuIpcOpenMemHandle(handle, 1)?;
            answer.add("open", opened);
            answer.add("opened_is_null", opened.out == 0);
            Ok(())
        })
        .alone(),
        Case::new("ipc/open-no-memory", |gpu, answer| {
            let handle = CUipcMemHandle_st { reserved: [0; 64] };
            answer.add("zeros", gpu.cuIpcOpenMemHandle(handle, 1)?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/close", |gpu, answer| {
            let memory = gpu.cuMemAlloc(4096)?.must()?;
            answer.add("own", gpu.cuIpcCloseMemHandle(memory)?);
            answer.add("null", gpu.cuIpcCloseMemHandle(0)?);
            answer.add("garbage", gpu.cuIpcCloseMemHandle(0x1234)?);
            answer.add("free", gpu.cuMemFree(memory)?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/event-handle", |gpu, answer| {
            for flags in [0, 2, 6, 7] {
                let event = gpu.cuEventCreate(flags)?.must()?;
                answer.add(format!("get_{flags}"), gpu.cuIpcGetEventHandle(event)?);
                gpu.cuEventDestroy(event)?.must()?;
            }
            answer.add("null", gpu.cuIpcGetEventHandle(null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/open-own-event", |gpu, answer| {
            let event = gpu.cuEventCreate(6)?.must()?;
            let handle = gpu.cuIpcGetEventHandle(event)?.must()?;
            let opened = gpu.cuIpcOpenEventHandle(handle)?;
            answer.add("open", opened);
            answer.add("opened_is_null", opened.out.is_null());
            Ok(())
        })
        .alone(),
        Case::new("ipc/open-no-event", |gpu, answer| {
            let handle = CUipcEventHandle_st { reserved: [0; 64] };
            answer.add("zeros", gpu.cuIpcOpenEventHandle(handle)?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/without-a-context", |gpu, answer| {
            let handle = CUipcMemHandle_st { reserved: [0; 64] };
            answer.add("get", gpu.cuIpcGetMemHandle(0x1234)?);
            answer.add("open", gpu.cuIpcOpenMemHandle(handle, 1)?);
            answer.add("close", gpu.cuIpcCloseMemHandle(0x1234)?);
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
        Case::new("ipc/record-with-flags", |gpu, answer| {
            let (event, stream) = (gpu.event()?, gpu.stream()?);
            for flags in 0..4 {
                let record = gpu.cuEventRecordWithFlags(event, stream, flags)?;
                answer.add(format!("flags_{flags}"), record);
            }
            answer.add("null_event", gpu.cuEventRecordWithFlags(null_mut(), stream, 0)?);
            answer.add("green", {
                let stream = gpu.stream_of(gpu.green_with(16)?)?;
                gpu.cuEventRecordWithFlags(event, stream, 0)?
            });
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            gpu.cuStreamBeginCapture(stream, mode)?.must()?;
            answer.add("in_capture", gpu.cuEventRecordWithFlags(event, stream, 0)?);
            answer.add("end", gpu.cuStreamEndCapture(stream)?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/peer-of-itself", |gpu, answer| {
            let primary = gpu.primary()?;
            let green = gpu.context_of(gpu.green_with(16)?)?;
            let can = gpu.cuDeviceCanAccessPeer(gpu.device, gpu.device)?;
            answer.add("can", can);
            answer.add("can_is", can.out);
            answer.add("can_99", gpu.cuDeviceCanAccessPeer(gpu.device, 99)?);
            answer.add("enable_itself", gpu.cuCtxEnablePeerAccess(primary, 0)?);
            answer.add("enable_green", gpu.cuCtxEnablePeerAccess(green, 0)?);
            answer.add("enable_green_flags", gpu.cuCtxEnablePeerAccess(green, 1)?);
            answer.add("enable_null", gpu.cuCtxEnablePeerAccess(null_mut(), 0)?);
            answer.add("disable_itself", gpu.cuCtxDisablePeerAccess(primary)?);
            answer.add("disable_green", gpu.cuCtxDisablePeerAccess(green)?);
            answer.add("disable_null", gpu.cuCtxDisablePeerAccess(null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("ipc/device-by-its-bus", |gpu, answer| {
            let mut text: [c_char; 32] = [0; 32];
            answer.add("text", gpu.cuDeviceGetPCIBusId(&mut text, gpu.device)?);
            let bytes = text.map(|byte| byte.cast_unsigned());
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

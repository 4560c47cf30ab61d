//! Green contexts and the primary context: creation, handles, ids, and the current context.

use std::ptr::null_mut;

use green_ctx_sys::{CUcontext, CUdevice, CUdevice_attribute, CUresult, CUstream};

use super::{Case, Needs};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{DEFAULT_STREAM, Gpu, SM, sm};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [0, 1, 2, 3, 4, 5].map(create_flags).into();
    cases.extend([
        Case::new("context/from-green", |gpu, answer| {
            let green = gpu.green_with(64)?;
            let first = gpu.cuCtxFromGreenCtx(green)?;
            let second = gpu.cuCtxFromGreenCtx(green)?;
            answer.add("status", first);
            answer.add("same_each_time", first.out == second.out);
            answer.add("same_address_as_green", first.out.cast() == green);
            answer.add("is_primary", first.out == gpu.primary()?);
            Ok(())
        }),
        Case::new("context/ids", ids),
        Case::new("context/one-descriptor-many-contexts", |gpu, answer| {
            let split = gpu.split_device(0, 64)?;
            let desc = gpu.describe(&split.groups[..1])?;
            let first = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?;
            let second = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?;
            answer.add("first", first);
            answer.add("second", second);
            answer.add("same", first.out == second.out);
            Ok(())
        }),
        Case::new("context/unknown-device", |gpu, answer| {
            let desc = gpu.describe(&[gpu.device_resource()?])?;
            for device in [-1, 99] {
                let green = gpu.cuGreenCtxCreate(desc, device, DEFAULT_STREAM)?;
                answer.add(format!("device {device}"), green);
            }
            Ok(())
        }),
        Case::new("context/stack", stack),
        Case::new("context/stack-under-set-current", |gpu, answer| {
            let context = gpu.context_of(gpu.green_with(64)?)?;
            answer.add("set_green", gpu.cuCtxSetCurrent(context)?);
            answer.add("green_is_current", gpu.cuCtxGetCurrent()?.out == context);
            // Setting a context replaces the top of the stack instead of pushing.
            answer.add("pop", gpu.cuCtxPopCurrent()?.out == context);
            answer.add("none_left", gpu.cuCtxGetCurrent()?.out.is_null());
            answer.add("set_null", gpu.cuCtxSetCurrent(null_mut())?);
            answer.add("set_green_on_empty", gpu.cuCtxSetCurrent(context)?);
            answer.add("set_null_over_green", gpu.cuCtxSetCurrent(null_mut())?);
            answer.add("pop_when_empty", gpu.cuCtxPopCurrent()?);
            Ok(())
        }),
        Case::new("context/push-null", |gpu, answer| {
            answer.add("status", gpu.cuCtxPushCurrent(null_mut())?);
            Ok(())
        }),
        Case::new("context/with-green-current", with_green_current),
        Case::new("context/with-none-current", with_none_current).needs(Needs::Init),
        Case::new("context/priority-range", |gpu, answer| {
            let context = gpu.context_of(gpu.green_with(64)?)?;
            for (name, context) in [("primary", gpu.primary()?), ("green", context)] {
                gpu.push(context)?;
                let range = gpu.cuCtxGetStreamPriorityRange()?;
                answer.add(name, range);
                answer.add(format!("{name}_least"), range.out.0);
                answer.add(format!("{name}_greatest"), range.out.1);
                gpu.pop()?;
            }
            Ok(())
        }),
        Case::new("context/synchronize-13000", synchronize_13000).needs(Needs::Init),
        Case::new("context/get-device-13000", get_device_13000).needs(Needs::Init),
        Case::new("context/synchronize-none-current", |gpu, answer| {
            answer.add("status", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .needs(Needs::Init),
        Case::new("context/stream-get-ctx-12000", stream_get_ctx_12000),
        Case::new("context/retain-is-the-same-pointer", |gpu, answer| {
            let again = gpu.cuDevicePrimaryCtxRetain(gpu.device)?;
            answer.add("status", again);
            answer.add("same", again.out == gpu.primary()?);
            answer.add("release", gpu.cuDevicePrimaryCtxRelease(gpu.device)?);
            answer.add("active", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
            Ok(())
        }),
        Case::new("context/first-create-makes-the-primary", first_create)
            .needs(Needs::Init)
            .alone(),
        Case::new("context/release-without-retain", |gpu, answer| {
            answer.add("status", gpu.cuDevicePrimaryCtxRelease(gpu.device)?);
            answer.add("active", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
    ]);
    cases
}

/// Before CUDA 13.3, only the default-stream flag on its own creates a context.
fn create_flags(flags: u32) -> Case {
    Case::new(format!("context/create-flags={flags}"), move |gpu, answer| {
        let desc = gpu.describe(&[gpu.device_resource()?])?;
        let green = gpu.cuGreenCtxCreate(desc, gpu.device, flags)?;
        answer.add("status", green);
        answer.add("null", green.out.is_null());
        Ok(())
    })
}

fn ids(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (a, b) = (gpu.green_with(64)?, gpu.green_with(32)?);
    let (context_a, context_b) = (gpu.context_of(a)?, gpu.context_of(b)?);
    let primary = gpu.cuCtxGetId(gpu.primary()?)?;
    let (id_a, id_b) = (gpu.cuCtxGetId(context_a)?, gpu.cuCtxGetId(context_b)?);
    answer.add("primary", primary);
    answer.add("green", id_a);
    answer.add("primary_and_green_differ", primary.out != id_a.out);
    answer.add("two_greens_differ", id_a.out != id_b.out);
    answer.add("of_null_is_of_current", gpu.cuCtxGetId(null_mut())?.out == primary.out);
    let green_id = gpu.cuGreenCtxGetId(a)?;
    answer.add("cuGreenCtxGetId", green_id);
    answer.add("same_as_cuCtxGetId", green_id.out == id_a.out);
    answer.add("two_green_ids_differ", green_id.out != gpu.cuGreenCtxGetId(b)?.out);
    answer.add("of_null_green", gpu.cuGreenCtxGetId(null_mut())?);
    Ok(())
}

fn stack(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let primary = gpu.primary()?;
    let context = gpu.context_of(gpu.green_with(64)?)?;
    answer.add("current_after_create_is_primary", gpu.cuCtxGetCurrent()?.out == primary);
    answer.add("push", gpu.cuCtxPushCurrent(context)?);
    answer.add("push_again", gpu.cuCtxPushCurrent(context)?);
    answer.add("green_is_current", gpu.cuCtxGetCurrent()?.out == context);
    answer.add("pop_gives_green", gpu.cuCtxPopCurrent()?.out == context);
    answer.add("green_is_still_current", gpu.cuCtxGetCurrent()?.out == context);
    answer.add("pop_gives_green_again", gpu.cuCtxPopCurrent()?.out == context);
    answer.add("primary_is_current", gpu.cuCtxGetCurrent()?.out == primary);
    answer.add("pop_gives_primary", gpu.cuCtxPopCurrent()?.out == primary);
    let empty = gpu.cuCtxPopCurrent()?;
    answer.add("pop_when_empty", empty);
    answer.add("null", empty.out.is_null());
    Ok(())
}

fn with_green_current(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
    let device = gpu.cuCtxGetDevice()?;
    answer.add("get_device", device);
    answer.add("device", device.out);
    let flags = gpu.cuCtxGetFlags()?;
    answer.add("get_flags", flags);
    answer.add("flags", flags.out);
    answer.add("synchronize", gpu.cuCtxSynchronize()?);
    let sms = gpu.cuDeviceGetAttribute(
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        gpu.device,
    )?;
    answer.add("sm_count_attribute", sms.out);
    answer
        .add("own_sms", sm(&gpu.cuCtxGetDevResource(gpu.cuCtxGetCurrent()?.out, SM)?.out).smCount);
    let memory = gpu.cuMemAlloc(4096)?;
    answer.add("alloc", memory);
    answer.add("free", gpu.cuMemFree(memory.out)?);
    gpu.pop()?;
    Ok(())
}

fn with_none_current(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    gpu.primary()?;
    answer.add("get_current", gpu.cuCtxGetCurrent()?);
    answer.add("get_device", gpu.cuCtxGetDevice()?);
    answer.add("get_flags", gpu.cuCtxGetFlags()?);
    answer.add("priority_range", gpu.cuCtxGetStreamPriorityRange()?);
    answer.add("get_id", gpu.cuCtxGetId(null_mut())?);
    answer.add("stream_create", gpu.cuStreamCreate(1)?);
    answer.add("event_create", gpu.cuEventCreate(0)?);
    answer.add("alloc", gpu.cuMemAlloc(4096)?);
    answer.add("free_null", gpu.cuMemFree(0)?);
    Ok(())
}

/// Creates the first green context: which contexts become active, and which is current.
fn first_create(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let before = gpu.cuDevicePrimaryCtxGetState(gpu.device)?;
    answer.add("state", before);
    answer.add("flags", before.out.0);
    answer.add("active_before", before.out.1);
    answer.add("none_current_before", gpu.cuCtxGetCurrent()?.out.is_null());
    let desc = gpu.describe(&[gpu.device_resource()?])?;
    answer.add("active_after_describe", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    let first = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?;
    answer.add("create", first);
    answer.add("active_after", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    answer.add("none_current_after", gpu.cuCtxGetCurrent()?.out.is_null());
    let second = gpu.cuGreenCtxCreate(desc, gpu.device, DEFAULT_STREAM)?;
    answer.add("create_again", second);
    answer.add("destroy", gpu.cuGreenCtxDestroy(first.out)?);
    answer.add("active_with_one_left", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    answer.add("destroy_last", gpu.cuGreenCtxDestroy(second.out)?);
    answer.add("active_with_none_left", gpu.cuDevicePrimaryCtxGetState(gpu.device)?.out.1);
    Ok(())
}

/// Returns the address of a function at a version that the loader does not request.
fn address(gpu: &Gpu, name: &std::ffi::CStr, version: i32) -> Result<*mut (), Failure> {
    let (address, _) = gpu.cuGetProcAddress(name, version).must()?;
    if address.is_null() {
        let name = name.to_string_lossy();
        return Err(Failure::Other(format!("the driver has no {name} at {version}")));
    }
    Ok(address.cast())
}

/// From CUDA 13.0 on, the function can take the context as an argument.
fn synchronize_13000(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    type Synchronize = unsafe extern "C" fn(CUcontext) -> CUresult;
    let address = address(gpu, c"cuCtxSynchronize", 13000)?;
    // SAFETY: cudaTypedefs.h gives this signature for version 13000 of the function.
    let synchronize = unsafe { core::mem::transmute::<*mut (), Synchronize>(address) };
    let context = gpu.context_of(gpu.green_with(64)?)?;
    for (name, context) in [("green", context), ("primary", gpu.primary()?), ("null", null_mut())] {
        // SAFETY: the context is alive, or null, which denotes the current one.
        answer.add(name, unsafe { synchronize(context) });
    }
    gpu.push(gpu.primary()?)?;
    // SAFETY: as above.
    answer.add("null_with_primary_current", unsafe { synchronize(null_mut()) });
    Ok(())
}

/// From CUDA 13.0 on, the function can take the context as an argument.
fn get_device_13000(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    type GetDevice = unsafe extern "C" fn(*mut CUdevice, CUcontext) -> CUresult;
    let address = address(gpu, c"cuCtxGetDevice", 13000)?;
    // SAFETY: cudaTypedefs.h has this signature for the function at 13000.
    let get_device = unsafe { core::mem::transmute::<*mut (), GetDevice>(address) };
    let context = gpu.context_of(gpu.green_with(64)?)?;
    for (name, context) in [("green", context), ("primary", gpu.primary()?), ("null", null_mut())] {
        let mut device: CUdevice = -1;
        // SAFETY: `device` outlives the call, and the context is alive, or null, which denotes the current one.
        answer.add(name, unsafe { get_device(&raw mut device, context) });
        answer.add(format!("{name}_device"), device);
    }
    Ok(())
}

/// Before CUDA 12.5, the function returns a context for every kind of stream.
fn stream_get_ctx_12000(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    type GetCtx = unsafe extern "C" fn(CUstream, *mut CUcontext) -> CUresult;
    let address = address(gpu, c"cuStreamGetCtx", 12000)?;
    // SAFETY: cudaTypedefs.h has this signature for the function from 9.2 to 12.4.
    let get_ctx = unsafe { core::mem::transmute::<*mut (), GetCtx>(address) };
    let green = gpu.green_with(64)?;
    let (context, primary) = (gpu.context_of(green)?, gpu.primary()?);
    for (name, stream, expected) in [
        ("green", gpu.stream_of(green)?, context),
        ("primary", gpu.stream()?, primary),
        ("null", null_mut(), primary),
    ] {
        let mut found: CUcontext = null_mut();
        // SAFETY: `found` outlives the call, and the stream is alive, or null for the default stream.
        answer.add(name, unsafe { get_ctx(stream, &raw mut found) });
        answer.add(format!("{name}_is_its_own"), found == expected);
    }
    Ok(())
}

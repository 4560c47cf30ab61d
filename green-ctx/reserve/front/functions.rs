//! The functions that programs call in place of the real driver's.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;

use super::*;

/// Defines functions that programs call, and the list in which `cuGetProcAddress` finds them. Each has one or more names
/// that programs link. An error that it returns is a call that failed.
macro_rules! functions {
    ($real:ident; $($($symbol:literal)|+ $from:literal..$to:literal $($per_thread:literal)? = $($name:ident)|+: $arguments:tt $body:block)*) => {
        $($(
            /// # Safety
            ///
            /// As for the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name $arguments -> Status {
                // SAFETY: the arguments are used as the driver's function uses them (cuda.h), and it has written its
                // results if it succeeds. Other pointers are to live locals.
                #[allow(unused_unsafe, reason = "some bodies need no unsafe")]
                let call = |$real: &'static Real| -> Result<Status, Failed> { _ = $real; unsafe { $body } };
                real().and_then(call).unwrap_or_else(refused)
            }
        )+)*

        /// Returns this library's function for a name, a version of CUDA, and a meaning of the null stream.
        pub(super) fn ours(name: &CStr, version: c_int, per_thread: bool) -> Option<Handle> {
            _ = per_thread;
            $(
                if [$($symbol),+].contains(&name) && ($from..$to).contains(&version) $(&& per_thread == $per_thread)? {
                    return [$($name as Handle),+].first().copied();
                }
            )*
            None
        }
    };
}

/// Waits for graphs of the rest, and calls the real function.
macro_rules! settled {
    ($real:ident, $name:literal, $version:literal, $handle:ident) => {{
        static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        let found = order::real_function(&KEPT, $name, $version, false)?;
        // A failure that any call would meet, such as that of a kernel, needs no line on standard error.
        let settled = settle($real, $handle).map_or_else(|(_, status)| status, |()| SUCCESS);
        Ok(if settled == SUCCESS { mem::transmute::<Handle, OnHandle>(found)($handle) } else { settled })
    }};
}

functions! {
    real;

    c"cuDevicePrimaryCtxRetain" 0..99999 = cuDevicePrimaryCtxRetain: (context: *mut Context, device: Device) {
        made(device)?;
        // The caller's own reference to the primary context, which its release gives back.
        Ok(concealed((real.retain)(context, device), context))
    }

    c"cuDevicePrimaryCtxReset" 0..99999 = cuDevicePrimaryCtxReset_v2 | cuDevicePrimaryCtxReset: (device: Device) {
        if GREENS.load(Acquire) > 0 {
            return Ok(NOT_PERMITTED);
        }
        let current = current()?;
        // The rest was made here. The next use makes another.
        if let Some(rest) = known(device)?.get()
            && !rest.ended.swap(true, AcqRel)
        {
            (real.destroy)(rest.green);
            (real.release)(device);
            order::forget_captures();
        }
        let status = (real.reset)(device);
        // The runtime makes the primary context current again only on threads without a current context.
        if current.is_some_and(|rest| rest.ended.load(Acquire)) {
            (real.set_current)(ptr::null_mut());
        }
        Ok(status)
    }

    c"cuCtxSetCurrent" 0..99999 = cuCtxSetCurrent: (context: Context) {
        Ok((real.set_current)(in_place_of(context)?))
    }

    c"cuCtxPushCurrent" 4000..99999 = cuCtxPushCurrent_v2: (context: Context) {
        Ok((real.push)(in_place_of(context)?))
    }

    // The form of before CUDA 4 has a pop of its own, and must stay apart: cuDNN uses both.
    c"cuCtxPushCurrent" 0..4000 = cuCtxPushCurrent: (context: Context) {
        let push = started()?.old_push.unwrap_or(real.push);
        Ok(push(in_place_of(context)?))
    }

    c"cuCtxSynchronize" 0..13000 = cuCtxSynchronize: () {
        // Only the primary context's synchronise waits for all contexts of the device, and only the rest's own for graphs in
        // its streams (measured on driver 580.159.04).
        let own = (real.synchronize)();
        match current()? {
            Some(rest) if own == SUCCESS => within(real, rest.primary, || (real.synchronize)()),
            _ => Ok(own),
        }
    }

    c"cuCtxSynchronize" 13000..99999 = cuCtxSynchronize_v2: (context: Context) {
        if context.is_null() {
            return Ok(INVALID_CONTEXT);
        }
        within(real, in_place_of(context)?, || cuCtxSynchronize())
    }

    c"cuCtxRecordEvent" 0..99999 = cuCtxRecordEvent: (context: Context, event: Handle) {
        let Some(rest) = rest_of(context) else { return Ok((real.record)(context, event)) };
        // As for a synchronise, it takes both contexts. The event is recorded where the work of both is waited for.
        let joined = || {
            let mut stream = ptr::null_mut();
            check(c"cuStreamCreate", (real.create_stream)(&raw mut stream, NON_BLOCKING, 0))?;
            let mut contexts = [rest.context, rest.primary].into_iter();
            let waits = contexts.try_for_each(|context| {
                order::with_event(real, |event| (real.record)(context, event), |event| (real.wait_event)(stream, event, 0))
            });
            let recorded = waits.map(|()| (real.record_event)(event, stream));
            (real.destroy_stream)(stream);
            recorded
        };
        within(real, rest.context, joined)?
    }

    c"cuCtxWaitEvent" 0..99999 = cuCtxWaitEvent: (context: Context, event: Handle) {
        // The primary context's wait holds for all contexts of the device.
        Ok((real.wait)(rest_of(context).map_or(context, |rest| rest.primary), event))
    }

    c"cuStreamCreate" 0..99999 = cuStreamCreate: (stream: *mut Handle, flags: c_uint) {
        Ok(cuStreamCreateWithPriority(stream, flags, 0))
    }

    c"cuStreamCreateWithPriority" 0..99999 = cuStreamCreateWithPriority: (stream: *mut Handle, flags: c_uint, priority: c_int) {
        match current()? {
            Some(rest) if flags == 0 && !stream.is_null() => {
                stream.write(order::create(real, rest, priority)?);
                Ok(SUCCESS)
            }
            _ => Ok((real.create_stream)(stream, flags, priority)),
        }
    }

    c"cuStreamDestroy" 4000..99999 = cuStreamDestroy_v2: (stream: Handle) {
        Ok(order::destroy(real, stream, real.destroy_stream))
    }

    c"cuStreamDestroy" 0..4000 = cuStreamDestroy: (stream: Handle) {
        let destroy = started()?.old_destroy_stream.unwrap_or(real.destroy_stream);
        Ok(order::destroy(real, stream, destroy))
    }

    c"cuStreamEndCapture" 0..99999 = cuStreamEndCapture | cuStreamEndCapture_ptsz: (stream: Handle, graph: *mut Handle) {
        let status = (real.end_capture)(stream, graph);
        order::capture_may_have_ended(real, stream);
        Ok(status)
    }

    // These wait for the work of the whole device, but not for graphs in streams of green contexts (measured on driver
    // 580.159.04).
    c"cuMemFree" 3020..99999 = cuMemFree_v2: (memory: Handle) { settled!(real, c"cuMemFree", 3020, memory) }
    c"cuMemFreeHost" 0..99999 = cuMemFreeHost: (memory: Handle) { settled!(real, c"cuMemFreeHost", 2000, memory) }
    c"cuMemHostUnregister" 0..99999 = cuMemHostUnregister: (memory: Handle) { settled!(real, c"cuMemHostUnregister", 4000, memory) }
    c"cuIpcCloseMemHandle" 0..99999 = cuIpcCloseMemHandle: (memory: Handle) { settled!(real, c"cuIpcCloseMemHandle", 4010, memory) }
    c"cuArrayDestroy" 0..99999 = cuArrayDestroy: (array: Handle) { settled!(real, c"cuArrayDestroy", 2000, array) }
    c"cuMipmappedArrayDestroy" 0..99999 = cuMipmappedArrayDestroy: (array: Handle) { settled!(real, c"cuMipmappedArrayDestroy", 5000, array) }
    c"cuModuleUnload" 0..99999 = cuModuleUnload: (module: Handle) { settled!(real, c"cuModuleUnload", 2000, module) }
    c"cuLibraryUnload" 0..99999 = cuLibraryUnload: (library: Handle) { settled!(real, c"cuLibraryUnload", 12000, library) }

    c"cuDeviceGetDevResource" 0..99999 = cuDeviceGetDevResource: (device: Device, to: *mut Resource, kind: c_int) {
        match kind {
            // Other libraries cut their green contexts from the rest.
            SM_RESOURCE => Ok((real.green_resource)(made(device)?.green, to, kind)),
            _ => Ok((real.resource)(device, to, kind)),
        }
    }

    c"cuCtxGetDevResource" 0..99999 = cuCtxGetDevResource: (context: Context, to: *mut Resource, kind: c_int) {
        Ok((real.context_resource)(in_place_of(context)?, to, kind))
    }

    c"cuDevSmResourceSplitByCount" 0..99999 = cuDevSmResourceSplitByCount: (
        groups: *mut Resource, count: *mut c_uint, from: *const Resource, left: *mut Resource, flags: c_uint, least: c_uint
    ) {
        let status = (real.split)(groups, count, from, left, flags, least);
        if status != SUCCESS || groups.is_null() {
            return Ok(status);
        }
        // A split of a green context's SMs, such as the rest, may make groups that are smaller than requested.
        if (0..*count as usize).any(|place| (*groups.add(place)).sms < least) {
            say(c"the SMs outside of a reserve cannot be split into groups of the requested size");
            return Ok(INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(SUCCESS)
    }

    c"cuGreenCtxCreate" 0..99999 = cuGreenCtxCreate: (green: *mut Handle, desc: Handle, device: Device, flags: c_uint) {
        let status = greenCtxReserveCreate(green, desc, device, flags);
        if status != SUCCESS {
            return Ok(status);
        }
        // Resources without SMs mean all SMs.
        let mut has = Resource::EMPTY;
        let asked = (real.green_resource)(*green, &raw mut has, SM_RESOURCE);
        if asked == SUCCESS && division(device).is_ok_and(|rest| has.sms <= rest.sms) {
            return Ok(SUCCESS);
        }
        cuGreenCtxDestroy(*green);
        say(c"a green context without SMs of its own has all SMs, and is not possible under a reserve or a limit");
        Ok(NOT_SUPPORTED)
    }

    c"cuGreenCtxDestroy" 0..99999 = cuGreenCtxDestroy: (green: Handle) {
        if find(|rest| rest.green == green).is_some() {
            return Ok(NOT_PERMITTED);
        }
        let status = (real.destroy)(green);
        if status == SUCCESS {
            GREENS.fetch_sub(1, AcqRel);
        }
        Ok(status)
    }

    c"cuStreamGetCtx" 0..12050 = cuStreamGetCtx | cuStreamGetCtx_ptsz: (stream: Handle, context: *mut Context) {
        Ok(concealed((real.stream_context)(stream, context), context))
    }

    c"cuStreamGetCtx" 12050..99999 = cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz: (stream: Handle, context: *mut Context, green: *mut Handle) {
        Ok(concealed((real.stream_contexts)(stream, context, green), context))
    }

    c"cuPointerGetAttribute" 0..99999 = cuPointerGetAttribute: (to: *mut c_void, attribute: c_int, pointer: u64) {
        let context = if attribute == CONTEXT_OF_POINTER { to.cast() } else { ptr::null_mut() };
        Ok(concealed((real.pointer)(to, attribute, pointer), context))
    }

    c"cuPointerGetAttributes" 0..99999 = cuPointerGetAttributes: (count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, pointer: u64) {
        let status = (real.pointers)(count, attributes, to, pointer);
        for place in 0..count as usize {
            if status == SUCCESS && *attributes.add(place) == CONTEXT_OF_POINTER {
                concealed(status, (*to.add(place)).cast());
            }
        }
        Ok(status)
    }

    c"cuDeviceGetAttribute" 0..99999 = cuDeviceGetAttribute: (to: *mut c_int, attribute: c_int, device: Device) {
        let status = (real.attribute)(to, attribute, device);
        if status == SUCCESS && attribute == MULTIPROCESSOR_COUNT {
            to.write(division(device)?.sms as c_int);
        }
        Ok(status)
    }

    c"cuCtxCreate" | c"cuGLCtxCreate" | c"cuVDPAUCtxCreate" 0..99999 = cuCtxCreate_v4 | cuCtxCreate | cuCtxCreate_v2 | cuCtxCreate_v3
        | cuGLCtxCreate | cuGLCtxCreate_v2 | cuVDPAUCtxCreate | cuVDPAUCtxCreate_v2: () {
        say(c"a context of its own is not possible under a reserve or a limit: use the device's primary context");
        Ok(NOT_SUPPORTED)
    }

    c"cuGetProcAddress" 0..12000 = cuGetProcAddress: (name: *const c_char, to: *mut Handle, version: c_int, flags: u64) {
        // In contrast to the newer form, it fails if there is no such function.
        match cuGetProcAddress_v2(name, to, version, flags, ptr::null_mut()) {
            SUCCESS if (*to).is_null() => Ok(NOT_FOUND),
            status => Ok(status),
        }
    }

    c"cuGetProcAddress" 12000..99999 = cuGetProcAddress_v2: (name: *const c_char, to: *mut Handle, version: c_int, flags: u64, found: *mut c_int) {
        looked_up(ours, name, to, version, flags, found)
    }

    // The entry point for callers that know of partitions.
    c"greenCtxReserveLookUp" 0..99999 = greenCtxReserveLookUp: (name: *const c_char, to: *mut Handle, version: c_int, flags: u64, found: *mut c_int) {
        looked_up(ours_of_partitions, name, to, version, flags, found)
    }

    // Creates a green context of a program or a partition, and counts it.
    c"greenCtxReserveCreate" 0..99999 = greenCtxReserveCreate: (green: *mut Handle, desc: Handle, device: Device, flags: c_uint) {
        let status = (real.create)(green, desc, device, flags);
        if status == SUCCESS {
            GREENS.fetch_add(1, AcqRel);
        }
        Ok(status)
    }

    // Describes a device's rest to callers that know of partitions. If `make` is true, makes its context first, and
    // otherwise returns no context.
    c"greenCtxReserveRest" 0..99999 = greenCtxReserveRest: (device: Device, make: bool, to: *mut Described) {
        let division = division(device)?;
        let context = if make { made(device)?.context } else { ptr::null_mut() };
        to.write(Described { division, context });
        Ok(SUCCESS)
    }
}

/// Returns this library's function for callers that know of partitions. Apart from these, and from those that keep the
/// order of the default stream and of streams of programs, they get the real functions.
fn ours_of_partitions(name: &CStr, version: c_int, per_thread: bool) -> Option<Handle> {
    match name.to_bytes() {
        b"cuGreenCtxCreate" => Some(greenCtxReserveCreate as Handle),
        b"cuGreenCtxDestroy" | b"cuStreamDestroy" | b"cuStreamEndCapture" | b"cuCtxSynchronize" | b"cuCtxRecordEvent"
        | b"cuCtxWaitEvent" | b"cuMemFree" | b"cuMemFreeHost" | b"cuMemHostUnregister" | b"cuLibraryUnload" => {
            ours(name, version, per_thread)
        }
        _ => None,
    }
}

/// Looks up a function of the real driver, and puts this library's function in its place if there is one.
///
/// # Safety
///
/// As for the driver's function.
unsafe fn looked_up(
    ours: fn(&CStr, c_int, bool) -> Option<Handle>,
    name: *const c_char,
    to: *mut Handle,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Result<Status, Failed> {
    // SAFETY: as for the driver's function, which has read the name and written to `to` if it succeeds.
    unsafe {
        let status = (started()?.entry)(name, to, version, flags, found);
        if status == SUCCESS && !to.is_null() && !(*to).is_null() {
            // A negative version means the newest one.
            let version = if version < 0 { 99_998 } else { version };
            let (name, per_thread) = (CStr::from_ptr(name), flags & PER_THREAD != 0);
            let ordered = || order::ours(name, version, per_thread);
            if let Some(ours) = ours(name, version, per_thread).or_else(ordered) {
                to.write(ours);
            }
        }
        Ok(status)
    }
}

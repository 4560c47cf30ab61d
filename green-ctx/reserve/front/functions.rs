//! The functions that programs call in place of the real driver's.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::*;

/// Defines the functions that programs call, and the list in which `cuGetProcAddress` finds them.
macro_rules! functions {
    ($($symbol:literal $from:literal..$to:literal = $name:ident($($argument:ident: $kind:ty),*) $body:block)*) => {
        $(
            /// # Safety
            ///
            /// As for the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status $body
        )*

        /// Returns this library's function for a name and a version of CUDA.
        fn ours(name: &[u8], version: c_int) -> Option<Handle> {
            match name {
                $($symbol if ($from..$to).contains(&version) => Some($name as *mut c_void),)*
                _ => None,
            }
        }
    };
}

functions! {
    b"cuDevicePrimaryCtxRetain" 0..99999 = cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) {
        if context.is_null() {
            return INVALID_VALUE;
        }
        // The caller's own reference to the primary context, which its release gives back.
        let retained = real().and_then(|real| {
            let mut primary = ptr::null_mut();
            // SAFETY: `primary` is a live local.
            check("cuDevicePrimaryCtxRetain", unsafe { (real.retain)(&raw mut primary, device) })?;
            made(device).inspect_err(|_| {
                // SAFETY: the reference was taken above.
                unsafe { (real.release)(device) };
            })
        });
        match retained {
            Ok(rest) => {
                // SAFETY: by the contract of the driver's function.
                unsafe { context.write(rest.context) };
                SUCCESS
            }
            Err(failed) => refused(failed),
        }
    }

    b"cuDevicePrimaryCtxReset" 0..99999 = cuDevicePrimaryCtxReset_v2(device: Device) {
        if GREENS.load(Ordering::Acquire) > 0 {
            return NOT_PERMITTED;
        }
        let ended = started().and_then(|started| {
            let current = current()?;
            let known = known(device)?;
            let rest = known.rest.withdraw();
            if let Some(rest) = rest {
                let ended = ptr::from_ref(rest).cast_mut();
                let mut earlier = known.ended.load(Ordering::Acquire);
                // Published with what it leads to.
                loop {
                    rest.earlier.store(earlier, Ordering::Release);
                    match known.ended.compare_exchange(earlier, ended, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => break,
                        Err(other) => earlier = other,
                    }
                }
                order::end(rest);
                // SAFETY: the rest was made here. The next use makes another.
                unsafe {
                    (started.real.destroy)(rest.green);
                    (started.real.release)(device);
                }
            }
            let was_current = rest.is_some_and(|rest| current.is_some_and(|it| ptr::eq(it, rest)));
            Ok((&started.real, was_current))
        });
        match ended {
            // SAFETY: as for the driver's function.
            Ok((real, was_current)) => unsafe {
                let status = (real.reset)(device);
                // The runtime makes the primary context current again only on threads without a current context.
                if was_current {
                    (real.set_current)(ptr::null_mut());
                }
                status
            },
            Err(failed) => refused(failed),
        }
    }

    b"cuCtxSetCurrent" 0..99999 = cuCtxSetCurrent(context: Context) {
        // SAFETY: as for the driver's function.
        replaced(context, |real, context| unsafe { (real.set_current)(context) })
    }

    b"cuCtxPushCurrent" 4000..99999 = cuCtxPushCurrent_v2(context: Context) {
        // SAFETY: as for the driver's function.
        replaced(context, |real, context| unsafe { (real.push)(context) })
    }

    // The form of before CUDA 4 has a pop of its own, and must stay apart: cuDNN uses both.
    b"cuCtxPushCurrent" 0..4000 = cuCtxPushCurrent(context: Context) {
        static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        let push = older(&KEPT, c"cuCtxPushCurrent");
        // SAFETY: as for the driver's function.
        replaced(context, |real, context| unsafe { push.unwrap_or(real.push)(context) })
    }

    b"cuCtxSynchronize" 0..13000 = cuCtxSynchronize() {
        match real().and_then(|real| Ok((real, current()?))) {
            // Only the primary context's synchronise waits for all contexts of the device.
            // SAFETY: the rest holds a reference to the primary context, and `other` is a live local.
            Ok((real, Some(rest))) => unsafe {
                let mut other = ptr::null_mut();
                match (real.push)(rest.primary) {
                    SUCCESS => {
                        let status = (real.synchronize)();
                        (real.pop)(&raw mut other);
                        status
                    }
                    status => status,
                }
            },
            // SAFETY: as for the driver's function.
            Ok((real, None)) => unsafe { (real.synchronize)() },
            Err(failed) => refused(failed),
        }
    }

    b"cuCtxSynchronize" 13000..99999 = cuCtxSynchronize_v2(context: Context) {
        if context.is_null() {
            return INVALID_CONTEXT;
        }
        // SAFETY: as for the driver's function.
        unsafe {
            match cuCtxPushCurrent_v2(context) {
                SUCCESS => {
                    let (status, mut other) = (cuCtxSynchronize(), ptr::null_mut());
                    let _ = real().map(|real| (real.pop)(&raw mut other));
                    status
                }
                status => status,
            }
        }
    }

    b"cuCtxRecordEvent" 0..99999 = cuCtxRecordEvent(context: Context, event: Handle) {
        // SAFETY: as for the driver's function.
        on_real(|real| unsafe { (real.record)(covering(context), event) })
    }

    b"cuCtxWaitEvent" 0..99999 = cuCtxWaitEvent(context: Context, event: Handle) {
        // SAFETY: as for the driver's function.
        on_real(|real| unsafe { (real.wait)(covering(context), event) })
    }

    b"cuStreamCreate" 0..99999 = cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        // SAFETY: as for the driver's function.
        unsafe { cuStreamCreateWithPriority(stream, flags, 0) }
    }

    b"cuStreamCreateWithPriority" 0..99999 = cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) {
        match real().and_then(|real| Ok((real, current()?))) {
            Ok((real, Some(rest))) if flags == 0 && !stream.is_null() => {
                match order::create(real, rest, priority) {
                    Ok(created) => {
                        // SAFETY: as for the driver's function.
                        unsafe { stream.write(created) };
                        SUCCESS
                    }
                    Err(failed) => refused(failed),
                }
            }
            // SAFETY: as for the driver's function.
            Ok((real, _)) => unsafe { (real.create_stream)(stream, flags, priority) },
            Err(failed) => refused(failed),
        }
    }

    b"cuStreamDestroy" 4000..99999 = cuStreamDestroy_v2(stream: Handle) {
        on_real(|real| order::destroy(real, stream, real.destroy_stream))
    }

    b"cuStreamDestroy" 0..4000 = cuStreamDestroy(stream: Handle) {
        static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        let destroy = older(&KEPT, c"cuStreamDestroy");
        on_real(|real| order::destroy(real, stream, destroy.unwrap_or(real.destroy_stream)))
    }

    // A green context's default stream can be captured, and the primary context's cannot (measured on driver 580.159.04).
    b"cuStreamBeginCapture" 10010..99999 = cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        match real().and_then(|real| Ok((real, order::is_default(stream, false)?))) {
            Ok((_, Some(_))) => CAPTURE_UNSUPPORTED,
            // SAFETY: as for the driver's function.
            Ok((real, None)) => unsafe {
                order::capture_begins(stream);
                (real.capture)(stream, mode)
            },
            Err(failed) => refused(failed),
        }
    }

    b"cuStreamBeginCaptureToGraph" 0..99999 = cuStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, nodes: *const Handle, edges: *const c_void, count: usize, mode: c_int
    ) {
        type Begin = unsafe extern "C" fn(Handle, Handle, *const Handle, *const c_void, usize, c_int) -> Status;
        static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        let begin = order::real_function(&KEPT, c"cuStreamBeginCaptureToGraph", 12030, false);
        match begin.and_then(|begin| Ok((begin, order::is_default(stream, false)?))) {
            Ok((_, Some(_))) => CAPTURE_UNSUPPORTED,
            // SAFETY: the driver's function has this signature (cuda.h). Otherwise as for that function.
            Ok((begin, None)) => unsafe {
                order::capture_begins(stream);
                let begin = core::mem::transmute::<Handle, Begin>(begin);
                begin(stream, graph, nodes, edges, count, mode)
            },
            Err(failed) => refused(failed),
        }
    }

    b"cuDeviceGetDevResource" 0..99999 = cuDeviceGetDevResource(device: Device, to: *mut Resource, kind: c_int) {
        if kind != SM_RESOURCE {
            // SAFETY: as for the driver's function.
            return on_real(|real| unsafe { (real.resource)(device, to, kind) });
        }
        // Other libraries cut their green contexts from the rest.
        match made(device) {
            // SAFETY: as for the driver's function.
            Ok(rest) => on_real(|real| unsafe { (real.green_resource)(rest.green, to, kind) }),
            Err(failed) => refused(failed),
        }
    }

    b"cuCtxGetDevResource" 0..99999 = cuCtxGetDevResource(context: Context, to: *mut Resource, kind: c_int) {
        // SAFETY: as for the driver's function.
        replaced(context, |real, context| unsafe { (real.context_resource)(context, to, kind) })
    }

    b"cuDevSmResourceSplitByCount" 0..99999 = cuDevSmResourceSplitByCount(
        groups: *mut Resource, count: *mut c_uint, from: *const Resource, left: *mut Resource, flags: c_uint, least: c_uint
    ) {
        // SAFETY: as for the driver's function, which has written `count` groups if it succeeds.
        let status = on_real(|real| unsafe { (real.split)(groups, count, from, left, flags, least) });
        if status != SUCCESS || groups.is_null() {
            return status;
        }
        // A split of a green context's SMs, such as the rest, may make groups that are smaller than requested.
        // SAFETY: as above.
        let is_small = |place| unsafe { (*groups.add(place)).sms < least };
        if (0..unsafe { *count } as usize).any(is_small) {
            say(&["the SMs that are not reserved cannot be split into groups of the requested size"]);
            return INVALID_RESOURCE_CONFIGURATION;
        }
        SUCCESS
    }

    b"cuGreenCtxCreate" 0..99999 = cuGreenCtxCreate(green: *mut Handle, desc: Handle, device: Device, flags: c_uint) {
        // SAFETY: as for the driver's function, which writes to `green` if it succeeds.
        unsafe {
            let status = counted(green, desc, device, flags);
            if status != SUCCESS {
                return status;
            }
            // Resources without SMs mean all SMs.
            let mut has = Resource::EMPTY;
            let asked = on_real(|real| (real.green_resource)(*green, &raw mut has, SM_RESOURCE));
            if asked == SUCCESS && sms(device).is_ok_and(|rest| has.sms <= rest) {
                return SUCCESS;
            }
            cuGreenCtxDestroy(*green);
        }
        say(&["a green context without SMs of its own has all SMs, and is not possible under a reserve"]);
        NOT_SUPPORTED
    }

    b"cuGreenCtxDestroy" 0..99999 = cuGreenCtxDestroy(green: Handle) {
        if find(|rest| rest.green == green).is_some() {
            return NOT_PERMITTED;
        }
        // SAFETY: as for the driver's function.
        let status = on_real(|real| unsafe { (real.destroy)(green) });
        if status == SUCCESS {
            GREENS.fetch_sub(1, Ordering::AcqRel);
        }
        status
    }

    b"cuStreamGetCtx" 0..12050 = cuStreamGetCtx(stream: Handle, context: *mut Context) {
        // SAFETY: as for the driver's function, which writes to `context` if it succeeds.
        on_real(|real| unsafe { concealed((real.stream_context)(stream, context), context) })
    }

    b"cuStreamGetCtx" 12050..99999 = cuStreamGetCtx_v2(stream: Handle, context: *mut Context, green: *mut Handle) {
        // SAFETY: as for the driver's function, which writes to `context` if it succeeds.
        on_real(|real| unsafe { concealed((real.stream_contexts)(stream, context, green), context) })
    }

    b"cuPointerGetAttribute" 0..99999 = cuPointerGetAttribute(to: *mut c_void, attribute: c_int, pointer: u64) {
        let context = if attribute == CONTEXT_OF_POINTER { to.cast() } else { ptr::null_mut() };
        // SAFETY: as for the driver's function, which writes to `context` if it succeeds.
        on_real(|real| unsafe { concealed((real.pointer)(to, attribute, pointer), context) })
    }

    b"cuPointerGetAttributes" 0..99999 = cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, pointer: u64) {
        // SAFETY: as for the driver's function, which has read `count` elements of both arrays if it succeeds.
        on_real(|real| unsafe {
            let status = (real.pointers)(count, attributes, to, pointer);
            let of_context = |place: &usize| status == SUCCESS && *attributes.add(*place) == CONTEXT_OF_POINTER;
            for place in (0..count as usize).filter(of_context) {
                concealed(status, (*to.add(place)).cast());
            }
            status
        })
    }

    b"cuDeviceGetAttribute" 0..99999 = cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, device: Device) {
        let sms = if attribute == MULTIPROCESSOR_COUNT { sms(device).map(Some) } else { Ok(None) };
        let sms = match sms {
            Ok(sms) => sms,
            Err(failed) => return refused(failed),
        };
        // SAFETY: as for the driver's function, which writes to `to` if it succeeds.
        on_real(|real| unsafe {
            let status = (real.attribute)(to, attribute, device);
            if let Some(sms) = sms.filter(|_| status == SUCCESS) {
                to.write(sms as c_int);
            }
            status
        })
    }

    b"cuCtxCreate" 0..99999 = cuCtxCreate_v4() {
        say(&["a context of its own is not possible under a reserve: use the device's primary context"]);
        NOT_SUPPORTED
    }

    b"cuGLCtxCreate" 0..99999 = cuGLCtxCreate_v2() {
        // SAFETY: the function has no preconditions.
        unsafe { cuCtxCreate_v4() }
    }

    b"cuVDPAUCtxCreate" 0..99999 = cuVDPAUCtxCreate_v2() {
        // SAFETY: the function has no preconditions.
        unsafe { cuCtxCreate_v4() }
    }

    b"cuGetProcAddress" 0..12000 = cuGetProcAddress(name: *const c_char, to: *mut Handle, version: c_int, flags: u64) {
        // SAFETY: as for the driver's function. In contrast to the newer one, it fails if there is no such function.
        unsafe {
            match cuGetProcAddress_v2(name, to, version, flags, ptr::null_mut()) {
                SUCCESS if (*to).is_null() => NOT_FOUND,
                status => status,
            }
        }
    }

    b"cuGetProcAddress" 12000..99999 = cuGetProcAddress_v2(name: *const c_char, to: *mut Handle, version: c_int, flags: u64, found: *mut c_int) {
        let Ok(started) = started() else { return NOT_INITIALIZED };
        // SAFETY: as for the driver's function.
        let status = unsafe { (started.entry)(name, to, version, flags, found) };
        // SAFETY: the driver has read the name and written to `to`.
        unsafe {
            if status == SUCCESS && !to.is_null() && !(*to).is_null() {
                // A negative version means the newest one.
                let (name, version) = (CStr::from_ptr(name), if version < 0 { 99_998 } else { version });
                let ordered = || order::ours(name, version, flags & PER_THREAD != 0);
                if let Some(ours) = ours(name.to_bytes(), version).or_else(ordered) {
                    to.write(ours);
                }
            }
        }
        status
    }
}

/// Returns the driver's form of a function of before CUDA 4, which only its symbol gives.
fn older(kept: &AtomicPtr<c_void>, name: &CStr) -> Option<unsafe extern "C" fn(Handle) -> Status> {
    if kept.load(Ordering::Acquire).is_null() {
        // SAFETY: the name ends with a NUL. Among the libraries after this one, only the driver has such a function.
        kept.store(unsafe { dlsym(NEXT, name.as_ptr()) }, Ordering::Release);
    }
    // SAFETY: both functions with such a form take one handle (cuda.h), and null means none.
    unsafe {
        core::mem::transmute::<Handle, Option<unsafe extern "C" fn(Handle) -> Status>>(
            kept.load(Ordering::Acquire),
        )
    }
}

/// Defines other names of functions, which programs link.
macro_rules! also {
    ($($name:ident = $same:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// # Safety
        ///
        /// As for the driver's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status {
            // SAFETY: as for the driver's function.
            unsafe { $same($($argument),*) }
        }
    )*};
}

also! {
    cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2(device: Device);
    cuCtxCreate = cuCtxCreate_v4();
    cuCtxCreate_v2 = cuCtxCreate_v4();
    cuCtxCreate_v3 = cuCtxCreate_v4();
    cuGLCtxCreate = cuGLCtxCreate_v2();
    cuVDPAUCtxCreate = cuVDPAUCtxCreate_v2();
    cuStreamGetCtx_ptsz = cuStreamGetCtx(stream: Handle, context: *mut Context);
    cuStreamGetCtx_v2_ptsz = cuStreamGetCtx_v2(stream: Handle, context: *mut Context, green: *mut Handle);
}

//! Functions that report or set little, most of them in the table of no program here.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;

#[test]
fn devices_are_found_by_their_place() {
    let machine = Machine::with_devices("h200", 3);
    for (id, expected) in [
        (c"0000:1A:00.0", Ok(1)),
        (c"0000:1b:00", Ok(2)),
        (c"19:00.0", Ok(0)),
        (c"0000:1C:00.0", Err(INVALID_DEVICE)),
        (c"0001:19:00.0", Err(INVALID_DEVICE)),
        (c"0000:19:00.1", Err(INVALID_DEVICE)),
        (c"19:00", Err(INVALID_VALUE)),
        (c"nonsense", Err(INVALID_VALUE)),
        (c"", Err(INVALID_VALUE)),
    ] {
        let (status, device) = ask!(machine, -1, cuDeviceGetByPCIBusId(; id.as_ptr()));
        assert_eq!((status, device), expected.map_or_else(|it| (it, -1), |it| (OK, it)), "{id:?}");
    }
    let mut name = [0 as c_char; 13];
    ok(call!(machine, cuDeviceGetPCIBusId(name.as_mut_ptr(), 13, 1)));
    assert_eq!(ask!(machine, -1, cuDeviceGetByPCIBusId(; name.as_ptr())), (OK, 1));
    assert_eq!(call!(machine, cuDeviceGetByPCIBusId(null_mut(), name.as_ptr())), INVALID_VALUE);
}

#[test]
fn devices_report_what_old_programs_ask() {
    let machine = Machine::new();
    let (mut major, mut minor) = (0, 0);
    ok(old!(machine, c"cuDeviceComputeCapability", 2000
        (&mut major => *mut c_int, &mut minor => *mut c_int, 0 => c_int)));
    assert_eq!((major, minor), (9, 0));
    let mut properties = [0; 14];
    ok(old!(machine, c"cuDeviceGetProperties", 2000
        (properties.as_mut_ptr() => *mut c_int, 0 => c_int)));
    assert_eq!((properties[0], properties[9]), (1024, 32), "threads of a block and of a warp");
    assert_eq!(properties[13], 512, "the alignment of textures");
    let mut support = -1;
    let affinity = |out: &mut c_int, kind: c_uint, device: c_int| {
        old!(machine, c"cuDeviceGetExecAffinitySupport", 11040
            (out => *mut c_int, kind => c_uint, device => c_int))
    };
    assert_eq!((affinity(&mut support, 0, 0), support), (OK, 0));
    assert_eq!(affinity(&mut support, 1, 0), OK, "no type is supported, known or not");
    assert_eq!(affinity(&mut support, 0, 1), INVALID_DEVICE);
    let status = old!(machine, c"cuDeviceGetLuid", 10000
        (null_mut() => *mut c_char, null_mut() => *mut c_uint, 0 => c_int));
    assert_eq!(status, NOT_SUPPORTED);
}

#[test]
fn settings_need_a_context_and_change_nothing() {
    let machine = Machine::new();
    let l2 = || old!(machine, c"cuCtxResetPersistingL2Cache", 11000());
    let set_banks =
        |config: c_uint| old!(machine, c"cuCtxSetSharedMemConfig", 4020 (config => c_uint));
    let affinity = |kind: c_uint| {
        let mut out = [0u64; 2];
        old!(machine, c"cuCtxGetExecAffinity", 11040
            (out.as_mut_ptr() => *mut u64, kind => c_uint))
    };
    let profile = || [call!(machine, cuProfilerStart()), call!(machine, cuProfilerStop())];
    assert_eq!([l2(), set_banks(0), affinity(0)], [INVALID_CONTEXT; 3]);
    assert_eq!(profile(), [INVALID_CONTEXT; 2]);

    ok(machine.push(machine.retain()));
    assert_eq!([l2(), set_banks(0), set_banks(2), set_banks(3)], [OK, OK, OK, INVALID_VALUE]);
    let mut banks = 0;
    ok(old!(machine, c"cuCtxGetSharedMemConfig", 4020 (&mut banks => *mut c_uint)));
    assert_eq!(banks, 1, "four bytes, whatever was set");
    assert_eq!(affinity(0), OK);
    assert_eq!(affinity(1), CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    assert_eq!(profile(), [OK; 2]);
}

#[test]
fn kernels_take_preferences_and_change_nothing() {
    let (machine, _) = Machine::with_primary();
    let kernel = machine.kernel("nothing");
    let (status, function) = ask!(machine, null_mut(), cuKernelGetFunction(; kernel));
    ok(status);
    let of_function = |name, function: CUfunction, config: c_uint| {
        type Form = unsafe extern "C" fn(CUfunction, c_uint) -> CUresult;
        // SAFETY: both names have this signature (cuda.h).
        let set: Form = unsafe { machine.function(name, 4_020) };
        // SAFETY: the arguments are a handle, which is never followed, and a number.
        unsafe { set(function, config) }
    };
    for (name, most) in [(c"cuFuncSetCacheConfig", 3), (c"cuFuncSetSharedMemConfig", 2)] {
        let set = |function, config| of_function(name, function, config);
        assert_eq!(
            [0, most, most + 1].map(|config| set(function, config)),
            [OK, OK, INVALID_VALUE]
        );
        assert_eq!(set(null_mut(), 0), INVALID_HANDLE);
    }
    let of_kernel = |kernel: CUkernel, config: c_uint, device: c_int| {
        old!(machine, c"cuKernelSetCacheConfig", 12_000
            (kernel => CUkernel, config => c_uint, device => c_int))
    };
    assert_eq!([0, 3, 4].map(|config| of_kernel(kernel, config, 0)), [OK, OK, INVALID_VALUE]);
    assert_eq!(of_kernel(null_mut(), 0, 0), INVALID_HANDLE);
    assert_eq!(of_kernel(kernel, 0, 1), INVALID_DEVICE);
}

#[test]
fn flags_of_contexts() {
    let machine = Machine::new();
    let set = |flags: c_uint| old!(machine, c"cuCtxSetFlags", 12010 (flags => c_uint));
    let first = |flags: c_uint| old!(machine, c"cuDevicePrimaryCtxSetFlags", 7000 (0 => c_int, flags => c_uint));
    assert_eq!(set(1), INVALID_CONTEXT);
    // The first form does not touch a context that is active; the second does.
    ok(first(1));
    ok(machine.push(machine.retain()));
    assert_eq!(first(2), CUresult::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
    assert_eq!(ask!(machine, 0, cuCtxGetFlags(;)), (OK, 9));
    assert_eq!(set(1 << 20), INVALID_VALUE);
    ok(set(4));
    assert_eq!(ask!(machine, 0, cuCtxGetFlags(;)), (OK, 12));
    ok(old!(machine, c"cuDevicePrimaryCtxReset", 7000 (0 => c_int)));
    ok(old!(machine, c"cuDevicePrimaryCtxRelease", 7000 (0 => c_int)));
    assert_eq!(machine.sim.live(), Default::default());
}

#[test]
fn events_are_recorded_with_flags() {
    let (machine, _) = Machine::with_primary();
    let (event, stream) = (machine.event(), machine.green_stream(machine.green_of(8)));
    let record = |flags| call!(machine, cuEventRecordWithFlags(event, stream, flags));
    let illegal = CUresult::CUDA_ERROR_ILLEGAL_STATE;
    assert_eq!([record(0), record(1), record(2)], [OK, illegal, INVALID_VALUE]);
    ok(call!(machine, cuEventSynchronize(event)));
    // The first form of beginning a capture is global.
    ok(old!(machine, c"cuStreamBeginCapture", 10000 (stream => CUstream)));
    assert_eq!([record(0), record(1), record(2)], [OK, OK, INVALID_VALUE]);
}

#[test]
fn values_in_streams_had_an_older_form() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(8));
    let refused = |stream: CUstream| {
        old!(machine, c"cuStreamWriteValue32", 8000
            (stream => CUstream, 0 => u64, 0 => u32, 0 => c_uint))
    };
    assert_eq!(refused(stream), NOT_SUPPORTED);
    assert_ne!(
        machine.lookup(c"cuStreamWriteValue32", 8000),
        machine.lookup(c"cuStreamWriteValue32", 12000)
    );
}

//! Every line of the recorded misuse, and what follows it.

use std::ptr::{null_mut, without_provenance_mut};

use green_ctx_sys::*;

use crate::machine::*;

const GARBAGE: usize = 0xdead_beef_0000;

#[test]
fn nothing_but_the_first_questions_is_answered_before_init() {
    let machine = Machine::dormant("h200", 1);
    let (status, _) = ask!(machine, zeroed(), cuDeviceGetDevResource(0; SM));
    assert_eq!(status, CUresult::CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(machine.api.version().to_string(), "13.0");
    ok(machine.init());
    machine.device();
}

#[test]
fn null_pointers_are_invalid_values() {
    let machine = Machine::new();
    let device = machine.device();
    let mut groups = 1;
    let split = |input: *const CUdevResource, groups: *mut u32| {
        call!(machine, cuDevSmResourceSplitByCount(null_mut(), groups, input, null_mut(), 0, 8))
    };
    assert_eq!(split(std::ptr::null(), &mut groups), INVALID_VALUE);
    assert_eq!(split(&device, null_mut()), INVALID_VALUE);
    let (status, _) = ask!(machine, null_mut(), cuDevResourceGenerateDesc(; null_mut(), 1));
    assert_eq!(status, INVALID_VALUE);
    assert_eq!(call!(machine, cuCtxGetDevResource(null_mut(), &mut zeroed(), SM)), INVALID_CONTEXT);
}

#[test]
fn contexts_are_created_from_what_the_driver_accepts() {
    let machine = Machine::new();
    let (status, green) = machine.create(null_mut());
    ok(status);
    assert_eq!(machine.destroy(green), OK);
    let desc = machine.desc(&[machine.device()]).expect("the whole device");
    for (device, flags, expected) in [
        (99, 1, CUresult::CUDA_ERROR_INVALID_DEVICE),
        (-1, 1, CUresult::CUDA_ERROR_INVALID_DEVICE),
        (0, 0, INVALID_VALUE),
        (0, 2, INVALID_VALUE),
        (0, 3, INVALID_VALUE),
        (0, 5, INVALID_VALUE),
        (0, 1, OK),
    ] {
        let (status, _) = ask!(machine, null_mut(), cuGreenCtxCreate(; desc, device, flags));
        assert_eq!(status, expected, "device {device}, flags {flags}");
    }
}

#[test]
fn null_and_garbage_contexts_are_invalid() {
    let (machine, primary) = Machine::with_primary();
    for address in [0, GARBAGE] {
        let green: CUgreenCtx = without_provenance_mut(address);
        let (status, _) = ask!(machine, null_mut(), cuCtxFromGreenCtx(; green));
        assert_eq!(status, INVALID_CONTEXT);
        assert_eq!(machine.destroy(green), INVALID_CONTEXT);
        let event = machine.event();
        assert_eq!(call!(machine, cuGreenCtxRecordEvent(green, event)), INVALID_CONTEXT);
        let refused = if address == 0 { INVALID_VALUE } else { INVALID_CONTEXT };
        assert_eq!(machine.push(green.cast()), refused);
        assert_eq!(machine.pop(), OK);
        assert_eq!(machine.push(green.cast()), refused);
        ok(machine.push(primary));
        let (status, _) =
            ask!(machine, null_mut(), cuGreenCtxStreamCreate(; green, NON_BLOCKING, 0));
        assert_eq!(status, INVALID_CONTEXT);
    }
    let handle: CUstream = without_provenance_mut(GARBAGE);
    assert_eq!(machine.sync(handle), INVALID_HANDLE);
    assert_eq!(call!(machine, cuEventDestroy(handle.cast())), INVALID_HANDLE);
    assert_eq!(machine.launch(handle.cast(), 1, null_mut(), &[]), INVALID_HANDLE);
}

#[test]
fn a_destroyed_context_says_so() {
    let machine = Machine::new();
    let green = machine.green_of(16);
    assert_eq!((machine.destroy(green), machine.destroy(green)), (OK, DESTROYED));
    let (status, _) = ask!(machine, null_mut(), cuGreenCtxStreamCreate(; green, NON_BLOCKING, 0));
    assert_eq!(status, DESTROYED);
    let (status, _) = ask!(machine, zeroed(), cuGreenCtxGetDevResource(green; SM));
    assert_eq!(status, DESTROYED);
}

#[test]
fn streams_of_a_destroyed_context_are_lost() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(16);
    let stream = machine.green_stream(green);
    ok(machine.destroy(green));
    assert_eq!(call!(machine, cuStreamQuery(stream)), DESTROYED);
    assert_eq!(machine.sync(stream), DESTROYED);
    assert_eq!(call!(machine, cuStreamDestroy(stream)), DESTROYED);
    assert_eq!(machine.sim.live().streams, 1);
}

#[test]
fn streams_are_detached_from_13_1_on() {
    let machine = Machine::with_devices("h200@13.1", 1);
    let green = machine.green_of(16);
    let stream = machine.green_stream(green);
    ok(machine.destroy(green));
    assert_eq!(machine.sync(stream), CUresult::CUDA_ERROR_STREAM_DETACHED);
    assert_eq!(call!(machine, cuStreamDestroy(stream)), OK);
    assert_eq!(call!(machine, cuStreamDestroy(stream)), INVALID_HANDLE);
}

#[test]
fn a_context_can_be_destroyed_while_current() {
    let machine = Machine::new();
    let green = machine.green_of(16);
    let context = machine.context(green);
    ok(machine.push(context));
    ok(machine.destroy(green));
    assert_eq!(ask!(machine, null_mut(), cuCtxGetCurrent(;)), (OK, context));
    assert_eq!(call!(machine, cuCtxSynchronize()), DESTROYED);
    assert_eq!(ask!(machine, 0, cuMemAlloc(; 64)).0, DESTROYED);
    assert_eq!(ask!(machine, null_mut(), cuCtxPopCurrent(;)), (OK, context));
    assert_eq!(machine.pop(), INVALID_CONTEXT);
}

#[test]
fn neither_kind_of_context_is_destroyed_as_an_ordinary_one() {
    let machine = Machine::new();
    let primary = machine.retain();
    let green = machine.green_of(16);
    assert_eq!(call!(machine, cuCtxDestroy(machine.context(green))), INVALID_CONTEXT);
    assert_eq!(call!(machine, cuCtxDestroy(primary)), INVALID_CONTEXT);
    assert_eq!(machine.destroy(green), OK);
}

#[test]
fn green_contexts_hold_the_primary_context() {
    let machine = Machine::new();
    let active = || ask!(machine, 0, cuDevicePrimaryCtxGetState(0, &mut 0;)).1;
    assert_eq!(active(), 0);
    let green = machine.green_of(16);
    assert_eq!(active(), 1);
    assert_eq!(ask!(machine, null_mut(), cuCtxGetCurrent(;)), (OK, null_mut()));
    machine.retain();
    let stream = machine.green_stream(green);
    ok(call!(machine, cuDevicePrimaryCtxRelease(0)));
    assert_eq!((machine.sync(stream), active()), (OK, 1));
    assert_eq!(call!(machine, cuDevicePrimaryCtxReset(0)), CUresult::CUDA_ERROR_NOT_PERMITTED);
    assert_eq!(machine.sync(stream), OK);
    assert_eq!(machine.destroy(green), OK);
    assert_eq!(call!(machine, cuStreamDestroy(stream)), DESTROYED);
    assert_eq!(active(), 0);
    assert_eq!(call!(machine, cuDevicePrimaryCtxRelease(0)), INVALID_CONTEXT);
}

#[test]
fn ids_go_up_from_the_primary_context() {
    let machine = Machine::new();
    let primary = machine.retain();
    let green = machine.green_of(16);
    let context = machine.context(green);
    assert_eq!(context.addr(), green.addr());
    assert_eq!(ask!(machine, 0, cuCtxGetId(context;)), (OK, 2));
    assert_eq!(ask!(machine, 0, cuCtxGetId(primary;)), (OK, 1));
    assert_eq!(ask!(machine, 0, cuGreenCtxGetId(green;)), (OK, 2));
    assert_eq!(ask!(machine, 0, cuCtxGetApiVersion(context;)), (OK, 3020));
    ok(machine.destroy(green));
    ok(call!(machine, cuDevicePrimaryCtxRelease(0)));
    assert_eq!(ask!(machine, 0, cuCtxGetId(primary;)).0, DESTROYED);
    let primary = machine.retain();
    assert_eq!(ask!(machine, 0, cuCtxGetId(primary;)), (OK, 3));
}

#[test]
fn streams_know_their_contexts() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.green_of(64);
    let context = machine.context(green);
    let (plain, stream) = (machine.stream(NON_BLOCKING), machine.green_stream(green));
    let green_of = |stream| ask!(machine, null_mut(), cuStreamGetGreenCtx(stream;));
    assert_eq!(green_of(stream), (OK, green));
    assert_eq!(green_of(plain), (OK, null_mut()));
    let (legacy, per_thread) = (without_provenance_mut(1), without_provenance_mut(2));
    assert_eq!([null_mut(), legacy, per_thread].map(green_of), [(OK, null_mut()); 3]);
    let both = |stream| {
        let (mut context, mut green) = (null_mut(), null_mut());
        ok(call!(machine, cuStreamGetCtx(stream, &mut context, &mut green)));
        (context, green)
    };
    assert_eq!(both(plain), (primary, null_mut()));
    assert_eq!(both(stream), (primary, green));

    ok(machine.push(context));
    assert_eq!(both(null_mut()), (primary, green));
    assert_eq!(ask!(machine, 9, cuStreamGetFlags(null_mut();)), (OK, NON_BLOCKING));
    assert_eq!([null_mut(), legacy].map(green_of), [(OK, green); 2]);
    assert_eq!(green_of(per_thread).0, INVALID_HANDLE);
    for flags in [NON_BLOCKING, 0] {
        let stream = machine.stream(flags);
        assert_eq!(green_of(stream), (OK, green));
        assert_eq!(ask!(machine, 9, cuStreamGetFlags(stream;)), (OK, NON_BLOCKING));
    }
    ok(machine.pop());
    ok(machine.pop());
    assert_eq!(green_of(null_mut()).0, INVALID_CONTEXT);
}

#[test]
fn green_streams_take_one_flag_and_clamp_the_priority() {
    let machine = Machine::new();
    let green = machine.green_of(16);
    for flags in [0, 2, 3] {
        let (status, _) = ask!(machine, null_mut(), cuGreenCtxStreamCreate(; green, flags, 0));
        assert_eq!(status, INVALID_VALUE);
    }
    for (asked, given) in [(-100, -5), (-5, -5), (-1, -1), (0, 0), (1, 0), (100, 0)] {
        let (status, stream) =
            ask!(machine, null_mut(), cuGreenCtxStreamCreate(; green, NON_BLOCKING, asked));
        ok(status);
        assert_eq!(ask!(machine, 9, cuStreamGetPriority(stream;)), (OK, given));
        assert_eq!(ask!(machine, 9, cuStreamGetFlags(stream;)), (OK, 1));
    }
}

#[test]
fn a_current_green_context_answers_as_a_context() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(64);
    ok(machine.push(machine.context(green)));
    assert_eq!(ask!(machine, -1, cuCtxGetDevice(;)), (OK, 0));
    assert_eq!(ask!(machine, 9, cuCtxGetFlags(;)), (OK, 8));
    let stack = CUlimit::CU_LIMIT_STACK_SIZE;
    assert_eq!(ask!(machine, 0, cuCtxGetLimit(; stack)), (OK, 1024));
    ok(call!(machine, cuCtxSetLimit(stack, 2048)));
    assert_eq!(ask!(machine, 0, cuCtxGetLimit(; stack)), (OK, 2048));
    let cache = || ask!(machine, CUfunc_cache(99), cuCtxGetCacheConfig(;));
    assert_eq!(cache(), (OK, CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE));
    let shared = CUfunc_cache::CU_FUNC_CACHE_PREFER_SHARED;
    ok(call!(machine, cuCtxSetCacheConfig(shared)));
    assert_eq!(call!(machine, cuCtxSetCacheConfig(CUfunc_cache(4))), INVALID_VALUE);
    assert_eq!(cache(), (OK, shared));
    ok(call!(machine, cuCtxSynchronize()));
    let (mut least, mut greatest) = (9, 9);
    ok(call!(machine, cuCtxGetStreamPriorityRange(&mut least, &mut greatest)));
    assert_eq!((least, greatest), (0, -5));
    let sms = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    assert_eq!(ask!(machine, 0, cuDeviceGetAttribute(; sms, 0)), (OK, 132));
    // What is set is set for all contexts of the device.
    ok(machine.pop());
    assert_eq!(ask!(machine, 0, cuCtxGetLimit(; stack)), (OK, 2048));
    assert_eq!(cache(), (OK, shared));
    ok(call!(machine, cuDevicePrimaryCtxRelease(0)));
    ok(machine.destroy(green));
    machine.retain();
    assert_eq!(ask!(machine, 0, cuCtxGetLimit(; stack)), (OK, 1024));
    assert_eq!(cache(), (OK, CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE));
}

#[test]
fn what_needs_a_current_context_and_what_does_not() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(64));
    ok(machine.launch(machine.kernel("nothing"), 64, stream, &[]));
    ok(machine.sync(stream));
    assert_eq!(ask!(machine, null_mut(), cuEventCreate(; 0)).0, INVALID_CONTEXT);
    assert_eq!(call!(machine, cuCtxGetStreamPriorityRange(&mut 0, &mut 0)), INVALID_CONTEXT);
    assert_eq!(ask!(machine, 0, cuMemAlloc(; 64)).0, INVALID_CONTEXT);
    ok(call!(machine, cuMemFree(0)));
    assert_eq!(call!(machine, cuStreamSynchronize(null_mut())), INVALID_CONTEXT);
    let (status, memory) = ask!(machine, 0, cuMemAllocAsync(; 64, stream));
    ok(status);
    ok(call!(machine, cuMemsetD8Async(memory, 7, 64, stream)));
    ok(call!(
        machine,
        cuStreamBeginCapture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
    ));
}

#[test]
fn one_illegal_address_poisons_every_context() {
    let (machine, primary) = Machine::with_primary();
    let (green, other) = (machine.green_of(16), machine.green_of(16));
    let (stream, beside) = (machine.green_stream(green), machine.green_stream(other));
    let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    ok(machine.launch(machine.kernel("green_ctx_fault"), 1, stream, &[16]));
    assert_eq!(machine.sync(stream), illegal);
    assert_eq!(machine.sync(beside), illegal);
    assert_eq!(call!(machine, cuCtxSynchronize()), illegal);
    assert_eq!(call!(machine, cuStreamDestroy(stream)), illegal);
    assert_eq!(machine.create(null_mut()).0, illegal);
    assert_eq!(machine.destroy(green), OK);
    assert_eq!(call!(machine, cuStreamDestroy(stream)), illegal);
    assert_eq!((machine.push(primary), machine.pop()), (OK, OK));
    // With the primary context goes what poisons it.
    ok(machine.destroy(other));
    ok(call!(machine, cuDevicePrimaryCtxReset(0)));
    machine.retain();
    ok(call!(machine, cuCtxSynchronize()));
}

#[test]
fn functions_run_on_streams_of_any_context() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(64);
    let context = machine.context(green);
    let stream = machine.green_stream(green);
    let text = c".version 7.8\n.target sm_90\n.entry work() { ret; }";
    let function = || {
        let (status, module) = ask!(machine, null_mut(), cuModuleLoadData(; text.as_ptr().cast()));
        ok(status);
        let (status, function) =
            ask!(machine, null_mut(), cuModuleGetFunction(; module, c"work".as_ptr()));
        ok(status);
        function
    };
    let of_primary = function();
    ok(machine.push(context));
    let of_green = function();
    ok(machine.launch(of_green.cast(), 200, null_mut(), &[]));
    assert_eq!(machine.sms().len(), 64);
    ok(machine.pop());
    ok(machine.launch(of_primary.cast(), 200, stream, &[]));
    assert_eq!(machine.sms().len(), 64);
    ok(machine.launch(of_green.cast(), 200, null_mut(), &[]));
    assert_eq!(machine.sms().len(), 132);
}

#[test]
fn memory_is_the_device_s_whatever_context_is_current() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(64);
    ok(machine.push(machine.context(green)));
    let (status, memory) = ask!(machine, 0, cuMemAlloc(; 64));
    ok(status);
    ok(machine.pop());
    ok(machine.destroy(green));
    let stream = machine.stream(NON_BLOCKING);
    ok(call!(machine, cuMemsetD8Async(memory, 5, 64, stream)));
    ok(machine.sync(stream));
    let mut bytes = [0_u8; 64];
    ok(call!(machine, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), memory, 64)));
    assert_eq!(bytes, [5; 64]);
}

/// Runs one test of this binary in a process of its own, with the variable set that makes it do
/// what ends the process, and returns its exit status as a shell does.
fn exit_of(test: &str) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", test, "--test-threads=1"]).env("GREEN_CTX_SIM_CRASH", "1");
    let status = command.output().expect("this program runs").status;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn to_crash() -> bool {
    std::env::var_os("GREEN_CTX_SIM_CRASH").is_some()
}

#[test]
fn a_garbage_descriptor_crashes() {
    if to_crash() {
        let machine = Machine::new();
        machine.create(without_provenance_mut(GARBAGE));
        return;
    }
    assert_eq!(exit_of("misuse::a_garbage_descriptor_crashes"), 139);
}

#[test]
fn a_library_unloaded_twice_crashes() {
    if to_crash() {
        let machine = Machine::new();
        let text = c".version 8.0 .target sm_90";
        let text = text.as_ptr().cast();
        let null = null_mut();
        let (status, library) = ask!(
            machine,
            null_mut(),
            cuLibraryLoadData(; text, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
        );
        ok(status);
        assert_eq!(call!(machine, cuLibraryUnload(null)), INVALID_HANDLE);
        ok(call!(machine, cuLibraryUnload(library)));
        call!(machine, cuLibraryUnload(library));
        return;
    }
    assert_eq!(exit_of("misuse::a_library_unloaded_twice_crashes"), 139);
}

#[test]
fn a_destroyed_context_pushed_aborts_at_exit() {
    if to_crash() {
        let machine = Machine::new();
        let green = machine.green_of(16);
        let context = machine.context(green);
        ok(machine.destroy(green));
        assert_eq!(machine.push(context), OK);
        return;
    }
    assert_eq!(exit_of("misuse::a_destroyed_context_pushed_aborts_at_exit"), 134);
}

#[test]
fn describing_nothing_crashes() {
    if to_crash() {
        let _ = Machine::new().desc(&[]);
        return;
    }
    assert_eq!(exit_of("misuse::describing_nothing_crashes"), 139);
}

#[test]
fn a_graph_as_its_own_child_crashes() {
    if to_crash() {
        let (machine, _) = Machine::with_primary();
        let (_, graph) = ask!(machine, null_mut(), cuGraphCreate(; 0));
        let none = null_mut();
        ask!(machine, null_mut(), cuGraphAddChildGraphNode(; graph, none, 0, graph));
        return;
    }
    assert_eq!(exit_of("misuse::a_graph_as_its_own_child_crashes"), 139);
}

/// An event is the device's, whichever context was current when it was created.
#[test]
fn events_outlive_a_destroyed_context() {
    let (machine, _) = Machine::with_primary();
    let green = machine.green_of(8);
    ok(machine.push(machine.context(green)));
    let event = machine.event();
    ok(machine.pop());
    ok(machine.destroy(green));
    ok(call!(machine, cuEventQuery(event)));
    ok(call!(machine, cuEventRecord(event, null_mut())));
    ok(call!(machine, cuEventSynchronize(event)));
    // It does not outlive the primary context.
    ok(call!(machine, cuDevicePrimaryCtxReset(0)));
    machine.retain();
    assert_eq!(call!(machine, cuEventQuery(event)), DESTROYED);
    assert_eq!(machine.sim.live().events, 0);
}

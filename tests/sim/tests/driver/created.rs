//! Contexts that a program creates with `cuCtxCreate`.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use green_ctx_sim::Live;
use green_ctx_sys::*;

use crate::machine::*;

const UNSUPPORTED_AFFINITY: CUresult = CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;

type CreateV2 = unsafe extern "C" fn(*mut CUcontext, c_uint, c_int) -> CUresult;
type CreateV3 = unsafe extern "C" fn(*mut CUcontext, *mut c_void, c_int, c_uint, c_int) -> CUresult;
type CreateV4 = unsafe extern "C" fn(*mut CUcontext, *const [u64; 3], c_uint, c_int) -> CUresult;

fn create(machine: &Machine, flags: u32, device: i32) -> (CUresult, CUcontext) {
    let mut context = null_mut();
    // SAFETY: this is the function's signature at this version.
    let function: CreateV2 = unsafe { machine.function(c"cuCtxCreate", 3020) };
    // SAFETY: `context` takes the answer.
    (unsafe { function(&mut context, flags, device) }, context)
}

fn created(machine: &Machine) -> CUcontext {
    let (status, context) = create(machine, 0, 0);
    ok(status);
    context
}

fn current(machine: &Machine) -> CUcontext {
    ask!(machine, null_mut(), cuCtxGetCurrent(;)).1
}

fn destroy(machine: &Machine, context: CUcontext) -> CUresult {
    call!(machine, cuCtxDestroy(context))
}

fn alloc(machine: &Machine) -> u64 {
    let (status, address) = ask!(machine, 0, cuMemAlloc(; 1024));
    ok(status);
    address
}

#[test]
fn a_created_context_is_current_until_it_is_destroyed() {
    let (machine, primary) = Machine::with_primary();
    let first = created(&machine);
    let second = created(&machine);
    assert!(first != second && first != primary);
    assert_eq!(current(&machine), second);
    assert_eq!(machine.sim.live().contexts, 2);
    let id = |context| ask!(machine, 0, cuCtxGetId(context;)).1;
    assert_ne!(id(first), id(second));
    // One that is not on top stays in the stack.
    ok(destroy(&machine, first));
    assert_eq!(current(&machine), second);
    ok(destroy(&machine, second));
    assert_eq!(current(&machine), first);
    assert_eq!(call!(machine, cuCtxSynchronize()), DESTROYED);
    assert_eq!(destroy(&machine, second), DESTROYED);
    ok(machine.pop());
    assert_eq!(current(&machine), primary);
    assert_eq!(destroy(&machine, primary), INVALID_CONTEXT);
    let live = machine.sim.live();
    assert_eq!((live.contexts, live.primary_retains), (0, 1));
}

#[test]
fn each_form_creates_one() {
    let machine = Machine::new();
    let mut context = null_mut();
    // SAFETY: this is the function's signature at this version.
    let third: CreateV3 = unsafe { machine.function(c"cuCtxCreate", 11040) };
    // SAFETY: this is the function's signature at this version.
    let fourth: CreateV4 = unsafe { machine.function(c"cuCtxCreate", 12050) };
    let mut with = |params: Option<[u64; 3]>| {
        let params = params.as_ref().map_or(null(), |params| params);
        // SAFETY: `context` takes the answer, and the parameters are null or a struct.
        unsafe { fourth(&mut context, params, 0, 0) }
    };
    ok(with(None));
    // The upper half of the second number is no part of it.
    ok(with(Some([0, 7 << 32, 0])));
    assert_eq!(with(Some([16, 1, 0])), UNSUPPORTED_AFFINITY);
    assert_eq!(with(Some([0, 0, 16])), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // SAFETY: `context` takes the answer, and there are no parameters.
    let mut plain = |count| unsafe { third(&mut context, null_mut(), count, 0, 0) };
    assert_eq!([plain(0), plain(1)], [OK, UNSUPPORTED_AFFINITY]);
    assert_eq!(machine.sim.live().contexts, 3);
}

#[test]
fn flags_and_devices_are_checked() {
    let machine = Machine::with_devices("h200", 2);
    for (flags, device, expected) in [
        (0, 2, CUresult::CUDA_ERROR_INVALID_DEVICE),
        (3, 0, INVALID_VALUE),
        (1 << 20, 0, INVALID_VALUE),
        (4, 1, OK),
    ] {
        assert_eq!(create(&machine, flags, device).0, expected, "flags {flags}, device {device}");
    }
    assert_eq!(ask!(machine, 0, cuCtxGetFlags(;)), (OK, 4));
    assert_eq!(ask!(machine, -1, cuCtxGetDevice(;)), (OK, 1));
    let (status, _) = ask!(machine, 0, cuDevicePrimaryCtxGetState(2; &mut 0));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_DEVICE, "a context is no device");
    let (_, stream) = ask!(machine, null_mut(), cuStreamCreate(; 0));
    assert_eq!(ask!(machine, -1, cuStreamGetDevice(stream;)), (OK, 1));
    let (status, sms) = ask!(machine, zeroed(), cuCtxGetDevResource(current(&machine); SM));
    assert_eq!((status, sm_count(&sms)), (OK, 132));
}

#[test]
fn destroying_takes_everything_in_it() {
    let (machine, primary) = Machine::with_primary();
    let kept = alloc(&machine);
    let free = || ask!(machine, 0, cuMemGetInfo(; &mut 0)).1;
    let before = free();
    let context = created(&machine);
    let (_, stream) = ask!(machine, null_mut(), cuStreamCreate(; 0));
    let (event, memory) = (machine.event(), alloc(&machine));
    assert!(free() < before);
    ok(call!(machine, cuMemsetD8Async(memory, 1, 1024, stream)));
    ok(call!(machine, cuEventRecord(event, stream)));
    assert_eq!(machine.sim.live().allocations, 2);
    ok(destroy(&machine, context));
    assert_eq!(current(&machine), primary);
    let live = machine.sim.live();
    assert_eq!(
        (live.streams, live.events, live.allocations, live.allocated_bytes),
        (0, 0, 1, 1024)
    );
    assert_eq!(free(), before);
    assert_eq!(machine.sync(stream), DESTROYED);
    assert_eq!(call!(machine, cuEventQuery(event)), DESTROYED);
    assert_eq!(call!(machine, cuMemFree(memory)), INVALID_VALUE);
    ok(call!(machine, cuMemFree(kept)));
    // The next one begins anew, and is another.
    let next = created(&machine);
    assert_ne!(next, context);
    assert_eq!(machine.push(context), OK);
    assert_eq!(call!(machine, cuCtxSynchronize()), DESTROYED);
}

#[test]
fn contexts_are_apart_and_events_order_them() {
    let (machine, _) = Machine::with_primary();
    let (_, first) = ask!(machine, null_mut(), cuStreamCreate(; 1));
    let outside = machine.event();
    let context = created(&machine);
    let (_, second) = ask!(machine, null_mut(), cuStreamCreate(; 1));
    let inside = machine.event();
    // An event is recorded in streams of its own context, and waited for in all.
    assert_eq!(call!(machine, cuEventRecord(outside, second)), INVALID_HANDLE);
    assert_eq!(call!(machine, cuEventRecord(inside, first)), INVALID_HANDLE);
    ok(call!(machine, cuEventRecord(inside, second)));
    ok(call!(machine, cuStreamWaitEvent(first, inside, 0)));
    // Neither stands for what is in the other.
    let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(call!(machine, cuStreamBeginCapture(first, global)));
    ok(call!(machine, cuCtxSynchronize()));
    ok(destroy(&machine, context));
    assert_ne!(call!(machine, cuCtxSynchronize()), OK);
    // The primary context can be reset beside it, and the reverse.
    let context = created(&machine);
    ok(call!(machine, cuDevicePrimaryCtxReset(0)));
    ok(call!(machine, cuCtxSynchronize()));
    let limit = CUlimit::CU_LIMIT_STACK_SIZE;
    ok(call!(machine, cuCtxSetLimit(limit, 4096)));
    ok(machine.push(machine.retain()));
    assert_eq!(ask!(machine, 0, cuCtxGetLimit(; limit)), (OK, 1024));
    ok(destroy(&machine, context));
}

#[test]
fn a_fault_stays_in_its_context() {
    let (machine, primary) = Machine::with_primary();
    let context = created(&machine);
    machine.sim.register_kernel("green_ctx_fault", |kernel| {
        assert!(kernel.write(16, &[1]).is_err());
    });
    let fault = machine.kernel("green_ctx_fault");
    ok(machine.launch(fault, 1, null_mut(), &[0]));
    let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_eq!(call!(machine, cuCtxSynchronize()), illegal);
    ok(machine.push(primary));
    ok(call!(machine, cuCtxSynchronize()));
    ok(machine.launch(machine.kernel("nothing"), 1, null_mut(), &[]));
    ok(machine.pop());
    ok(destroy(&machine, context));
    ok(call!(machine, cuCtxSynchronize()));
}

#[test]
fn a_context_that_is_attached_to_is_detached_from() {
    type Attach = unsafe extern "C" fn(*mut CUcontext, c_uint) -> CUresult;
    type Detach = unsafe extern "C" fn(CUcontext) -> CUresult;
    let machine = Machine::new();
    // SAFETY: this is the function's signature at this version.
    let attach: Attach = unsafe { machine.function(c"cuCtxAttach", 2000) };
    // SAFETY: this is the function's signature at this version.
    let detach: Detach = unsafe { machine.function(c"cuCtxDetach", 2000) };
    let mut found = null_mut();
    // SAFETY: `found` takes the answer.
    let mut attach = |flags| (unsafe { attach(&mut found, flags) }, found);
    // SAFETY: the handle is never followed.
    let detach = |context| unsafe { detach(context) };
    assert_eq!(attach(0).0, INVALID_CONTEXT);
    ok(machine.push(machine.retain()));
    assert_eq!(attach(0).0, INVALID_CONTEXT);
    let context = created(&machine);
    assert_eq!(attach(1).0, INVALID_VALUE);
    assert_eq!(attach(0), (OK, context));
    ok(detach(context));
    assert_eq!((current(&machine), machine.sim.live().contexts), (context, 1));
    ok(detach(context));
    assert_eq!(machine.sim.live().contexts, 0);
    assert_eq!(detach(context), INVALID_CONTEXT);
}

#[test]
fn contexts_take_memory() {
    let machine = Machine::new();
    let most = machine.sim.spec().profile().memory_bytes
        / machine.sim.spec().profile().primary_context_bytes;
    let contexts: Vec<CUcontext> = (0..most).map(|_| created(&machine)).collect();
    assert_eq!(create(&machine, 0, 0).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    contexts.into_iter().for_each(|context| ok(destroy(&machine, context)));
    assert_eq!(machine.sim.live(), Live::default());
}

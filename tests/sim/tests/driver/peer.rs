//! Several devices: whose memory work reaches.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
const PTX: &str = "
    .version 7.0
    .target sm_52
    .visible .entry touch(.param .u64 at) { ret; }
";

/// Two devices with their primary contexts, the first current, 64 bytes on each, and a kernel that
/// writes a byte.
struct Two {
    machine: Machine,
    contexts: [CUcontext; 2],
    memory: [u64; 2],
    kernel: CUkernel,
}

impl Two {
    fn new() -> Two {
        let machine = Machine::with_devices("h200", 2);
        let contexts =
            [0, 1].map(|device| ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; device)).1);
        let memory = contexts.map(|context| {
            ok(machine.push(context));
            let (status, memory) = ask!(machine, 0, cuMemAlloc(; 64));
            ok(status);
            ok(machine.pop());
            memory
        });
        ok(machine.push(contexts[0]));
        machine.sim.register_kernel("touch", |kernel| {
            let _ = kernel.write(kernel.param_u64(0).unwrap_or(0), &[7]);
        });
        let kernel = machine.kernel_of(PTX, "touch").expect("PTX");
        Two { machine, contexts, memory, kernel }
    }

    /// What a kernel on the first device ends with that writes there.
    fn touch(&self, at: u64) -> CUresult {
        ok(self.machine.launch(self.kernel, 1, null_mut(), &[at]));
        call!(self.machine, cuCtxSynchronize())
    }

    fn enable(&self, context: CUcontext, flags: u32) -> CUresult {
        call!(self.machine, cuCtxEnablePeerAccess(context, flags))
    }

    fn disable(&self, context: CUcontext) -> CUresult {
        call!(self.machine, cuCtxDisablePeerAccess(context))
    }

    fn byte(&self, at: u64) -> u8 {
        let mut byte = 0_u8;
        ok(call!(self.machine, cuMemcpyDtoH((&raw mut byte).cast(), at, 1)));
        byte
    }
}

#[test]
fn access_is_asked_for_with_care() {
    let two = Two::new();
    let [own, other] = two.contexts;
    ok(two.machine.pop());
    assert_eq!(two.enable(other, 0), INVALID_CONTEXT);
    ok(two.machine.push(own));
    assert_eq!([two.enable(own, 0), two.enable(null_mut(), 0)], [UNSUPPORTED, INVALID_CONTEXT]);
    assert_eq!(two.disable(own), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    assert_eq!(two.enable(other, 1), INVALID_VALUE);
    assert_eq!(two.disable(other), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    ok(two.enable(other, 0));
    assert_eq!(two.enable(other, 0), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ok(two.disable(other));
    ok(two.enable(other, 0));
    // A reset takes it back.
    ok(call!(two.machine, cuDevicePrimaryCtxReset(1)));
    let again = ask!(two.machine, null_mut(), cuDevicePrimaryCtxRetain(; 1)).1;
    ok(two.enable(again, 0));
    // A green context is another context of the same device, which has no access to itself.
    let green = two.machine.green_of(8);
    assert_eq!(two.enable(two.machine.context(green), 0), UNSUPPORTED);
    let can = |one, two_: i32| ask!(two.machine, -1, cuDeviceCanAccessPeer(; one, two_));
    assert_eq!([can(0, 1), can(1, 0), can(0, 0)], [(OK, 1), (OK, 1), (OK, 0)]);
    assert_eq!(can(0, 2).0, CUresult::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn kernels_and_fills_reach_peers_alone() {
    let two = Two::new();
    let fill = |at| call!(two.machine, cuMemsetD8(at, 3, 4));
    assert_eq!(fill(two.memory[1]), INVALID_VALUE);
    ok(two.enable(two.contexts[1], 0));
    ok(fill(two.memory[1]));
    ok(two.touch(two.memory[1] + 1));
    assert_eq!([0, 1].map(|at| two.byte(two.memory[1] + at)), [3, 7]);
    // Access is in one direction.
    ok(two.machine.push(two.contexts[1]));
    assert_eq!(fill(two.memory[0]), INVALID_VALUE);
    ok(two.machine.pop());
    ok(two.disable(two.contexts[1]));
    assert_eq!(two.touch(two.memory[1]), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn copies_go_between_devices_without_access() {
    let two = Two::new();
    let [a, b] = two.memory;
    let (machine, [first, second]) = (&two.machine, two.contexts);
    ok(call!(machine, cuMemsetD8(a, 5, 64)));
    ok(call!(machine, cuMemcpyPeer(b, second, a, first, 64)));
    ok(call!(machine, cuCtxSynchronize()));
    assert_eq!(two.byte(b + 63), 5);
    let wrong = [
        call!(machine, cuMemcpyPeer(b, first, a, first, 64)),
        call!(machine, cuMemcpyPeer(b, second, a, second, 64)),
        call!(machine, cuMemcpyPeer(b, second, a, first, 65)),
    ];
    assert_eq!(wrong, [INVALID_VALUE; 3]);
    // No context is the current one.
    let own = [
        call!(machine, cuMemcpyPeer(b, null_mut(), a, first, 64)),
        call!(machine, cuMemcpyPeer(b, second, a, null_mut(), 64)),
    ];
    assert_eq!(own, [INVALID_VALUE, OK]);
    let stream = machine.stream(NON_BLOCKING);
    ok(call!(machine, cuMemsetD8Async(a, 6, 64, stream)));
    ok(call!(machine, cuMemcpyPeerAsync(b, second, a, first, 32, stream)));
    ok(call!(machine, cuMemcpyDtoDAsync(b + 32, a, 32, stream)));
    ok(machine.sync(stream));
    assert_eq!([0, 63].map(|at| two.byte(b + at)), [6, 6]);
}

/// The copy between contexts without a stream comes after, and before, all work of both.
#[test]
fn a_copy_between_contexts_is_in_order_with_both() {
    let two = Two::new();
    let machine = &two.machine;
    let [a, b] = two.memory;
    let near = machine.stream(NON_BLOCKING);
    ok(machine.push(two.contexts[1]));
    let far = machine.stream(NON_BLOCKING);
    ok(machine.pop());
    ok(call!(machine, cuMemsetD8Async(a, 1, 64, near)));
    ok(call!(machine, cuMemsetD8Async(b, 2, 64, far)));
    ok(call!(machine, cuMemcpyPeer(b, two.contexts[1], a, two.contexts[0], 64)));
    ok(call!(machine, cuMemsetD8Async(a, 3, 64, near)));
    ok(call!(machine, cuMemsetD8Async(b, 4, 64, far)));
    assert_eq!(machine.sim.races(), []);
    ok(call!(
        machine,
        cuMemcpyPeerAsync(b, two.contexts[1], a, two.contexts[0], 64, machine.stream(NON_BLOCKING))
    ));
    assert_eq!(machine.sim.races().len(), 2, "the other one is in order with its stream alone");
}

#[test]
fn devices_are_found_by_their_bus() {
    let machine = Machine::with_devices("h200", 2);
    let mut text = [0; 32];
    ok(call!(machine, cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, 1)));
    let find = |text: *const _| ask!(machine, -1, cuDeviceGetByPCIBusId(; text));
    assert_eq!(find(text.as_ptr()), (OK, 1));
    for (text, expected) in [
        (c"0000:19:00", (OK, 0)),
        (c"1a:0.0", (OK, 1)),
        (c"0000:1b:00.0", (CUresult::CUDA_ERROR_INVALID_DEVICE, -1)),
        (c"0001:19:00.0", (CUresult::CUDA_ERROR_INVALID_DEVICE, -1)),
        (c"", (INVALID_VALUE, -1)),
        (c"words", (INVALID_VALUE, -1)),
    ] {
        assert_eq!(find(text.as_ptr()), expected, "{text:?}");
    }
    assert_eq!(find(std::ptr::null()).0, INVALID_VALUE);
}

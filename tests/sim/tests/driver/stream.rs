//! Functions of streams beside work: attributes, devices, captures, and those that refuse.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

fn value() -> CUstreamAttrValue_v1 {
    CUstreamAttrValue_v1 { pad: [0; 64] }
}

#[test]
fn streams_have_attributes() {
    let (machine, _) = Machine::with_primary();
    let (a, b) = (machine.stream(NON_BLOCKING), machine.stream(NON_BLOCKING));
    let policy = CUstreamAttrID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
    let priority = CUstreamAttrID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    let policy_of = |stream| {
        let (status, value) = ask!(machine, value(), cuStreamGetAttribute(stream, policy;));
        // SAFETY: the value is plain numbers.
        (status, unsafe { value.syncPolicy })
    };
    let set = |id, number: i32| {
        let mut value = value();
        value.priority = number;
        call!(machine, cuStreamSetAttribute(a, id, &value))
    };
    assert_eq!(policy_of(a), (OK, CUsynchronizationPolicy::CU_SYNC_POLICY_AUTO));
    let yielding = CUsynchronizationPolicy::CU_SYNC_POLICY_YIELD;
    assert_eq!(set(policy, yielding.0 as i32), OK);
    assert_eq!([set(policy, 0), set(policy, 5)], [INVALID_VALUE; 2]);
    assert_eq!(set(priority, -100), OK);
    assert_eq!(ask!(machine, 9, cuStreamGetPriority(a;)), (OK, -5));
    assert_eq!(policy_of(b), (OK, CUsynchronizationPolicy::CU_SYNC_POLICY_AUTO));
    ok(call!(machine, cuStreamCopyAttributes(b, a)));
    assert_eq!(policy_of(b), (OK, yielding));
    let (status, copied) = ask!(machine, value(), cuStreamGetAttribute(b, priority;));
    // SAFETY: the value is plain numbers.
    assert_eq!((status, unsafe { copied.priority }), (OK, -5));
    for (id, status) in [
        (CUstreamAttrID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, INVALID_VALUE),
        (CUstreamAttrID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, CUresult::CUDA_ERROR_NOT_SUPPORTED),
    ] {
        assert_eq!(set(id, 0), status);
        assert_eq!(ask!(machine, value(), cuStreamGetAttribute(a, id;)).0, status);
    }
}

#[test]
fn streams_know_their_device() {
    let machine = Machine::with_devices("h200", 2);
    let (status, context) = ask!(machine, null_mut(), cuDevicePrimaryCtxRetain(; 1));
    ok(status);
    ok(machine.push(context));
    let (plain, green) = (machine.stream(0), machine.green_stream(machine.green_of(8)));
    for (stream, device) in [(plain, 1), (green, 0), (null_mut(), 1)] {
        assert_eq!(ask!(machine, 9, cuStreamGetDevice(stream;)), (OK, device));
    }
}

#[test]
fn captures_are_reported() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(8));
    let (none, active) = (
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
    );
    let info = |graph| {
        let (mut status, mut id) = (CUstreamCaptureStatus(99), 0);
        let (nothing, edges) = (null_mut(), null_mut());
        let answer = call!(
            machine,
            cuStreamGetCaptureInfo(stream, &mut status, &mut id, graph, nothing, edges, null_mut())
        );
        (answer, status, id)
    };
    let mut graph = null_mut();
    assert_eq!(info(&mut graph), (OK, none, 0));
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
    let (answer, status, first) = info(null_mut());
    assert_eq!((answer, status), (OK, active));
    assert_ne!(first, 0);
    assert_eq!(info(&mut graph).0, OK);
    let reported = graph;
    ok(call!(machine, cuStreamEndCapture(stream, &mut graph)));
    assert_eq!(reported, graph);
    assert_eq!(info(&mut graph), (OK, none, 0));
    ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
    assert_ne!(info(null_mut()).2, first);
}

#[test]
fn what_is_not_simulated_refuses() {
    let machine = Machine::new();
    let stream = machine.green_stream(machine.green_of(8));
    let waits = [
        call!(machine, cuStreamWaitValue32(stream, 0, 0, 0)),
        call!(machine, cuStreamWaitValue64(stream, 0, 0, 0)),
    ];
    assert_eq!(waits, [CUresult::CUDA_ERROR_NOT_SUPPORTED; 2]);
}

//! Workqueue resources and the resources of streams, from CUDA 13.1 on.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

const CONFIG: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG;
const EXISTING: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_WORKQUEUE;
const SHARED: u32 = 0;
const BALANCED: u32 = 1;
/// The versions with workqueue resources.
const NEWER: [&str; 2] = ["h200@13.1", "h200@13.4"];

fn machine(spec: &str) -> Machine {
    Machine::with_devices(spec, 2)
}

fn of_device(machine: &Machine, device: i32) -> CUdevResource {
    get!(machine, zeroed(), cuDeviceGetDevResource(device; CONFIG))
}

fn of(machine: &Machine, green: CUgreenCtx, kind: CUdevResourceType) -> CUdevResource {
    let resource = get!(machine, zeroed(), cuGreenCtxGetDevResource(green; kind));
    let context = machine.context(green);
    let derived = get!(machine, zeroed(), cuCtxGetDevResource(context; kind));
    assert_eq!(bytes(&resource), bytes(&derived));
    resource
}

/// Returns the device, the concurrency limit and the sharing scope.
fn config(resource: &CUdevResource) -> (i32, u32, u32) {
    assert_eq!(resource.type_, CONFIG);
    // SAFETY: `type_` shows that this field of the union is in use.
    let config = unsafe { resource.__bindgen_anon_1.wqConfig };
    (config.device, config.wqConcurrencyLimit, config.sharingScope.0)
}

/// Returns a configuration as a program writes it.
fn configured(device: i32, limit: u32, scope: u32) -> CUdevResource {
    let mut resource = zeroed();
    resource.type_ = CONFIG;
    resource.__bindgen_anon_1.wqConfig = CUdevWorkqueueConfigResource {
        device,
        wqConcurrencyLimit: limit,
        sharingScope: CUdevWorkqueueConfigScope(scope),
    };
    resource
}

#[test]
fn devices_and_contexts_have_a_configuration_and_queues() {
    for spec in NEWER {
        let machine = machine(spec);
        assert_eq!(config(&of_device(&machine, 0)), (0, 8, SHARED));
        assert_eq!(config(&of_device(&machine, 1)), (1, 8, SHARED));
        let mut resource = of_device(&machine, 0);
        let bad = call!(machine, cuDeviceGetDevResource(2, &mut resource, CONFIG));
        assert_eq!(bad, CUresult::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(call!(machine, cuDeviceGetDevResource(0, null_mut(), CONFIG)), INVALID_VALUE);
        let primary = machine.retain();
        let (status, of_primary) = ask!(machine, zeroed(), cuCtxGetDevResource(primary; CONFIG));
        assert_eq!((status, config(&of_primary)), (OK, (0, 8, SHARED)));
        let (status, queues) = ask!(machine, zeroed(), cuCtxGetDevResource(primary; EXISTING));
        assert_eq!((status, queues.type_), (OK, EXISTING));
        assert_eq!(call!(machine, cuCtxGetDevResource(primary, null_mut(), CONFIG)), INVALID_VALUE);
        let unknown = CUdevResourceType(2000);
        let (status, _) = ask!(machine, zeroed(), cuCtxGetDevResource(primary; unknown));
        assert_eq!(status, BAD_TYPE);
        // By default all contexts share the device's workqueues.
        let green = machine.green_of(8);
        assert_eq!(config(&of(&machine, green, CONFIG)), (0, 8, SHARED));
        assert_eq!(bytes(&of(&machine, green, EXISTING)), bytes(&queues));
        let (status, of_device) = ask!(machine, zeroed(), cuDeviceGetDevResource(0; EXISTING));
        assert_eq!((status, bytes(&of_device)), (OK, bytes(&queues)));
    }
}

#[test]
fn a_green_context_answers_with_what_it_was_given() {
    for spec in NEWER {
        let machine = machine(spec);
        let units = machine.units().groups;
        let mut edited = of_device(&machine, 0);
        edited.__bindgen_anon_1.wqConfig.wqConcurrencyLimit = 3;
        edited.__bindgen_anon_1.wqConfig.sharingScope.0 = BALANCED;
        let first = machine.green(&[edited, units[0], units[1]]);
        let second = machine.green(&[units[2], edited]);
        for (green, sms) in [(first, 16), (second, 8)] {
            assert_eq!(config(&of(&machine, green, CONFIG)), (0, 3, BALANCED));
            assert_eq!(sm_count(&of(&machine, green, SM)), sms);
        }
        // Each context got its own workqueues. The limit may exceed the device's number of queues.
        let queues = of(&machine, first, EXISTING);
        assert_ne!(bytes(&queues), bytes(&of(&machine, second, EXISTING)));
        let many = machine.green(&[configured(0, 1000, BALANCED), units[3]]);
        assert_eq!(config(&of(&machine, many, CONFIG)), (0, 1000, BALANCED));
        // A third context can share the workqueues of the first, even after that was destroyed.
        ok(machine.destroy(first));
        let third = machine.green(&[units[4], queues]);
        assert_eq!(config(&of(&machine, third, CONFIG)), (0, 3, BALANCED));
        assert_eq!(bytes(&of(&machine, third, EXISTING)), bytes(&queues));
    }
}

#[test]
fn without_sms_a_descriptor_has_all_of_the_device() {
    for spec in NEWER {
        let machine = machine(spec);
        let one = configured(1, 2, BALANCED);
        let desc = machine.desc(&[one]).expect("it is enough");
        assert_eq!(machine.create(desc).0, CUresult::CUDA_ERROR_INVALID_DEVICE);
        let green = get!(machine, null_mut(), cuGreenCtxCreate(; desc, 1, 1));
        assert_eq!(sm_count(&of(&machine, green, SM)), 132);
        assert_eq!(config(&of(&machine, green, CONFIG)), (1, 2, BALANCED));
        let shared = machine.desc(&[of(&machine, green, EXISTING)]).expect("it is enough");
        let other = get!(machine, null_mut(), cuGreenCtxCreate(; shared, 1, 1));
        assert_eq!(sm_count(&of(&machine, other, SM)), 132);
        assert_eq!(config(&of(&machine, other, CONFIG)), (1, 2, BALANCED));
    }
}

#[test]
fn what_is_no_workqueue_is_refused() {
    for spec in NEWER {
        let machine = machine(spec);
        let unit = machine.units().groups[0];
        let queues = of(&machine, machine.green(&[unit, configured(0, 2, SHARED)]), EXISTING);
        for wrong in [
            configured(0, 0, SHARED),
            configured(0, 4, 2),
            configured(1, 4, SHARED), // on another device than the SMs
            configured(2, 4, SHARED),
            configured(-1, 4, SHARED),
        ] {
            assert_eq!(machine.desc(&[unit, wrong]), Err(BAD_CONFIGURATION));
            assert_eq!(machine.desc(&[wrong, unit]), Err(BAD_CONFIGURATION));
        }
        for nobody in [2, -1] {
            assert_eq!(machine.desc(&[configured(nobody, 4, SHARED)]), Err(BAD_CONFIGURATION));
        }
        let good = configured(0, 4, SHARED);
        for two in [[good, good], [good, queues], [queues, queues]] {
            assert_eq!(machine.desc(&two), Err(BAD_CONFIGURATION));
        }
        assert!(machine.desc(&[unit, queues]).is_ok());
        for byte in [0, 7, 8, 30] {
            let mut damaged = queues;
            // SAFETY: `type_` shows that this field of the union is in use.
            unsafe { damaged.__bindgen_anon_1.wq.reserved[byte] ^= 1 };
            assert_eq!(machine.desc(&[unit, damaged]), Err(BAD_CONFIGURATION), "byte {byte}");
        }
        let mut made_up = zeroed();
        made_up.type_ = EXISTING;
        assert_eq!(machine.desc(&[made_up]), Err(BAD_CONFIGURATION));
        // Workqueues of one driver are unknown to another.
        assert_eq!(Machine::with_devices(spec, 1).desc(&[queues]), Err(BAD_CONFIGURATION));
        // A split accepts only SMs.
        assert_eq!(machine.split(&good, 1, 0, 8).err(), Some(BAD_TYPE));
    }
}

#[test]
fn a_stream_answers_for_the_sms_of_its_context() {
    for spec in NEWER {
        let machine = machine(spec);
        let of_stream = |stream: CUstream, kind| {
            let (status, resource) = ask!(machine, zeroed(), cuStreamGetDevResource(stream; kind));
            (status, sm_count(&resource))
        };
        let token = |number: usize| -> CUstream { std::ptr::without_provenance_mut(number) };
        assert_eq!(of_stream(token(0), SM), (INVALID_CONTEXT, 0), "nothing is current");
        assert_eq!(of_stream(token(2), SM), (INVALID_CONTEXT, 0));
        let green = machine.green(&machine.units().groups[..3]);
        let stream = machine.green_stream(green);
        assert_eq!(of_stream(stream, SM), (OK, 24));
        let (_, resource) = ask!(machine, zeroed(), cuStreamGetDevResource(stream; SM));
        assert_eq!(bytes(&resource), bytes(&of(&machine, green, SM)));
        for kind in [CONFIG, EXISTING, CUdevResourceType(0)] {
            assert_eq!(of_stream(stream, kind).0, BAD_TYPE);
        }
        assert_eq!(call!(machine, cuStreamGetDevResource(stream, null_mut(), SM)), INVALID_VALUE);
        ok(machine.push(machine.retain()));
        assert_eq!(of_stream(machine.stream(0), SM), (OK, 132));
        for number in [0, 1, 2] {
            assert_eq!(of_stream(token(number), SM), (OK, 132), "token {number}");
        }
        ok(machine.push(machine.context(green)));
        for number in [0, 1] {
            assert_eq!(of_stream(token(number), SM), (OK, 24), "token {number}");
        }
        assert_eq!(of_stream(token(64), SM).0, INVALID_HANDLE);
        machine.pop();
        ok(machine.destroy(green));
        assert_eq!(of_stream(stream, SM).0, CUresult::CUDA_ERROR_STREAM_DETACHED);
    }
}

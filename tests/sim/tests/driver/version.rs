//! What differs from version to version, and specs.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use green_ctx_sim::{Fault, Profile, Sim, Spec, SpecError, VERSIONS};
use green_ctx_sys::*;

use crate::machine::*;

fn lookup(
    sim: &Sim,
    name: &CStr,
    version: c_int,
) -> (CUresult, bool, CUdriverProcAddressQueryResult) {
    let mut address: *mut c_void = null_mut();
    let mut found = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    let look: unsafe extern "C" fn(
        *const c_char,
        *mut *mut c_void,
        c_int,
        u64,
        *mut CUdriverProcAddressQueryResult,
    ) -> CUresult = sim.get_proc_address();
    // SAFETY: the pointers are to a string and to variables of the types that are filled.
    let status = unsafe { look(name.as_ptr(), &mut address, version, 0, &mut found) };
    (status, !address.is_null(), found)
}

#[test]
fn a_version_above_the_driver_s_fails_for_every_symbol() {
    let sim = Sim::new(Spec::default()).expect("a free slot");
    for name in [c"cuInit", c"cuGreenCtxCreate", c"cuNoSuchFunction"] {
        for version in [13_001, 13_010, 13_020] {
            let (status, found, _) = lookup(&sim, name, version);
            assert_eq!((status, found), (INVALID_VALUE, false), "{name:?} at {version}");
        }
    }
    let missing = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for name in [c"cuStreamGetDevResource", c"cuDevSmResourceSplit"] {
        assert_eq!(lookup(&sim, name, 13_000), (OK, false, missing), "{name:?}");
        let newer = Sim::new("h200@13.1").expect("a free slot");
        assert!(lookup(&newer, name, 13_010).1, "{name:?}");
    }
    // A negative version is no version above.
    assert!(lookup(&sim, c"cuGreenCtxCreate", -1).1);
    let early = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    assert_eq!(lookup(&sim, c"cuGreenCtxGetId", 12_080), (OK, false, early));
    assert_eq!(
        lookup(&sim, c"cuGreenCtxGetId", 12_090),
        (OK, true, CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS)
    );
}

#[test]
fn an_older_driver_lacks_what_came_later() {
    for (spec, stream_create, id) in [
        ("h200@12.4", false, false),
        ("h200@12.5", true, false),
        ("h200@12.8", true, false),
        ("h200@13.0", true, true),
        ("h200@13.1", true, true),
        ("h200@13.4", true, true),
    ] {
        let machine = Machine::dormant(spec, 1);
        assert_eq!(machine.api.version().to_string(), spec[5..], "{spec}");
        assert_eq!(machine.api.cuGreenCtxStreamCreate().is_ok(), stream_create, "{spec}");
        assert_eq!(machine.api.cuGreenCtxGetId().is_ok(), id, "{spec}");
    }
}

#[test]
fn a_descriptor_takes_one_resource_on_12_4() {
    let machine = Machine::with_devices("h200@12.4", 1);
    let units = machine.units();
    assert!(machine.desc(&units.groups[..1]).is_ok());
    assert_eq!(machine.desc(&units.groups[..2]), Err(BAD_CONFIGURATION));
    let newer = Machine::with_devices("h200@12.5", 1);
    assert!(newer.desc(&newer.units().groups[..2]).is_ok());
}

#[test]
fn specs_name_what_is_valid() {
    let unknown = "h20".parse::<Spec>().expect_err("there is none");
    assert!(matches!(unknown, SpecError::Profile { .. }));
    assert!(unknown.to_string().starts_with("unknown profile \"h20\"; the profiles are a100, "));
    let unknown = "h200@13.9".parse::<Spec>().expect_err("there is none");
    assert!(matches!(unknown, SpecError::Version { .. }));
    assert_eq!(
        unknown.to_string(),
        "unknown driver version \"13.9\"; the versions are 12.4, 12.5, 12.8, 13.0, 13.1, 13.4, 13.5"
    );
    for text in ["", "@", "h200@", "@13.0", "H200"] {
        assert!(text.parse::<Spec>().is_err(), "{text:?}");
    }
    assert_eq!(VERSIONS.len(), 7);
    assert!(Profile::names().any(|name| name == "h200"));
    assert_eq!("h200".parse::<Spec>(), Ok(Spec::default()));
}

#[test]
fn statuses_have_names_and_texts() {
    let machine = Machine::dormant("h200", 1);
    let text = |status: u32, name: bool| {
        let mut text = std::ptr::null();
        let function =
            if name { machine.api.cuGetErrorName() } else { machine.api.cuGetErrorString() };
        // SAFETY: `text` takes the answer.
        let result = unsafe { function(CUresult(status), &mut text) };
        let text = (!text.is_null()).then(|| {
            // SAFETY: the driver's texts end with a null byte and are never freed.
            unsafe { CStr::from_ptr(text) }.to_str().expect("ASCII")
        });
        (result, text)
    };
    assert_eq!(text(915, true), (OK, Some("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")));
    assert_eq!(text(709, false), (OK, Some("context is destroyed")));
    assert_eq!(text(12345, true), (INVALID_VALUE, None));
    assert_eq!(text(12345, false), (INVALID_VALUE, None));
}

#[test]
fn the_device_is_described() {
    let machine = Machine::with_devices("h200", 2);
    let mut name = [1 as c_char; 12];
    ok(call!(machine, cuDeviceGetName(name.as_mut_ptr(), 12, 1)));
    let name: Vec<u8> = name.iter().map(|&c| c as u8).collect();
    assert_eq!(name, *b"NVIDIA H200\0");
    let uuid = |device| ask!(machine, CUuuid { bytes: [0; 16] }, cuDeviceGetUuid(; device)).1.bytes;
    assert_ne!(uuid(0), uuid(1));
    let other = Machine::new();
    assert_eq!(uuid(0), ask!(other, CUuuid { bytes: [0; 16] }, cuDeviceGetUuid(; 0)).1.bytes);
    for (attribute, value) in [
        (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
    ] {
        assert_eq!(ask!(machine, -1, cuDeviceGetAttribute(; attribute, 0)), (OK, value));
    }
    assert_eq!(
        ask!(machine, -1, cuDeviceGetAttribute(; CUdevice_attribute(9999), 0)).0,
        INVALID_VALUE
    );
    let (status, total) = ask!(machine, 0, cuDeviceTotalMem(; 0));
    assert_eq!((status, total as u64), (OK, machine.sim.spec().profile().memory_bytes));
    // SAFETY: the variable takes the answer.
    let status = unsafe { machine.api.cuDeviceGet()(&mut 0, 2) };
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(ask!(machine, 0, cuDeviceTotalMem(; 2)).0, CUresult::CUDA_ERROR_INVALID_DEVICE);
}

/// The function of this name at this version, whatever signature it has there.
fn function(sim: &Sim, name: &CStr, version: c_int) -> *mut c_void {
    let mut address = null_mut();
    let look = sim.get_proc_address();
    // SAFETY: the pointers are to a string and to variables of the types that are filled.
    ok(unsafe { look(name.as_ptr(), &mut address, version, 0, null_mut()) });
    assert!(!address.is_null(), "{name:?} at {version}");
    address
}

#[test]
fn a_name_has_the_signature_of_the_version_asked_for() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.green_of(8);
    let (context, stream) = (machine.context(green), machine.green_stream(green));
    let sim = &machine.sim;

    let two = function(sim, c"cuStreamGetCtx", 12_040);
    // SAFETY: the signature of 9.2 (cuda.h).
    let two: unsafe extern "C" fn(CUstream, *mut CUcontext) -> CUresult =
        unsafe { std::mem::transmute(two) };
    let mut found = null_mut();
    // SAFETY: `found` takes the answer.
    ok(unsafe { two(stream, &mut found) });
    assert_eq!(found, context);

    let device = function(sim, c"cuCtxGetDevice", 13_000);
    // SAFETY: the signature of 13.0 (cuda.h).
    let device: unsafe extern "C" fn(*mut CUdevice, CUcontext) -> CUresult =
        unsafe { std::mem::transmute(device) };
    let wait = function(sim, c"cuCtxSynchronize", 13_000);
    // SAFETY: the signature of 13.0 (cuda.h).
    let wait: unsafe extern "C" fn(CUcontext) -> CUresult = unsafe { std::mem::transmute(wait) };
    for (context, expected) in [
        (context, OK),
        (primary, OK),
        (null_mut(), OK),
        (green.wrapping_byte_add(1).cast(), INVALID_CONTEXT),
    ] {
        let mut number = -1;
        // SAFETY: the variable takes the answer.
        assert_eq!(unsafe { device(&mut number, context) }, expected);
        assert_eq!(number, if expected == OK { 0 } else { -1 });
        // SAFETY: a handle is never followed.
        assert_eq!(unsafe { wait(context) }, expected);
    }

    let old = function(sim, c"cuGetProcAddress", 11_030);
    // SAFETY: the signature of 11.3 (cuda.h).
    let old: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult =
        unsafe { std::mem::transmute(old) };
    let mut address = null_mut();
    // SAFETY: the pointers are to a string and to a variable that takes the answer.
    ok(unsafe { old(c"cuGetProcAddress".as_ptr(), &mut address, 12_000, 0) });
    let look: *const c_void = sim.get_proc_address() as *const c_void;
    assert_eq!(address.cast_const(), look);
}

#[test]
fn what_is_not_simulated_is_not_found() {
    let sim = Sim::new("h200@13.4").expect("a free slot");
    let missing = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for name in [c"cuArrayCreate", c"cuTexObjectCreate", c"cuMulticastCreate", c"cuLinkCreate"] {
        for version in [3_020, 12_040, 13_040] {
            assert_eq!(lookup(&sim, name, version), (OK, false, missing), "{name:?} at {version}");
        }
    }
    // The form of 32 bits, of a function that has a newer one.
    let early = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    assert_eq!(lookup(&sim, c"cuMemAlloc", 2_000), (OK, false, early));
    assert!(sim.unsimulated_calls().is_empty());
    // Nothing of a program reaches it, so failing it is a mistake of the test.
    assert!(sim.fail(Fault::on("cuArrayCreate")).is_err());
}

#[test]
fn a_program_chooses_what_the_null_stream_means() {
    let (machine, _) = Machine::with_primary();
    let look = machine.sim.get_proc_address();
    type GetId = unsafe extern "C" fn(CUstream, *mut u64) -> CUresult;
    let ids = |flags: u64| {
        let (mut address, mut ids) = (null_mut(), [0; 3]);
        let name = c"cuStreamGetId".as_ptr();
        // SAFETY: the pointers are to a string and to a variable that takes the answer.
        ok(unsafe { look(name, &mut address, 13_000, flags, null_mut()) });
        // SAFETY: the signature of 12.0 (cuda.h).
        let get: GetId = unsafe { std::mem::transmute(address) };
        for (token, id) in ids.iter_mut().enumerate() {
            // SAFETY: the variable takes the answer.
            ok(unsafe { get(std::ptr::without_provenance_mut(token), id) });
        }
        ids
    };
    // The null stream, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
    let [null, legacy, per_thread] = ids(0);
    assert!(null == legacy && null != per_thread);
    assert_eq!(ids(1), [legacy, legacy, per_thread]);
    assert_eq!(ids(2), [per_thread, legacy, per_thread]);
    // The choice ends with the call.
    assert_eq!(ids(0), [legacy, legacy, per_thread]);

    // A function without such a form, and one whose form is newer than the version asked for.
    for (name, version) in [(c"cuMemAlloc", 13_000), (c"cuMemcpyHtoD", 6_050)] {
        let found = [1, 2].map(|flags| {
            let mut address = null_mut();
            // SAFETY: the pointers are to a string and to a variable that takes the answer.
            ok(unsafe { look(name.as_ptr(), &mut address, version, flags, null_mut()) });
            address
        });
        assert!(!found[0].is_null() && found[0] == found[1], "{name:?}");
    }
}

#[test]
fn no_export_table_is_known() {
    // Before `cuInit`, too.
    let machine = Machine::dormant("h200", 1);
    let id = CUuuid { bytes: [0x6b; 16] };
    let ask = |out: *mut *const c_void, id: *const CUuuid| old!(machine, c"cuGetExportTable", 3_000 (out => *mut *const c_void, id => *const CUuuid));
    let mut table: *const c_void = (&raw const machine).cast();
    assert_eq!(ask(&mut table, &id), INVALID_VALUE);
    assert!(table.is_null());
    assert_eq!(ask(null_mut(), &id), INVALID_VALUE);
    assert_eq!(ask(&mut table, null_mut()), INVALID_VALUE);
}

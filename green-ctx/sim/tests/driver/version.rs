//! Differences between driver versions.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use green_ctx_sim::{Fault, Sim};
use green_ctx_sys::*;

use crate::machine::*;

type Found = CUdriverProcAddressQueryResult;

/// Looks a function up at a version.
fn lookup(sim: &Sim, name: &CStr, version: c_int, flags: u64) -> (CUresult, *mut c_void, Found) {
    let (mut address, mut found) = (null_mut(), Found::CU_GET_PROC_ADDRESS_SUCCESS);
    let look = sim.get_proc_address();
    // SAFETY: the pointers point to a C string and to variables of the types that the function fills.
    let status = unsafe { look(name.as_ptr(), &mut address, version, flags, &mut found) };
    (status, address, found)
}

#[test]
fn a_driver_lacks_what_came_later() {
    for (spec, stream_create, id, structured) in [
        ("h200@12.4", false, false, false),
        ("h200@12.5", true, false, false),
        ("h200@12.8", true, false, false),
        ("h200@13.0", true, true, false),
        ("h200@13.1", true, true, true),
        ("h200@13.4", true, true, true),
        ("h200@13.5", true, true, true),
    ] {
        let api = Machine::with_devices(spec, 1).api;
        assert_eq!(api.version().to_string(), spec[5..], "{spec}");
        assert_eq!(api.cuGreenCtxStreamCreate().is_ok(), stream_create, "{spec}");
        assert_eq!(api.cuGreenCtxGetId().is_ok(), id, "{spec}");
        assert_eq!(api.cuStreamGetDevResource().is_ok(), structured, "{spec}");
        assert_eq!(api.cuDevSmResourceSplit().is_ok(), structured, "{spec}");
    }
    let sim = Sim::new("h200@13.1").expect("a free slot");
    let (missing, early) = (
        Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
    );
    for (name, version, status, found) in [
        // A version above the driver's fails for every name.
        (c"cuInit", 13_020, INVALID_VALUE, Found::CU_GET_PROC_ADDRESS_SUCCESS),
        (c"cuNoSuchFunction", 13_020, INVALID_VALUE, Found::CU_GET_PROC_ADDRESS_SUCCESS),
        (c"cuNoSuchFunction", 13_010, OK, missing),
        (c"cuGreenCtxGetId", 12_080, OK, early),
        // The 32-bit version of a function that has a newer one.
        (c"cuMemAlloc", 2_000, OK, early),
        // Functions that are not simulated.
        (c"cuArrayCreate", 13_010, OK, missing),
        (c"cuTexObjectCreate", 13_010, OK, missing),
    ] {
        let answer = lookup(&sim, name, version, 0);
        assert_eq!((answer.0, answer.1.is_null()), (status, true), "{name:?} at {version}");
        assert!(status != OK || answer.2 == found, "{name:?} at {version}");
    }
    assert!(!lookup(&sim, c"cuGreenCtxCreate", -1, 0).1.is_null());
    // No call reaches a function that is not simulated, so a fault for it is refused.
    assert!(sim.fail(Fault::on("cuArrayCreate")).is_err());
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
fn streams_are_detached_from_13_1_on() {
    let detached = CUresult::CUDA_ERROR_STREAM_DETACHED;
    for (spec, used, destroyed) in
        [("h200@13.0", DESTROYED, DESTROYED), ("h200@13.1", detached, OK)]
    {
        let machine = Machine::with_devices(spec, 1);
        let green = machine.green_of(16);
        let stream = machine.green_stream(green);
        ok(machine.destroy(green));
        assert_eq!(machine.sync(stream), used, "{spec}");
        assert_eq!(call!(machine, cuStreamDestroy(stream)), destroyed, "{spec}");
        let again = if destroyed == OK { INVALID_HANDLE } else { destroyed };
        assert_eq!(call!(machine, cuStreamDestroy(stream)), again, "{spec}");
    }
}

#[test]
fn a_program_chooses_what_the_null_stream_means() {
    type GetId = unsafe extern "C" fn(CUstream, *mut u64) -> CUresult;
    let machine = Machine::with_primary();
    // Returns the ids of the null stream, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
    let ids = |flags: u64| {
        let address = lookup(&machine.sim, c"cuStreamGetId", 13_000, flags).1;
        // SAFETY: `GetId` is the signature of the function in CUDA 12.0 (cuda.h).
        let get: GetId = unsafe { std::mem::transmute(address) };
        [0, 1, 2].map(|token| {
            let mut id = 0;
            // SAFETY: `id` is a local variable of the type that the function fills, and handles are not
            // dereferenced.
            ok(unsafe { get(without_provenance_mut(token), &mut id) });
            id
        })
    };
    let [null, legacy, per_thread] = ids(0);
    assert!(null == legacy && null != per_thread);
    assert_eq!(ids(1), [legacy, legacy, per_thread]);
    assert_eq!(ids(2), [per_thread, legacy, per_thread]);
    // The choice applies only to the call.
    assert_eq!(ids(0), [legacy, legacy, per_thread]);
}

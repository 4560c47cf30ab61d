//! Several drivers in one process.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

#[test]
fn drivers_share_nothing() {
    let (first, primary) = Machine::with_primary();
    let second = Machine::with_devices("h200@12.4", 3);
    let mut count = 0;
    // SAFETY: `count` takes the answer.
    ok(unsafe { second.api.cuDeviceGetCount()(&mut count) });
    assert_eq!(count, 3);
    assert_eq!(second.push(primary), INVALID_CONTEXT);
    assert_eq!(ask!(second, null_mut(), cuCtxGetCurrent(;)), (OK, null_mut()));
    let stream = first.green_stream(first.green_of(8));
    assert_eq!(second.sync(stream), INVALID_HANDLE);
    assert_eq!(second.sim.live(), Default::default());
}

#[test]
fn functions_outlive_their_driver_without_harm() {
    let Machine { sim, api } = Machine::new();
    let clone = sim.clone();
    drop(sim);
    // SAFETY: the variable takes the answer.
    let count = || unsafe { api.cuDeviceGetCount()(&mut 0) };
    assert_eq!(count(), OK);
    drop(clone);
    assert_eq!(count(), CUresult::CUDA_ERROR_DEINITIALIZED);
}

/// Threads that make, use and drop drivers and contexts at the same time.
#[test]
fn threads_do_not_disturb_each_other() {
    let shared = Machine::new();
    let desc = shared.desc(&shared.units().groups[..2]).expect("two units").addr();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let own = Machine::new();
                    let stream = own.green_stream(own.green_of(8));
                    ok(own.launch(own.kernel("nothing"), 8, stream, &[]));
                    assert_eq!(own.sim.launches().len(), 1);

                    let (status, green) = shared.create(std::ptr::without_provenance_mut(desc));
                    ok(status);
                    let stream = shared.green_stream(green);
                    ok(shared.launch(shared.kernel("nothing"), 16, stream, &[]));
                    ok(shared.sync(stream));
                    ok(call!(shared, cuStreamDestroy(stream)));
                    ok(shared.destroy(green));
                }
            });
        }
    });
    let live = shared.sim.live();
    assert_eq!((live.green_contexts, live.streams), (0, 0));
    assert_eq!(shared.sim.launches().len(), 200);
}

#[test]
fn a_machine_without_devices_does_not_start() {
    let machine = Machine::dormant("h200", 0);
    assert_eq!(machine.init(), CUresult::CUDA_ERROR_NO_DEVICE);
    // SAFETY: the variable takes the answer.
    let status = unsafe { machine.api.cuDeviceGetCount()(&mut 0) };
    assert_eq!(status, CUresult::CUDA_ERROR_NOT_INITIALIZED);
}

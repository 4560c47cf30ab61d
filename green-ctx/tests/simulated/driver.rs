//! Loading drivers, and the end of a driver.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use green_ctx::sim::{Fault, Sim};
use green_ctx::{CUresult, Device, Driver, StreamOptions, call, error::ErrorKind};

use crate::LONG;
use crate::common::{Outcome, kernels, partition, raw, simulated};

#[test]
fn what_is_no_driver_is_not_loaded() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    // SAFETY: a text file contains no code.
    let error = unsafe { Driver::load_from(text) }.expect_err("a text file");
    assert_eq!(error.kind(), ErrorKind::Driver, "a damaged installation");
    let text = format!(
        "no usable CUDA driver: the CUDA driver library {text} exists but cannot be loaded: "
    );
    assert!(error.to_string().starts_with(&text), "{error}");
    assert!(std::error::Error::source(&error).is_none(), "nothing is printed twice");
}

/// Leaves work running on a partition's SMs. No remaining object holds a reference to the driver.
fn leave_busy(sim: &Sim, device: &Device) -> Outcome {
    let nanoseconds = u64::try_from(LONG.as_nanos())?;
    sim.register_kernel("busy", move |call| call.set_duration_ns(nanoseconds));
    let stream = partition(device, 8)?.create_stream(StreamOptions::default())?;
    let text = std::ffi::CString::new(kernels::text("busy"))?;
    let (api, none) = (device.driver().api(), ptr::null_mut());
    let (mut library, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the text is NUL-terminated, `library` outlives the call, and no options are given.
    unsafe {
        call!(
            api,
            cuLibraryLoadData(
                &raw mut library,
                text.as_ptr().cast(),
                none,
                ptr::null_mut(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
                0
            )
        )
    }?;
    // SAFETY: the library was loaded above, and the name is NUL-terminated.
    unsafe { call!(api, cuLibraryGetKernel(&raw mut kernel, library, c"busy".as_ptr())) }?;
    Ok(raw::launch(device, stream.as_raw(), kernel.cast(), [1, 32])?)
}

/// Fences are destroyed with their driver. Once their work is done, releasing the idle contexts destroys them
/// too.
#[test]
fn fences_end_with_their_driver() -> Outcome {
    let (sim, device) = simulated("h200")?;
    leave_busy(&sim, &device)?;
    assert_eq!((sim.live().events, sim.live().primary_retains), (1, 1));
    device.release_idle();
    assert_eq!(sim.live().events, 1, "the work still runs");
    drop(device);
    let live = sim.live();
    assert_eq!((live.events, live.primary_retains, live.green_contexts), (0, 0, 0));

    let (sim, device) = simulated("h200")?;
    leave_busy(&sim, &device)?;
    device.primary_context()?.synchronize()?;
    device.release_idle();
    assert_eq!((sim.live().events, sim.live().primary_retains), (0, 0));
    Ok(())
}

#[test]
fn a_hook_may_have_its_driver() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let reported = Arc::new(AtomicUsize::new(0));
    let hook = {
        let (its_own, reported) = (device.clone(), Arc::clone(&reported));
        let free = move || its_own.resources().sm().map_or(0, |sms| sms.free_sm_count() as usize);
        device.driver().on_cleanup_failure(move |_| reported.store(free(), Ordering::Relaxed))
    };
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    sim.fail(Fault::on("cuStreamDestroy"))?;
    drop(stream);
    assert_eq!(reported.load(Ordering::Relaxed), 124);
    drop((device, hook));
    assert_eq!(Arc::strong_count(&reported), 1, "the hook is gone");
    assert_eq!(sim.live().green_contexts, 0, "so is the driver");
    Ok(())
}

#[test]
fn a_driver_that_does_not_start_is_an_error() -> Outcome {
    for function in ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDriverGetVersion"] {
        let sim = Sim::new("h200")?;
        sim.fail(Fault::on(function).with(CUresult::CUDA_ERROR_NO_DEVICE))?;
        assert!(Driver::simulated(&sim).is_err(), "{function}");
        assert!(Driver::simulated(&sim).is_ok(), "{function}");
    }
    Ok(())
}

//! What only a simulated driver can show: other versions, injected failures, what is left behind.

mod common;

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Outcome, group, partition, simulated};
use green_ctx::sim_0_1::{Fault, Live, Sim};
use green_ctx::{
    CUresult, Device, DeviceBuffer, Driver, Error, StreamOptions, Version, context::CloseReason,
    error::ErrorKind, event::EventOptions, verify,
};

#[test]
fn every_driver_from_12_5_on_splits_unevenly() -> Outcome {
    for spec in ["h200@12.5", "h200@12.8", "h200@13.0", "h200@13.1", "h200@13.4"] {
        let (sim, device) = simulated(spec)?;
        let report = verify::split(&device, [8, 24, 100], Duration::from_millis(1))?;
        let counts: Vec<u32> =
            report.partitions.iter().map(|partition| partition.sm_count).collect();
        assert_eq!(counts, [8, 24, 100], "{spec}");
        assert!(report.ok() && report.concurrent(), "{spec}");
        assert_eq!(report.driver.profile.as_deref(), Some("h200"));
        // Gone with the last handle of the driver, the idle contexts too.
        drop(device);
        assert_eq!(sim.live(), Live::default(), "{spec}");
    }
    Ok(())
}

#[test]
fn a_12_4_driver_makes_streams_in_its_own_way() -> Outcome {
    let (sim, device) = simulated("h200@12.4")?;
    // There the stream is made while the context is current, which must not show.
    let context = partition(&device, 8)?;
    sim.clear_calls();
    let stream = context.create_stream(StreamOptions::default().priority(-2))?;
    assert_eq!(sim.calls().get("cuGreenCtxStreamCreate"), None);
    assert_eq!(stream.priority()?, -2);
    assert_eq!(green_ctx::context::Context::current(device.driver())?, None);
    let report = verify::contexts(std::slice::from_ref(&context), Duration::from_millis(1))?;
    assert_eq!(report.partitions[0].observed_sms().len(), 8);
    Ok(())
}

#[test]
fn a_missing_function_is_reported_when_it_is_called() -> Outcome {
    let (_sim, device) = simulated("h200@12.4")?;
    let api = device.driver().api();
    let missing = api.cuDevSmResourceSplit().expect_err("13.1 has it first");
    assert_eq!(missing.call, "cuDevSmResourceSplit");
    assert_eq!((missing.needs, missing.found), (Version::new(13, 1), Version::new(12, 4)));
    let event = device.create_event(EventOptions::default())?;
    let error = device.primary_context()?.record(&event).expect_err("12.5 has it first");
    assert!(error.is_unsupported(), "{error}");
    Ok(())
}

#[test]
fn a_primary_context_is_released_by_its_last_handle() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let (first, second) = (device.primary_context()?, device.primary_context()?);
    assert_eq!(sim.live().primary_retains, 1);
    let error = first.close().expect_err("there is another handle");
    // Of its streams nobody keeps count.
    assert!(matches!(error.reason, CloseReason::Shared { streams: None }), "{}", error.reason);
    drop(second);
    assert!(error.context.close()?.is_none());
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn what_is_no_driver_is_not_loaded() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    // SAFETY: a text file has no code.
    let error = unsafe { Driver::load_from(text) }.expect_err("a text file");
    assert_eq!(error.kind(), ErrorKind::NoDriver);
    let text = format!(
        "no usable CUDA driver: the CUDA driver library {text} exists but cannot be loaded: "
    );
    assert!(error.to_string().starts_with(&text), "{error}");
    assert!(std::error::Error::source(&error).is_none(), "nothing is printed twice");
}

#[test]
fn one_library_is_one_driver_and_two_are_two() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let again = Driver::simulated(&sim)?;
    assert_eq!(&again, device.driver());
    let held = group(&again.device(0)?, 100)?;
    assert!(matches!(group(&device, 100), Err(Error::NotEnoughSms(_))));

    let (_other, stranger) = simulated("h200")?;
    let event = stranger.create_event(EventOptions::default())?;
    let context = device.primary_context()?;
    let stream = context.create_stream(StreamOptions::default())?;
    for result in
        [stream.record(&event), stream.wait(&event), context.record(&event), context.wait(&event)]
    {
        let error = result.expect_err("another driver's event");
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    }
    assert_ne!(stranger.driver(), device.driver());
    assert_eq!(stranger.resources().sm()?.free(), 132);
    let timed = |device: &Device| device.create_event(EventOptions::default().timing(true));
    let error =
        timed(&device)?.elapsed_since(&timed(&stranger)?).expect_err("another driver's event");
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    let error = DeviceBuffer::<u32>::zeroed(&stranger, 1)?.read(&stream).expect_err("its buffer");
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    // What belongs to one is refused by the other, and given back.
    let error = stranger.create_context(held).expect_err("another driver's group");
    assert!(matches!(error.reason, Error::DeviceMismatch { .. }), "{:?}", error.reason);
    assert_eq!((error.provision.group.sm_count(), device.resources().sm()?.free()), (100, 32));
    drop(device.create_context(error.provision.group)?);
    assert_eq!(device.resources().sm()?.free(), 132);
    Ok(())
}

#[test]
fn devices_have_ledgers_of_their_own() -> Outcome {
    let sim = Sim::builder("h200").devices(2).build()?;
    let driver = Driver::simulated(&sim)?;
    let devices: Vec<Device> = driver.devices().collect();
    assert_eq!(devices.len(), 2);
    assert_ne!(devices[0], devices[1]);
    let _held = group(&devices[0], 132)?;
    assert_eq!(devices[1].resources().sm()?.free(), 132);
    let contexts = [partition(&devices[1], 8)?, devices[0].primary_context()?];
    let error = verify::contexts(&contexts, Duration::ZERO).expect_err("two devices");
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    Ok(())
}

#[test]
fn work_is_traced_on_the_partition_it_was_given() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let context = partition(&device, 16)?;
    let stream = context.create_stream(StreamOptions::default())?;
    verify::contexts(std::slice::from_ref(&context), Duration::from_millis(1))?;
    let launches = sim.launches();
    assert!(!launches.is_empty());
    for launch in launches {
        assert!(launch.is_green);
        assert_eq!(launch.context, context.id()?);
        assert_eq!(launch.sms.len(), 16);
    }
    drop(stream);
    Ok(())
}

/// A guard that was leaked keeps its context: nothing destroyed is ever current.
#[test]
fn a_leaked_guard_leaks_its_context_and_nothing_worse() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let context = partition(&device, 8)?;
    std::mem::forget(context.make_current()?);
    drop(context);
    assert_eq!(sim.live().green_contexts, 1);
    assert!(green_ctx::context::Context::current(device.driver())?.is_some());
    Ok(())
}

/// Leaves work running on a partition's SMs, and the partition. Nothing of this crate is left that
/// would keep the driver.
fn leave_busy(sim: &Sim, device: &Device) -> Outcome {
    sim.register_kernel("busy", |call| call.set_duration_ns(1_000_000_000));
    let stream = partition(device, 8)?.create_stream(StreamOptions::default())?;
    let api = device.driver().api();
    let ptx = c".version 7.0 .target sm_52 .visible .entry busy() { ret; }".as_ptr().cast();
    let (mut library, mut kernel) = (null_mut(), null_mut());
    let ok = |status| assert_eq!(status, CUresult::CUDA_SUCCESS);
    let (load, none) = (api.cuLibraryLoadData()?, null_mut());
    // SAFETY: the text ends with a null byte, the handle is a local variable, and there are no options.
    ok(unsafe { load(&raw mut library, ptx, none, null_mut(), 0, null_mut(), null_mut(), 0) });
    let get = api.cuLibraryGetKernel()?;
    // SAFETY: the library was loaded just now, and the name ends with a null byte.
    ok(unsafe { get(&raw mut kernel, library, c"busy".as_ptr()) });
    let (launch, none) = (api.cuLaunchKernel()?, null_mut());
    // SAFETY: the kernel takes no parameters.
    ok(unsafe { launch(kernel.cast(), 1, 1, 1, 32, 1, 1, 0, stream.as_raw(), none, null_mut()) });
    Ok(())
}

/// The fence of work that nobody takes up keeps neither the driver nor, once it is asked, itself.
#[test]
fn fences_end_with_their_driver() -> Outcome {
    let (sim, device) = simulated("h200")?;
    leave_busy(&sim, &device)?;
    assert_eq!((sim.live().events, sim.live().primary_retains), (1, 1));
    device.release_idle();
    assert_eq!(sim.live().events, 1, "the work goes on");
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
fn idle_contexts_are_bounded() -> Outcome {
    let (sim, device) = simulated("h200")?;
    device.set_idle_limit(1);
    let contexts = [partition(&device, 8)?, partition(&device, 16)?];
    let kept = contexts[1].as_raw_green();
    drop(contexts);
    assert_eq!((device.context_counts().idle, sim.live().green_contexts), (1, 1));
    assert_eq!(partition(&device, 16)?.as_raw_green(), kept);
    device.set_idle_limit(0);
    assert_eq!(sim.live(), Live::default());
    drop(partition(&device, 16)?);
    assert_eq!(sim.live(), Live::default());
    Ok(())
}

#[test]
fn a_context_that_is_not_created_gives_its_group_back() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let before = sim.live();
    sim.fail(Fault::on("cuGreenCtxCreate"))?;
    let error = device.create_context(group(&device, 24)?).expect_err("the driver fails");
    assert!(matches!(error.reason, Error::Driver { .. }), "{}", error.reason);
    assert_eq!((device.resources().sm()?.free(), sim.live()), (108, before));
    assert_eq!(device.create_context(*error.provision)?.sm_count()?, 24);
    assert_eq!(device.resources().sm()?.free(), 132);
    Ok(())
}

#[test]
fn a_hook_may_have_its_driver() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let reported = Arc::new(AtomicUsize::new(0));
    let hook = {
        let (its_own, reported) = (device.clone(), Arc::clone(&reported));
        let free = move || its_own.resources().sm().map_or(0, |sms| sms.free() as usize);
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

/// A context whose last work cannot be found out about may be of a device that failed.
#[test]
fn a_failing_context_is_not_used_again() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let _hook = device.driver().on_cleanup_failure(|_| {});
    for function in ["cuGreenCtxRecordEvent", "cuEventCreate", "cuEventQuery"] {
        let context = partition(&device, 8)?;
        sim.fail(Fault::on(function).with(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS))?;
        drop(context);
        assert_eq!(device.context_counts().idle, 0, "{function}");
        assert_eq!(sim.live(), Live::default(), "{function}");
        assert_eq!(device.resources().sm()?.free(), 132, "{function}");
    }
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

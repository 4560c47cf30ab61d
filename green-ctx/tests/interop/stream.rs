//! Streams that wait for each other, and functions in them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use green_ctx::sim_0_1::{Fault, Sim};
use green_ctx::sys_0_1::CUstreamCaptureMode;
use green_ctx::{CUresult, Driver, Error, LaunchConfig, Library, Stream, StreamOptions};

use crate::common::{Outcome, partition, simulated};

const PTX: &str = "
.version 5.0
.target sm_52
.address_size 64
.visible .entry nothing() { ret; }
";

#[test]
fn a_stream_waits_for_another_of_another_context() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let kernel = Library::from_ptx(&device, PTX)?.kernel("nothing")?;
    let (first, second) = (partition(&device, 8)?, partition(&device, 16)?);
    let producer = first.create_stream(StreamOptions::default())?;
    let consumer = second.create_stream(StreamOptions::default())?;
    let launch = |stream: &Stream| {
        // SAFETY: the kernel has no parameters and does nothing.
        unsafe { stream.launch(&kernel, LaunchConfig::new(1, 32), ()) }
    };
    launch(&producer)?;
    launch(&consumer)?;
    consumer.wait_for(&producer)?;
    launch(&consumer)?;
    let launches = sim.launches();
    assert!(!launches[0].happens_before(&launches[1]));
    assert!(launches[0].happens_before(&launches[2]));
    consumer.wait_for(&consumer.clone())?;
    drop(consumer);
    assert_eq!(sim.live().events, 0);
    Ok(())
}

#[test]
fn streams_of_two_devices_wait_and_those_of_two_drivers_do_not() -> Outcome {
    let sim = Sim::builder("h200").devices(2).build()?;
    let driver = Driver::simulated(&sim)?;
    let stream = |ordinal| -> green_ctx::Result<Stream> {
        driver.device(ordinal)?.primary_context()?.create_stream(StreamOptions::default())
    };
    stream(0)?.wait_for(&stream(1)?)?;

    let (_other, stranger) = simulated("h200")?;
    let theirs = stranger.primary_context()?.create_stream(StreamOptions::default())?;
    let error = stream(0)?.wait_for(&theirs).expect_err("another driver's");
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    Ok(())
}

/// Begins to capture a stream, as another library would.
fn capture(stream: &Stream) -> Outcome {
    let begin = stream.context().device().driver().api().cuStreamBeginCapture()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    let status = unsafe { begin(stream.as_raw(), mode) };
    assert_eq!(status, CUresult::CUDA_SUCCESS);
    Ok(())
}

#[test]
fn a_capture_is_seen_and_takes_no_function() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    assert!(!stream.is_capturing()?);
    capture(&stream)?;
    assert!(stream.is_capturing()?);
    let error = stream.is_idle().expect_err("it is captured");
    assert!(error.is_misuse() && error.to_string().contains("end the capture first"), "{error}");
    let error = stream.launch_host(|| {}).expect_err("it is captured");
    assert!(matches!(error, Error::Capturing), "{error}");
    Ok(())
}

#[test]
fn a_function_runs_once_and_in_order() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    let (sender, receiver) = mpsc::channel();
    for number in 0..10 {
        let sender = sender.clone();
        stream.launch_host(move || sender.send(number).expect("somebody listens"))?;
    }
    drop(sender);
    stream.synchronize()?;
    assert_eq!(receiver.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_function_whose_call_fails_is_dropped_once() -> Outcome {
    let (sim, device) = simulated("h200")?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    struct Counter(Arc<AtomicU64>);
    impl Drop for Counter {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for function in ["cuLaunchHostFunc", "cuStreamIsCapturing"] {
        let (dropped, ran) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counter, running) = (Counter(Arc::clone(&dropped)), Arc::clone(&ran));
        sim.fail(Fault::on(function))?;
        let result = stream.launch_host(move || {
            let _counter = counter;
            running.fetch_add(1, Ordering::SeqCst);
        });
        assert!(result.is_err(), "{function}");
        stream.synchronize()?;
        assert_eq!((dropped.load(Ordering::SeqCst), ran.load(Ordering::SeqCst)), (1, 0));
    }
    Ok(())
}

#[test]
fn a_panic_goes_to_the_hook() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let reported = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&reported);
    let _hook = device.driver().on_cleanup_failure(move |error| {
        hook.lock().expect("no panic").push(error.to_string());
        // Nor does this one leave.
        panic!("the hook panics too");
    });
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    stream.launch_host(|| panic!("number {}", 7))?;
    stream.launch_host(|| std::panic::panic_any(7))?;
    stream.synchronize()?;
    let expected = [
        "a function submitted to a stream panicked: number 7",
        "a function submitted to a stream panicked: something that is no text",
    ];
    assert_eq!(*reported.lock().expect("no poison"), expected);
    Ok(())
}

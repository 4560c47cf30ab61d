//! Host functions in streams that are refused, dropped, or panic.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use green_ctx::plan::SwitchOptions;
use green_ctx::{Error, StreamOptions, graph::CaptureMode, sim::Fault};

use crate::common::plans::day_and_night;
use crate::common::{Outcome, partition, simulated};
use crate::{LONG, work};

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
        // This panic must not leave the library either.
        panic!("the hook panics too");
    });
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    stream.launch_host(|| panic!("number {}", 7))?;
    stream.launch_host(|| std::panic::panic_any(7))?;
    stream.synchronize()?;
    let expected = [
        "a function submitted to a stream panicked: number 7",
        "a function submitted to a stream panicked: something that is not text",
    ];
    assert_eq!(*reported.lock().expect("no poison"), expected);
    Ok(())
}

#[test]
fn a_capture_takes_no_function() -> Outcome {
    let (_sim, device) = simulated("h200")?;
    let stream = partition(&device, 8)?.create_stream(StreamOptions::default())?;
    assert!(!stream.is_capturing()?);
    stream.capture(CaptureMode::Relaxed, || {
        assert!(stream.is_capturing()?);
        let error = stream.launch_host(|| {}).expect_err("it is captured");
        assert!(matches!(error, Error::Capturing), "{error}");
        Ok::<(), Error>(())
    })?;
    Ok(())
}

/// The simulated driver runs host functions within the queries of other threads. A function may own the last handle of
/// a stream, although it must not call the driver on a real machine.
#[test]
fn a_function_may_own_a_stream_of_a_plan_that_is_switched() -> Outcome {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let run = || -> Outcome {
            let (sim, device) = simulated("h200")?;
            let (set, plans) = day_and_night(&device)?;
            let kernel = work::kernel(&sim, &device, "work", LONG)?;
            let create = || plans[0]["decode"].create_stream(StreamOptions::default());
            let (owned, other) = (create()?, create()?);
            work::launch(&other, &kernel)?;
            other.launch_host(move || drop(owned))?;
            // The function runs within the query, since the work before the function is done by that time.
            let synchronize = move || other.synchronize().expect("the driver works");
            sim.run_before("cuStreamIsCapturing", 1, synchronize)?;
            set.switch(&plans[1], SwitchOptions::default())?;
            Ok(())
        };
        done.send(run().map_err(|error| error.to_string())).expect("the test waits");
    });
    Ok(is_done.recv_timeout(Duration::from_secs(10))??)
}

//! The tuner on a simulated device, where kernels take no time: the objects it creates and frees, and its handling of
//! faulty jobs. The quality of its choices is tested in `src/trials.rs`. These tests run in real time, so they have
//! their own process.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use green_ctx::error::ErrorKind;
use green_ctx::graph::CaptureMode;
use green_ctx::sim::{Fault, Sim};
use green_ctx::{Device, Driver, Error, Kernel, LaunchConfig, Library, Stream, StreamOptions};
use green_ctx_tune::{
    self as tune, ArmKind, Arrival, CurveRequest, Goal, Job, Outcome, Profile, Request,
    RequestError, Store, TuneError,
};

use serde_json::{Value, json};

/// The result of a test, for `?` on every error.
type Tested<T = ()> = Result<T, Box<dyn std::error::Error>>;

const PTX: &str = ".version 5.0 .target sm_52 .address_size 64 .visible .entry step() { ret; }";

/// Returns a simulated driver and its device.
fn simulated(spec: &str) -> Tested<(Sim, Device)> {
    let sim = Sim::new(spec)?;
    let device = Driver::simulated(&sim)?.device(0)?;
    Ok((sim, device))
}

fn kernel(device: &Device) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, PTX)?.kernel("step")
}

fn launch(kernel: &Kernel, stream: &Stream) -> green_ctx::Result<()> {
    // SAFETY: the kernel takes no parameters.
    unsafe { stream.launch(kernel, LaunchConfig::new(132, 128), ()) }
}

/// Returns a job that launches one kernel.
fn job(device: &Device, name: &str) -> green_ctx::Result<Job> {
    let kernel = kernel(device)?;
    Ok(Job::new(name, move |stream| Ok(launch(&kernel, stream)?)))
}

/// Returns two such jobs.
fn pair(device: &Device) -> green_ctx::Result<[Job; 2]> {
    Ok([job(device, "a")?, job(device, "b")?])
}

/// Returns a job with a graph of one kernel.
fn graph(device: &Device, name: &str) -> green_ctx::Result<Job> {
    let kernel = kernel(device)?;
    let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    let graph = stream.capture(CaptureMode::Relaxed, || launch(&kernel, &stream))?;
    // SAFETY: the graph's kernel uses no memory, and the job keeps the kernel loaded.
    Ok(unsafe { Job::graph(name, graph) }.keep(kernel))
}

/// Checks that all SMs are free, and that nothing is left except idle contexts.
fn nothing_is_left(sim: &Sim, device: &Device) -> Tested {
    assert_eq!(device.resources().sm()?.free_sm_count(), 132);
    device.release_idle();
    let live = sim.live();
    assert_eq!((live.streams, live.green_contexts, live.graph_executables), (0, 0, 0));
    assert_eq!((live.events, live.graphs, live.allocations), (0, 0, 0));
    Ok(())
}

fn short() -> Request {
    Request::new(Goal::throughput()).budget(Duration::from_millis(1000))
}

/// Tunes again if the machine was too busy for the budget.
fn again<T>(mut tuned: impl FnMut() -> Result<T, TuneError<Error>>) -> Result<T, TuneError<Error>> {
    for _ in 0..4 {
        match tuned() {
            Err(TuneError::Request(RequestError::Budget { .. })) => {}
            done => return done,
        }
    }
    tuned()
}

fn tune(device: &Device, jobs: &mut [Job], request: &Request) -> Result<Outcome, TuneError<Error>> {
    again(|| tune::run(device, jobs, request, &mut |_| true))
}

#[test]
fn jobs_of_all_kinds_run_on_every_driver() -> Tested {
    for spec in ["h200@12.5", "h200@13.0", "h200@13.1", "h100@13.0"] {
        let (sim, device) = simulated(spec)?;
        {
            let kernel = kernel(&device)?;
            let launched = kernel.clone();
            let waiting = Job::new("a", move |stream| {
                launch(&launched, stream)?;
                Ok(stream.synchronize()?)
            });
            let outcome = tune(&device, &mut [waiting, graph(&device, "b")?], &short())?;
            assert!(outcome.notes.iter().any(|note| note.starts_with("a waits for the device")));
            assert!(outcome.complete && outcome.arms.len() > 1, "{spec}");
            let machine = outcome.machine.as_ref().expect("it ran on a device");
            assert_eq!((machine.sm_count, outcome.pieces.sms), (132, 132));
            let origin = format!(
                "(This verdict comes from the {}, whose kernels take no real time, not from a GPU.)",
                machine.driver
            );
            assert!(outcome.verdict.sentence.ends_with(&origin), "{}", outcome.verdict.sentence);
            // At most two contexts per count, and those with all SMs.
            assert!(device.context_counts().created <= 36, "{:?}", device.context_counts());
            let parts = outcome.partitions(&device)?;
            launch(&kernel, parts["b"].stream())?;
        }
        nothing_is_left(&sim, &device)?;
    }
    let (_, device) = simulated("h200@12.4")?;
    let error = tune(&device, &mut pair(&device)?, &short());
    assert!(matches!(error, Err(TuneError::Failed(Error::Unsupported { .. }))), "{error:?}");
    Ok(())
}

/// The odd unit of 12 SMs goes to the job that needs it.
#[test]
fn floors_are_kept() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    for (floors, fits) in [([64, 64], true), ([0, 124], true), ([16, 116], true), ([0, 128], false)]
    {
        let request = short().floor("a", floors[0]).floor("b", floors[1]);
        let tuned = tune(&device, &mut pair(&device)?, &request);
        assert_eq!(tuned.is_ok(), fits, "{floors:?}: {:?}", tuned.err());
        let Ok(outcome) = tuned else { continue };
        assert_eq!(outcome.verdict.kind, ArmKind::Partition, "{floors:?}");
        let parts = outcome.partitions(&device)?;
        let kept = [parts["a"].floor(), parts["b"].floor()];
        assert!(kept[0] >= floors[0] && kept[1] >= floors[1], "{floors:?}: {kept:?}");
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn arrivals_goals_and_resets_are_heeded() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    for goal in ["throughput", "makespan", "keep:a:p50:100ms", "least:a:p50:keep:b:0.01"] {
        let log = Arc::new(Mutex::new(String::new()));
        let note = |what| {
            let log = Arc::clone(&log);
            move || log.lock().map(|mut log| log.push(what)).map_err(|error| error.to_string())
        };
        let (kernel, reset, run) = (kernel(&device)?, note('R'), note('i'));
        let a = Job::new("a", move |stream| {
            run()?;
            Ok(launch(&kernel, stream)?)
        });
        let a = a.arrival(Arrival::poisson(1000.0, 1)).before_block(move |_| Ok(reset()?));
        let trace = Arrival::trace((1..50).map(|step| f64::from(step) * 1e-3).collect::<Vec<_>>())?;
        let mut jobs = [a, graph(&device, "b")?.arrival(trace)];
        let request = Request::new(goal.parse()?).budget(Duration::from_millis(1500));
        // An invalid request is refused before any job is run or reset.
        tune(&device, &mut jobs, &request.clone().floor("c", 8)).expect_err("there is no c");
        let log = || log.lock().expect("no thread has panicked").clone();
        assert_eq!(log(), "");
        let outcome = tune(&device, &mut jobs, &request)?;
        let blocks: usize = outcome.arms.iter().map(|arm| arm.blocks).sum();
        assert!(log().starts_with('R') && log().matches('R').count() >= blocks && blocks > 0);
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn wrong_jobs_are_named() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let kernel = kernel(&device)?;
    let sleeping = kernel.clone();
    let slow = Job::new("slow", move |stream| {
        thread::sleep(Duration::from_millis(40));
        Ok(launch(&sleeping, stream)?)
    });
    // The job fails later, but before the first arm has run.
    let mut left = 4;
    let tired = Job::new("tired", move |stream| {
        left -= 1;
        if left < 0 { Err("it has had enough".into()) } else { Ok(launch(&kernel, stream)?) }
    });
    let fails = |name, reason: &'static str| Job::new(name, move |_| Err(reason.into()));
    let reset = |_: &Stream| Err("its weights are gone".into());
    for (wrong, words) in [
        (Job::new("idle", |_| Ok(())), "idle does not run: it submits nothing to the stream that"),
        (fails("broken", "no weights"), "broken does not run: no weights"),
        // The sufficient budget depends on the machine, which may be busy.
        (slow, "too small for these jobs; use "),
        (job(&device, "a")?, "two jobs are named a"),
        (tired, "tired does not run: it has had enough"),
        (job(&device, "b")?.before_block(reset), "b does not run: its weights are gone"),
        (job(&device, "b")?.arrival(Arrival::closed(0)), "b: a depth of 0 submits nothing"),
    ] {
        let error = tune(&device, &mut [job(&device, "a")?, wrong], &short()).expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
        nothing_is_left(&sim, &device)?;
    }
    let _held = device.partition([132])?;
    let error = tune(&device, &mut pair(&device)?, &short()).expect_err("nothing is free");
    let TuneError::Failed(source) = &error else { return Err(error.into()) };
    assert!(source.to_string().contains("there are no free SMs"), "{source}");
    assert_eq!(source.kind(), ErrorKind::Unavailable);
    Ok(())
}

#[test]
fn whatever_fails_nothing_is_left() -> Tested {
    let contexts = ["cuGreenCtxCreate", "cuGreenCtxStreamCreate", "cuStreamCreateWithPriority"];
    let waits = ["cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuStreamSynchronize"];
    let graphs = ["cuGraphInstantiateWithFlags", "cuGraphUpload", "cuGraphLaunch"];
    for function in contexts.iter().chain(&waits).chain(&graphs).chain(&["cuLaunchKernelEx"]) {
        for nth in [1, 30] {
            let (sim, device) = simulated("h200@13.0")?;
            {
                let mut jobs = [job(&device, "a")?, graph(&device, "b")?];
                sim.fail(Fault::on(*function).nth(nth))?;
                // The result is an error, a skipped arm, or success if the call is never made.
                let _ = tune(&device, &mut jobs, &short().budget(Duration::from_millis(400)));
                sim.clear_faults();
            }
            nothing_is_left(&sim, &device).map_err(|error| format!("{function} {nth}: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_curve_has_only_sizes_that_are_free() -> Tested {
    let (_, device) = simulated("h200@13.0")?;
    let _held = device.partition([96])?;
    let request = CurveRequest::default().blocks(1);
    let curve = tune::curve(&device, &mut job(&device, "a")?, &request, &mut |_| true)?;
    let sizes: Vec<u32> = curve.points.iter().map(|point| point.sms).collect();
    assert_eq!(sizes[sizes.len() - 2..], [36, 132]);
    assert!(curve.points.iter().all(|point| point.skipped.is_none()), "{curve:?}");
    let words = "the largest partition has 36 SMs";
    assert!(curve.notes.iter().any(|note| note.contains(words)), "{:?}", curve.notes);
    Ok(())
}

#[test]
fn a_curve_keeps_what_its_job_can_do() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    {
        let kernel = kernel(&device)?;
        // 16 of the counts are too few, and once the job fails where it had run before.
        let mut calls_on_64 = 0;
        let mut picky = Job::new("picky", move |stream| {
            let sms = stream.context().sm_count()?;
            calls_on_64 += u32::from(sms == 64);
            match sms {
                16 => Err("16 SMs are too few".into()),
                64 if calls_on_64 > 500 => Err("64 SMs were too few in the end".into()),
                _ => Ok(launch(&kernel, stream)?),
            }
        });
        let request = CurveRequest::default().counts([16, 32, 64]);
        let request = request.budget(Duration::from_millis(600));
        let curve = tune::curve(&device, &mut picky, &request, &mut |_| true)?;
        let reason = |place: usize| curve.points[place].skipped.as_deref().unwrap_or_default();
        assert!(reason(0).contains("16 SMs are too few"), "{curve:?}");
        assert!(reason(2).contains("too few in the end"), "{curve:?}");
        let are_measured = [1, 3].map(|place| curve.points[place].median_us.is_some());
        assert_eq!((are_measured, curve.complete), ([true, true], true), "{curve:?}");
    }
    nothing_is_left(&sim, &device)?;
    for function in ["cuGreenCtxCreate", "cuGraphInstantiateWithFlags", "cuEventRecord"] {
        for nth in [1, 20] {
            let mut job = graph(&device, "graph")?;
            sim.fail(Fault::on(function).nth(nth))?;
            let request = CurveRequest::default().budget(Duration::from_millis(100));
            let _ = tune::curve(&device, &mut job, &request, &mut |_| true);
            sim.clear_faults();
            drop(job);
            nothing_is_left(&sim, &device).map_err(|error| format!("{function} {nth}: {error}"))?;
        }
    }
    Ok(())
}

/// Returns a folder for this test, and the outcome of two jobs stored in it.
fn kept(name: &str) -> Tested<(Sim, Device, Store, Outcome)> {
    let (sim, device) = simulated("h200@13.0")?;
    let folder = std::env::temp_dir().join(format!("green-ctx-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = Store::new(folder.join("pair.json"));
    let (outcome, missed) = tuned(&device, &store)?;
    assert!(missed.is_some_and(|reason| reason.contains("cannot be read")));
    assert_eq!(tuned(&device, &store)?, (outcome.clone(), None));
    Ok((sim, device, store, outcome))
}

/// Reads or measures the outcome for two jobs. Also returns the reason for measuring.
fn tuned(device: &Device, store: &Store) -> Tested<(Outcome, Option<String>)> {
    let (mut missed, [a, b]) = (None, pair(device)?);
    let jobs = &mut [a.key("v1"), b];
    let outcome = again(|| {
        let miss = |miss: &tune::Miss| missed = Some(miss.to_string());
        tune::tuned(device, jobs, &short(), store, miss, &mut |_| true)
    })?;
    Ok((outcome, missed))
}

fn profiles() -> [Profile; 2] {
    [Profile::new("a").key("v1"), Profile::new("b")]
}

fn misses(device: &Device, store: &Store, words: &str) {
    let miss = store.load(device, &profiles(), &short()).expect_err(words).to_string();
    assert!(miss.contains(words), "{miss}");
}

#[test]
fn files_keep_outcomes() -> Tested {
    let (sim, device, store, outcome) = kept("kept")?;
    let [a, b] = profiles();
    for (jobs, request, words) in [
        (&[Profile::new("a"), b][..], short(), "the key of a was v1"),
        (&[a], short(), "the list of jobs was a, b and is a"),
        (&profiles(), Request::new(Goal::Makespan), "the goal was throughput and is makespan"),
        (&profiles(), short().leave_out(ArmKind::Priority), "the limits were different"),
        (&profiles(), short().budget(Duration::from_secs(2)), "the budget was 1 s and is 2 s"),
    ] {
        let miss = store.load(&device, jobs, &request).expect_err(words).to_string();
        assert!(miss.contains(words), "{miss}");
    }
    misses(&simulated("h200@13.1")?.1, &store, "the driver was");
    let smaller = short().budget(Duration::from_millis(900));
    assert_eq!(store.load(&device, &profiles(), &smaller).as_ref(), Ok(&outcome));

    // Threads that write at the same time leave one of their files.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    store.save(&outcome).expect("it can be written");
                    assert_eq!(store.read().as_ref(), Ok(&outcome));
                }
            });
        }
    });

    // SMs of other partitions are not divided: the file is for the free SMs.
    let held = device.partition([40])?;
    misses(&device, &store, "was 132 SMs in units of 8 and is 92 SMs in units of 8");
    let fewer = Store::new(store.path().with_file_name("fewer.json"));
    for is_there in [false, true] {
        let (outcome, missed) = tuned(&device, &fewer)?;
        assert_eq!((outcome.pieces.sms, missed.is_none()), (92, is_there), "{missed:?}");
    }
    drop(held);
    std::fs::remove_file(fewer.path())?;

    // Files with different contents, truncated, empty, or of another kind.
    let whole = std::fs::read(store.path())?;
    for (pointer, value, words) in [
        ("/format", json!("green-ctx tune 9"), "holds no outcome of tuning"),
        ("/outcome/complete", json!(false), "the search was interrupted"),
        ("/outcome/machine/device", json!("H100"), "the device was H100 and is"),
        ("/outcome/verdict/shares", json!({"a": "garbage", "b": ".."}), "garbage"),
        ("/outcome/verdict/shares/a", json!("132"), "do not fit"),
        // Rounded up to whole units, these shares need more SMs.
        ("/outcome/verdict/shares", json!({"a": "13", "b": "119"}), "groups of 13, 119 SMs do not"),
    ] {
        let mut file: Value = serde_json::from_slice(&whole)?;
        *file.pointer_mut(pointer).expect("a place") = value;
        std::fs::write(store.path(), file.to_string())?;
        misses(&device, &store, words);
    }
    for wrong in [&whole[..whole.len() / 2], b"", b"[1, 2]", b"\xff\xfe"] {
        std::fs::write(store.path(), wrong)?;
        misses(&device, &store, "holds no outcome of tuning");
    }
    // A read-only store does not change the file.
    std::fs::write(store.path(), "mine")?;
    tuned(&device, &store.clone().read_only(true))?;
    assert_eq!(std::fs::read(store.path())?, b"mine");
    let folder = store.path().parent().expect("a folder");
    assert_eq!(std::fs::read_dir(folder)?.count(), 1);
    std::fs::remove_dir_all(folder)?;
    nothing_is_left(&sim, &device)
}

#[test]
fn only_regular_files_are_replaced() -> Tested {
    let (_, _, store, outcome) = kept("refused")?;
    let folder = store.path().parent().expect("a folder");
    assert!(store.can_save()? && !store.clone().read_only(true).can_save()?);
    assert!(Store::new(folder).can_save().is_err(), "a folder");
    assert_eq!(std::fs::read_dir(folder)?.count(), 1);
    #[cfg(unix)]
    {
        // A socket is not replaced. A symbolic link is kept, and its target is replaced.
        let (socket, link) = (folder.join("socket"), folder.join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket)?;
        let special = Store::new(&socket);
        assert!(special.can_save().is_err() && special.save(&outcome).is_err());
        std::os::unix::fs::symlink(store.path(), &link)?;
        std::fs::write(store.path(), "old")?;
        assert!(Store::new(&link).save(&outcome)?);
        assert!(link.is_symlink() && socket.exists() && !socket.is_file());
        assert_eq!(store.read().as_ref(), Ok(&outcome));
    }
    Ok(std::fs::remove_dir_all(folder)?)
}

#[test]
fn files_are_for_the_libraries_that_they_were_made_with() -> Tested {
    let (_, device, store, outcome) = kept("libraries")?;
    let new = store.clone().library("cublas", "13.1");
    let (found, missed) = tuned(&device, &new)?;
    assert!(missed.is_some_and(|reason| reason.contains("cublas was not recorded and is 13.1")));
    assert_eq!(found.machine.as_ref().map(|it| it.libraries["cublas"].as_str()), Some("13.1"));
    // A program that names no library accepts every version.
    for store in [&new, &store] {
        assert_eq!(tuned(&device, store)?, (found.clone(), None));
    }
    let other = store.clone().library("cublas", "13.2");
    misses(&device, &other, "the version of cublas was 13.1 and is 13.2");
    // Saved outcomes are marked with the version too.
    store.clone().library("torch", "2.11").save(&outcome)?;
    assert_eq!(store.read()?.machine.expect("it ran on a device").libraries["torch"], "2.11");
    Ok(std::fs::remove_dir_all(store.path().parent().expect("a folder"))?)
}

#[test]
fn a_verdict_is_applied() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    for kind in ArmKind::ALL {
        let others = ArmKind::ALL.into_iter().filter(|other| *other != kind);
        let request = others.fold(short(), Request::leave_out);
        let outcome = tune(&device, &mut pair(&device)?, &request)?;
        let applied = outcome.apply(&device)?;
        assert_eq!((applied.kind(), outcome.verdict.kind), (kind, kind));
        let [a, b] = ["a", "b"].map(|name| applied.stream(name).expect("a stream"));
        assert_eq!(a.as_raw() == b.as_raw(), kind == ArmKind::Sequential);
        assert_eq!(applied.partitions().is_some(), kind == ArmKind::Partition);
        let levels = ["a", "b"].map(|name| outcome.verdict.priority[name]);
        assert_eq!([a.priority()? == 0, b.priority()? == 0], levels.map(|level| level == 0));
        launch(&kernel(&device)?, a)?;
        assert!(applied.stream("c").is_none());
    }
    nothing_is_left(&sim, &device)
}

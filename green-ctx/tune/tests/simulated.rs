//! The tuner on a simulated device, where kernels take no time: what it makes and leaves, and what it does with
//! jobs that are wrong. How well it chooses, the trials beside the search say. These tests take real time, so they have a
//! process of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use green_ctx::graph::CaptureMode;
use green_ctx::sim_0_1::{Fault, Sim};
use green_ctx::{Device, Driver, Error, Kernel, LaunchConfig, Library, Stream, StreamOptions};
use green_ctx_tune::{
    self as tune, ArmKind, Arrival, Goal, Job, JobError, Outcome, Profile, Request, Store,
    TuneError,
};

use serde_json::{Value, json};

/// Any test's result: `?` on every error.
type Tested = Result<(), Box<dyn std::error::Error>>;

const PTX: &str = ".version 5.0 .target sm_52 .address_size 64 .visible .entry step() { ret; }";

/// A simulated driver and its device.
fn simulated(spec: &str) -> Result<(Sim, Device), Box<dyn std::error::Error>> {
    let sim = Sim::new(spec)?;
    let device = Driver::simulated(&sim)?.device(0)?;
    Ok((sim, device))
}

fn kernel(device: &Device) -> green_ctx::Result<Kernel> {
    Library::from_ptx(device, PTX)?.kernel("step")
}

fn launch(kernel: &Kernel, stream: &Stream) -> Result<(), JobError> {
    // SAFETY: the kernel takes no parameters.
    Ok(unsafe { stream.launch(kernel, LaunchConfig::new(132, 128), ()) }?)
}

/// A job that launches one kernel.
fn job(device: &Device, name: &str) -> green_ctx::Result<Job> {
    let kernel = kernel(device)?;
    Ok(Job::new(name, move |stream| launch(&kernel, stream)))
}

/// Whether all SMs are free, and nothing but contexts that wait to be used again is left.
fn nothing_is_left(sim: &Sim, device: &Device) -> Tested {
    assert_eq!(device.resources().sm()?.free(), 132);
    device.release_idle();
    let live = sim.live();
    assert_eq!((live.streams, live.green_contexts, live.graph_executables), (0, 0, 0));
    assert_eq!((live.events, live.graphs, live.allocations), (0, 0, 0));
    Ok(())
}

/// A job that is a graph of one kernel.
fn graph(device: &Device, name: &str) -> green_ctx::Result<Job> {
    let kernel = kernel(device)?;
    let stream = device.primary_context()?.create_stream(StreamOptions::default())?;
    // SAFETY: the kernel takes no parameters.
    let submit = || unsafe { stream.launch(&kernel, LaunchConfig::new(132, 128), ()) };
    let graph = stream.capture(CaptureMode::Relaxed, submit)?;
    // SAFETY: its kernel uses no memory.
    Ok(unsafe { Job::graph(name, graph) }.keep(kernel))
}

fn short() -> Request {
    Request::new(Goal::throughput()).budget(Duration::from_millis(600))
}

fn tune(device: &Device, jobs: &mut [Job], request: &Request) -> Result<Outcome, TuneError<Error>> {
    tune::run(device, jobs, request, &mut |_| true)
}

#[test]
fn jobs_of_both_kinds_run_on_every_driver() -> Tested {
    for spec in ["h200@12.5", "h200@13.0", "h200@13.1", "h100@13.0"] {
        let (sim, device) = simulated(spec)?;
        {
            let mut jobs = [job(&device, "a")?, graph(&device, "b")?];
            let outcome = tune(&device, &mut jobs, &short())?;
            assert!(outcome.complete && outcome.arms.len() > 1, "{spec}");
            let machine = outcome.machine.as_ref().expect("it ran on a device");
            assert_eq!((machine.sm_count, outcome.pieces.sms), (132, 132));
            let note = format!("no GPU was measured: {}", machine.driver);
            assert!(outcome.notes.contains(&note), "{:?}", outcome.notes);
            // At most two contexts a count, and those of all SMs.
            assert!(device.context_counts().created <= 36, "{:?}", device.context_counts());
            let parts = outcome.partitions(&device)?;
            assert_eq!(parts["a"].name(), "a");
            launch(&kernel(&device)?, parts["b"].stream()).map_err(|error| error.to_string())?;
        }
        nothing_is_left(&sim, &device)?;
    }
    let (_, device) = simulated("h200@12.4")?;
    let error = tune(&device, &mut [job(&device, "a")?, job(&device, "b")?], &short());
    assert!(matches!(error, Err(TuneError::Failed(Error::Unsupported { .. }))), "{error:?}");
    Ok(())
}

#[test]
fn arrivals_goals_and_hooks_are_heeded() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let hooks = Arc::new(AtomicUsize::new(0));
    for goal in ["throughput", "makespan", "keep:a:p50:100ms", "least:a:p50:keep:b:0.01"] {
        let count = Arc::clone(&hooks);
        let trace = Arrival::trace((1..50).map(|step| f64::from(step) * 1e-4).collect::<Vec<_>>())?;
        let mut jobs = [
            job(&device, "a")?.arrival(Arrival::poisson(3000.0, 1)).before_block(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }),
            graph(&device, "b")?.arrival(trace),
        ];
        let before = hooks.load(Ordering::Relaxed);
        let request = Request::new(goal.parse()?).budget(Duration::from_millis(1500));
        let outcome = tune(&device, &mut jobs, &request)?;
        let blocks: usize = outcome.arms.iter().map(|arm| arm.blocks).sum();
        assert!(hooks.load(Ordering::Relaxed) - before >= blocks && blocks > 0, "{goal}");
        assert_eq!(outcome.goal.to_string().split(':').next(), goal.split(':').next());
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn wrong_jobs_are_named() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let fails = |jobs: &mut [Job], words: &str| -> Tested {
        let error = tune(&device, jobs, &short()).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
        nothing_is_left(&sim, &device)
    };
    fails(
        &mut [job(&device, "a")?, Job::new("idle", |_| Ok(()))],
        "idle does not run: it submits nothing to the stream that it is given",
    )?;
    fails(
        &mut [job(&device, "a")?, Job::new("broken", |_| Err("no weights are loaded".into()))],
        "broken does not run: no weights are loaded",
    )?;
    let slow = kernel(&device)?;
    let slow = Job::new("slow", move |stream| {
        thread::sleep(Duration::from_millis(40));
        launch(&slow, stream)
    });
    // How long the budget has to be depends on the machine too, which may be busy.
    fails(&mut [job(&device, "a")?, slow], "too small for jobs that take so long; use ")?;
    fails(&mut [job(&device, "a")?, job(&device, "a")?], "two jobs are named a")?;
    // A job that fails later on, in an arm or in all.
    let (left, counted) = (Arc::new(AtomicUsize::new(40)), kernel(&device)?);
    let counted = Job::new("tired", move |stream| {
        if left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_err()
        {
            return Err("it has had enough".into());
        }
        launch(&counted, stream)
    });
    fails(&mut [job(&device, "a")?, counted], "tired does not run: it has had enough")
}

#[test]
fn a_job_that_waits_for_the_device_is_measured_and_noted() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let kernel = kernel(&device)?;
    let waiting = Job::new("waiting", move |stream| {
        launch(&kernel, stream)?;
        Ok(stream.synchronize()?)
    });
    let outcome = tune(&device, &mut [job(&device, "a")?, waiting], &short())?;
    assert!(outcome.notes.iter().any(|note| note.starts_with("waiting cannot be captured")));
    drop(outcome);
    nothing_is_left(&sim, &device)
}

#[test]
fn sms_that_others_hold_are_left_alone() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    {
        let held = device.partition([40])?;
        let mut jobs = [job(&device, "a")?, job(&device, "b")?];
        let outcome = tune(&device, &mut jobs, &short())?;
        assert_eq!(outcome.pieces.sms, 92);
        drop(held);
        let all = device.partition([132])?;
        let error = tune(&device, &mut jobs, &short()).expect_err("nothing is free");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|source| source.contains("no SMs are free")), "{error}");
        drop(all);
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn whatever_fails_nothing_is_left() -> Tested {
    for function in [
        "cuGreenCtxCreate",
        "cuGreenCtxStreamCreate",
        "cuStreamCreateWithPriority",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuLaunchKernelEx",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphUpload",
        "cuStreamSynchronize",
    ] {
        for nth in [1, 30] {
            let (sim, device) = simulated("h200@13.0")?;
            {
                let mut jobs = [job(&device, "a")?, graph(&device, "b")?];
                sim.fail(Fault::on(function).nth(nth))?;
                // It is an error, an arm that is skipped, or a call that is never made.
                let _ = tune(&device, &mut jobs, &short().budget(Duration::from_millis(400)));
                sim.clear_faults();
            }
            nothing_is_left(&sim, &device).map_err(|error| format!("{function} {nth}: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn files_keep_outcomes() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let folder = std::env::temp_dir().join(format!("green-ctx-tuning-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = Store::new(folder.join("pair.json"));
    let request = short();
    let jobs = || Ok::<_, Error>([job(&device, "a")?.key("v1"), job(&device, "b")?]);
    let tuned = |request: &Request, store: &Store| {
        let mut missed = None;
        let outcome = tune::tuned(
            &device,
            &mut jobs()?,
            request,
            store,
            |miss| missed = Some(miss.to_string()),
            &mut |_| true,
        );
        outcome.map(|outcome| (outcome, missed)).map_err(|error| -> JobError { error.into() })
    };
    let (first, missed) = tuned(&request, &store).map_err(|error| error.to_string())?;
    assert!(missed.is_some_and(|reason| reason.contains("cannot be read")));
    let (again, missed) = tuned(&request, &store).map_err(|error| error.to_string())?;
    assert_eq!((missed, &again), (None, &first));
    assert_eq!(store.read()?, first);

    let profiles = [Profile::new("a").key("v1"), Profile::new("b")];
    let misses = |profiles: &[Profile], request: &Request, words: &str| {
        let miss = store.load(&device, profiles, request).expect_err(words).to_string();
        assert!(miss.contains(words), "{miss}");
    };
    misses(&[Profile::new("a"), Profile::new("b")], &request, "the key of a was v1");
    misses(&profiles[..1], &request, "the list of jobs was a, b and is a");
    misses(&profiles, &Request::new(Goal::Makespan), "the goal was throughput and is makespan");
    misses(&profiles, &request.clone().leave_out(ArmKind::Priority), "other arms were allowed");
    let (_, other) = simulated("h200@13.1")?;
    let miss = store.load(&other, &profiles, &request).expect_err("another driver").to_string();
    assert!(miss.contains("the driver was"), "{miss}");

    // Threads that write at the same time leave one of their files.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    store.save(&first).expect("it can be written");
                    assert_eq!(store.read().as_ref(), Ok(&first));
                }
            });
        }
    });
    let mut interrupted = first.clone();
    interrupted.complete = false;
    store.save(&interrupted)?;
    misses(&profiles, &request, "the search was interrupted");
    store.save(&first)?;

    // What others hold is not divided: the file is for as many SMs as are free.
    let held = device.partition([40])?;
    misses(&profiles, &request, "was 132 SMs in units of 8 and is 92 SMs in units of 8");
    let beside = Store::new(folder.join("beside.json"));
    for is_there in [false, true] {
        let (_, missed) = tuned(&request, &beside).map_err(|error| error.to_string())?;
        assert_eq!(missed.is_none(), is_there, "{missed:?}");
    }
    drop(held);
    std::fs::remove_file(beside.path())?;

    // Files that are cut, empty, of something else, or of another format, and no file at all.
    let whole = std::fs::read(store.path())?;
    let format = String::from_utf8_lossy(&whole).replace("green-ctx tune 2", "green-ctx tune 9");
    for wrong in [&whole[..whole.len() / 2], b"", b"[1, 2]", b"\xff\xfe", format.as_bytes()] {
        std::fs::write(store.path(), wrong)?;
        misses(&profiles, &request, "holds no outcome of tuning");
    }
    // A file that is never to be written stays as it is.
    std::fs::write(store.path(), "mine")?;
    tuned(&request, &store.clone().read_only(true)).map_err(|error| error.to_string())?;
    assert_eq!(std::fs::read(store.path())?, b"mine");
    assert_eq!(std::fs::read_dir(&folder)?.count(), 1);
    std::fs::remove_dir_all(&folder)?;
    drop((first, again));
    nothing_is_left(&sim, &device)
}

/// A folder of this test, and what was found for two jobs.
fn kept(name: &str) -> Result<(Device, Store, Outcome), Box<dyn std::error::Error>> {
    let (_, device) = simulated("h200@13.0")?;
    let folder = std::env::temp_dir().join(format!("green-ctx-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = tune(&device, &mut [job(&device, "a")?, job(&device, "b")?], &short())?;
    Ok((device, Store::new(folder.join("pair.json")), outcome))
}

fn pair() -> [Profile; 2] {
    ["a", "b"].map(Profile::new)
}

#[test]
fn shares_that_do_not_fit_are_misses() -> Tested {
    let (device, store, outcome) = kept("shares")?;
    assert!(store.save(&outcome)?);
    assert_eq!(store.load(&device, &pair(), &short()), Ok(outcome));
    let whole = std::fs::read(store.path())?;
    for (shares, words) in [
        (json!({"a": "garbage", "b": ".."}), "garbage"),
        (json!({"a": "100", "b": "100"}), "2 groups of 100 SMs do not fit"),
        // Whole units are more than what these shares say.
        (json!({"a": "13", "b": "119"}), "groups of 13, 119 SMs do not fit"),
    ] {
        let mut file: Value = serde_json::from_slice(&whole)?;
        file["outcome"]["verdict"]["shares"] = shares;
        std::fs::write(store.path(), file.to_string())?;
        let miss = store.load(&device, &pair(), &short()).expect_err(words).to_string();
        assert!(miss.contains(words), "{words}: {miss}");
    }
    Ok(std::fs::remove_dir_all(store.path().parent().expect("a folder"))?)
}

#[test]
fn only_regular_files_are_replaced() -> Tested {
    let (_, store, outcome) = kept("refused")?;
    assert!(store.save(&outcome)?);
    let folder = store.path().parent().expect("a folder");
    assert!(store.can_save()? && !store.clone().read_only(true).can_save()?);
    assert!(Store::new(folder).can_save().is_err(), "a folder");
    assert!(Store::new(folder.join("nowhere/pair.json")).can_save().is_err(), "no folder");
    assert_eq!(std::fs::read_dir(folder)?.count(), 1);
    #[cfg(unix)]
    {
        // Not replaced: what is not a regular file, and a link to a file.
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
    let (device, store, outcome) = kept("libraries")?;
    let new = store.clone().library("cublas", "13.1");
    let request = short();
    let tuned = |store: &Store| {
        let mut missed = None;
        let mut jobs = [job(&device, "a")?, job(&device, "b")?];
        let miss = |miss: &tune::Miss| missed = Some(miss.to_string());
        let found = tune::tuned(&device, &mut jobs, &request, store, miss, &mut |_| true);
        found.map(|found| (found, missed)).map_err(|error| -> JobError { error.into() })
    };
    store.save(&outcome)?;
    let (found, missed) = tuned(&new).map_err(|error| error.to_string())?;
    assert!(missed.is_some_and(|reason| reason.contains("cublas was not recorded and is 13.1")));
    assert_eq!(found.machine.as_ref().map(|it| it.libraries["cublas"].as_str()), Some("13.1"));
    let (again, missed) = tuned(&new).map_err(|error| error.to_string())?;
    assert_eq!((missed, &again), (None, &found));
    // Who names none has one that it does not know of.
    assert_eq!(store.load(&device, &pair(), &request), Ok(found));
    let miss = store.clone().library("cublas", "13.2").load(&device, &pair(), &request);
    let miss = miss.expect_err("another version").to_string();
    assert_eq!(miss, "the version of cublas was 13.1 and is 13.2");
    // What is saved by itself is marked too.
    store.clone().library("torch", "2.11").save(&outcome)?;
    let machine = store.read()?.machine.expect("it ran on a device");
    assert_eq!(machine.libraries.get("torch").map(String::as_str), Some("2.11"));
    Ok(std::fs::remove_dir_all(store.path().parent().expect("a folder"))?)
}

/// Arrivals that no text and no call makes, but a program or a file can.
fn impossible() -> [(Arrival, &'static str); 6] {
    [
        (Arrival::closed(0), "a depth of 0 submits nothing"),
        (Arrival::rate(f64::INFINITY), "inf iterations a second"),
        (Arrival::poisson(-1.0, 7), "-1 iterations a second"),
        (Arrival::Trace { seconds: Vec::new() }, "the trace is empty"),
        (Arrival::Trace { seconds: vec![0.5, 0.25] }, "not in order"),
        (
            Arrival::Trace { seconds: (0..2000).map(|step| f64::from(step) * 1e-9).collect() },
            "iterations a second",
        ),
    ]
}

#[test]
fn arrivals_that_cannot_be_are_refused() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    for (arrival, words) in impossible() {
        let mut jobs = [job(&device, "a")?, job(&device, "b")?.arrival(arrival)];
        let error = tune(&device, &mut jobs, &short()).expect_err(words).to_string();
        assert!(error.starts_with("b: ") && error.contains(words), "{error}");
    }
    nothing_is_left(&sim, &device)
}

#[test]
fn jobs_are_reset_before_they_first_run() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    let (resets, early) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let reset_job = |name| {
        let (kernel, resets, early) = (kernel(&device)?, Arc::clone(&resets), Arc::clone(&early));
        let counted = Arc::clone(&resets);
        let job = Job::new(name, move |stream| {
            if resets.load(Ordering::Relaxed) == 0 {
                early.fetch_add(1, Ordering::Relaxed);
            }
            launch(&kernel, stream)
        });
        Ok::<_, green_ctx::Error>(job.before_block(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }))
    };
    let request = Request::new(Goal::throughput()).budget(Duration::from_millis(500));
    let mut jobs = [reset_job("a")?, reset_job("b")?];
    // A request that cannot be met is refused before any job is run or reset.
    let wrong = request.clone().floor("c", 8);
    tune(&device, &mut jobs, &wrong).expect_err("there is no c");
    assert_eq!((resets.load(Ordering::Relaxed), early.load(Ordering::Relaxed)), (0, 0));
    tune(&device, &mut jobs, &request)?;
    assert!(resets.load(Ordering::Relaxed) > 2);
    assert_eq!(early.load(Ordering::Relaxed), 0);
    // One that cannot be reset is named.
    let fails = job(&device, "c")?.before_block(|_| Err("its weights are gone".into()));
    let mut jobs = [job(&device, "a")?, fails];
    let error = tune(&device, &mut jobs, &request).expect_err("no weights");
    assert_eq!(error.to_string(), "c does not run: its weights are gone");
    drop(jobs);
    nothing_is_left(&sim, &device)
}

#[test]
fn a_verdict_is_applied() -> Tested {
    let (sim, device) = simulated("h200@13.0")?;
    for kind in ArmKind::ALL {
        let others = ArmKind::ALL.into_iter().filter(|other| *other != kind);
        let request = others.fold(short(), Request::leave_out);
        let outcome = tune(&device, &mut [job(&device, "a")?, job(&device, "b")?], &request)?;
        let applied = outcome.apply(&device)?;
        assert_eq!((applied.kind(), outcome.verdict.kind), (kind, kind));
        let [a, b] = ["a", "b"].map(|name| applied.stream(name).expect("a stream"));
        assert_eq!(a.as_raw() == b.as_raw(), kind == ArmKind::Sequential);
        assert_eq!(applied.partitions().is_some(), kind == ArmKind::Partition);
        let order = [a.priority()?, b.priority()?];
        assert_eq!(
            order.map(|level| level == 0),
            [outcome.verdict.priority["a"] == 0, outcome.verdict.priority["b"] == 0]
        );
        launch(&kernel(&device)?, a).map_err(|error| error.to_string())?;
        assert!(applied.stream("c").is_none());
    }
    nothing_is_left(&sim, &device)
}

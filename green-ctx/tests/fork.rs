//! CUDA does not survive a fork. In a forked child every call returns [`Error::Forked`], and dropping an
//! inherited handle calls no driver function.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use common::{Outcome, group, kernels, partition, simulated};
use green_ctx::{
    DeviceBuffer, Driver, Error, LaunchConfig, Library, PlanRequest, PlanSet, StreamOptions,
    context::{CloseReason, Context},
    event::EventOptions,
    graph::{CaptureMode, GraphCache, RelaxedCapture, RetargetError},
    memory::PinnedBuffer,
    plan::{PlanError, SwitchOptions},
    resource::ContextCounts,
    stream::DefaultStream,
    watch::Watch,
};

/// The number of forks. Threads of the parent take the ledger's lock all the time, so a child that takes the
/// lock too would hang in one of the forks.
const CHILDREN: usize = 40;
/// Seconds after which an alarm ends a hanging child.
const PATIENCE: u32 = 20;

/// Lets one test run at a time. A thread of another test could hold a lock of the whole process during a fork.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a child, and returns its exit status, or the signal that ended it.
fn ended(child: libc::pid_t) -> Result<i32, i32> {
    assert!(child > 0, "the fork failed");
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status))
    } else {
        Err(libc::WTERMSIG(status))
    }
}

/// Each child exits with the number of its first wrong step, or with 0.
#[test]
fn a_forked_child_gets_an_error() -> Outcome {
    let _alone = alone();
    let (sim, device) = simulated("h200")?;
    let context = partition(&device, 8)?;
    let stream = context.create_stream(StreamOptions::default())?;
    let event = device.create_event(EventOptions::default())?;
    let ptx = kernels::text("nothing");
    let library = Library::from_ptx(&device, &ptx)?;
    let buffer = DeviceBuffer::from_slice(&device, &[1_u32])?;
    let spare = group(&device, 16)?;
    let set = PlanSet::new(group(&device, 24)?, PlanRequest::new("day", [8]))?;
    let night = set.prepare(PlanRequest::new("night", [16]))?;
    let refused = |error: PlanError| match error {
        PlanError::Error(error) => error,
        other => Error::InvalidRequest(other.to_string()),
    };
    let called = Arc::new(AtomicUsize::new(0));
    let of_hook = Arc::clone(&called);
    let hook = device.driver().on_reclaim(move |_| {
        of_hook.fetch_add(1, Ordering::Relaxed);
    });
    let sms = device.resources().sm()?;
    drop(sms.split([8])?);
    assert_eq!(called.load(Ordering::Relaxed), 1);
    let kernel = library.kernel("nothing")?;
    // SAFETY: the kernel has no parameters and touches no memory.
    let step = || unsafe { stream.launch(&kernel, LaunchConfig::new(1, 32), ()) };
    let graph = stream.capture(CaptureMode::default(), step)?;
    let exec = graph.instantiate()?;
    let mut pinned = PinnedBuffer::<u32>::zeroed(&device, 1)?;
    let watch = Watch::new(&context);
    let watching = watch.launches();
    let relaxed = RelaxedCapture::enter(device.driver())?;
    let cache = GraphCache::new();
    cache.get(&graph, &context)?;
    // Groups for the methods that consume them.
    let [to_split, to_join, joined] =
        sms.split([8, 8, 8])?.groups.try_into().map_err(|_| "three groups")?;
    let of_set = joined;
    let [joined, to_dry_run] = sms.split([8, 8])?.groups.try_into().map_err(|_| "two groups")?;
    let moved = |error: RetargetError| match error {
        RetargetError::Error(error) => error,
        other => Error::InvalidRequest(other.to_string()),
    };
    // A second driver that holds only an idle context. The child drops it, and must not destroy the context.
    let (other, alone) = simulated("h200")?;
    drop(partition(&alone, 24)?);

    let calls = called.load(Ordering::Relaxed);
    let stop = Arc::new(AtomicBool::new(false));
    let busy = [(); 3].map(|()| {
        let (sms, stop, cache) = (sms.clone(), Arc::clone(&stop), cache.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // These calls take locks but do not call the driver.
                let _answers = (sms.free_sm_count(), sms.dry_run([8]), cache.len());
            }
        })
    });
    let (watched, of_watcher) = (watch.clone(), Arc::clone(&stop));
    let watcher = thread::spawn(move || {
        while !of_watcher.load(Ordering::Relaxed) {
            drop(watched.launches());
        }
    });
    for _ in 0..CHILDREN {
        // SAFETY: the child depends on no thread of the parent, which is what this test checks, and `_exit`
        // skips the parent's exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `alarm` has no preconditions; the signal ends the child.
            unsafe { libc::alarm(PATIENCE) };
            let forked = |error: &Error| matches!(error, Error::Forked);
            let resource = device.resources().sm();
            // Loads the driver's functions before it finds the existing driver with the same functions.
            let again = Driver::simulated(&sim).err();
            let counts = || (sim.live(), sim.calls(), other.live(), other.calls());
            let before = counts();
            let checks = [
                device.driver().device(0).err(),
                device.create_context(spare).map_err(Error::from).err(),
                context.create_stream(StreamOptions::default()).err(),
                device.create_event(EventOptions::default()).err(),
                sms.dry_run([8]).err(),
                resource.and_then(|sms| sms.split([8])).err(),
                Library::from_ptx(&device, &ptx).err(),
                DeviceBuffer::from_slice(&device, &[1_u32]).err(),
                device.primary_context().err(),
                again,
                event.is_complete().err(),
                set.switch(&night, SwitchOptions::default()).map_err(refused).err(),
                set.retire("night").map_err(refused).err(),
                set.plan("night").map_err(refused).err(),
                // Calls that create no handle.
                buffer.read(&stream).err(),
                buffer.copy_to(&mut pinned, &stream).err(),
                pinned.as_slice().err(),
                step().err(),
                // SAFETY: the graph's kernel touches no memory.
                unsafe { stream.launch_graph(&exec) }.err(),
                stream.launch_host(|| {}).err(),
                exec.upload(&stream).err(),
                stream.is_idle().err(),
                stream.synchronize().err(),
                stream.record(&event).err(),
                stream.wait(&event).err(),
                stream.is_capturing().err(),
                stream.id().err(),
                stream.priority().err(),
                stream.keep_alive().err(),
                event.synchronize().err(),
                event.elapsed_since(&event).err(),
                context.id().err(),
                context.sm_count().err(),
                context.synchronize().err(),
                context.record(&event).err(),
                context.wait(&event).err(),
                context.make_current().map(drop).err(),
                Context::current(device.driver()).err(),
                device.name().err(),
                device.uuid().err(),
                device.sm_count().err(),
                device.total_memory().err(),
                device.free_memory().err(),
                device.stream_priorities().err(),
                library.kernel("nothing").err(),
                kernel.fit(&context, LaunchConfig::new(1, 32)).err(),
                graph.node_count().err(),
                graph.audit().err(),
                graph.instantiate().err(),
                watch.stream("stream", &stream).err(),
                watch.graph("graph", &graph).err(),
                sms.unit_counts(Default::default()).err(),
                RelaxedCapture::enter(device.driver()).map(drop).err(),
                to_dry_run.dry_run([8]).err(),
                to_split.split([8]).map_err(|error| error.reason).err(),
                to_join.join(joined).map_err(|error| error.reason).err(),
                PlanSet::new(of_set, PlanRequest::new("day", [8]))
                    .map_err(|error| refused(error.reason))
                    .err(),
                cache.get(&graph, &context).map_err(moved).err(),
                DefaultStream::Legacy.is_idle(device.driver()).err(),
                DefaultStream::Legacy.synchronize(device.driver()).err(),
                DefaultStream::Legacy.record(&event).err(),
                DefaultStream::Legacy.wait(&event).err(),
                set.prepare(PlanRequest::new("dawn", [8])).map_err(refused).err(),
                graph.retarget(&context).map_err(moved).err(),
                device.partition([8]).err(),
                sms.dry_run_without([8], &[]).err(),
            ];
            // Calls that cannot return an error must find nothing, and must not wait.
            let none = device.driver().find_stream(std::ptr::dangling_mut()).is_none()
                && sms.free_sm_count() == 0
                && device.context_counts() == ContextCounts::default()
                && (cache.len(), set.plans().len()) == (0, 0);
            cache.forget(&context);
            cache.forget_graph(&graph);
            cache.clear();
            let _none = (device.release_idle(), device.set_idle_limit(0));
            let wrong = checks.iter().position(|error| !error.as_ref().is_some_and(forked));
            drop((relaxed, watching));
            drop((watch, pinned, exec, graph, kernel, stream, event, library, buffer, alone, hook));
            let closed = context.close().err().map(|error| (error.reason, error.given));
            let reported = matches!(closed, Some((CloseReason::Driver(Error::Forked), _)));
            drop((closed, device));
            // The parent's reclaim hook must not run in the child either.
            let quiet =
                none && reported && called.load(Ordering::Relaxed) == calls && counts() == before;
            let code = wrong.map_or(if quiet { 0 } else { 100 }, |step| step as i32 + 1);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(code) };
        }
        assert_eq!(ended(child), Ok(0), "the child exits with the number of its first wrong step");
    }
    stop.store(true, Ordering::Relaxed);
    for thread in busy.into_iter().chain([watcher]) {
        thread.join().map_err(|_| "a busy thread panicked")?;
    }

    // The parent still works.
    drop((relaxed, watching, watch, exec, graph));
    context.create_stream(StreamOptions::default())?;
    drop(device.create_context(spare)?);
    assert_eq!(buffer.read(&stream)?, [1]);
    assert!(Error::Forked.to_string().contains("newly started process"));
    // SAFETY: the path names no library, so no code of a library runs.
    assert!(unsafe { Driver::load_from(Path::new("/nowhere/libcuda.so.1")) }.is_err());
    Ok(())
}

/// The child leaves the capture in which the process was forked. Another thread of the parent takes the lock of the
/// open captures all the time.
#[test]
fn a_child_that_is_forked_in_a_capture_leaves_it() -> Outcome {
    let _alone = alone();
    let (_sim, device) = simulated("h200")?;
    let [first, second] = [partition(&device, 8)?, partition(&device, 8)?]
        .map(|context| context.create_stream(StreamOptions::default()));
    let (stream, other) = (first?, second?);
    let stop = Arc::new(AtomicBool::new(false));
    let of_busy = Arc::clone(&stop);
    let busy = thread::spawn(move || -> green_ctx::Result<()> {
        while !of_busy.load(Ordering::Relaxed) {
            other.capture(CaptureMode::ThreadLocal, || Ok::<_, Error>(()))?;
        }
        Ok(())
    });
    // The lock is held more briefly than the ledger's, so there are more children.
    for refuse in [true, false].repeat(10 * CHILDREN) {
        let mut child = -1;
        let captured = stream.capture(CaptureMode::ThreadLocal, || {
            // SAFETY: as in the test above.
            child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as in the test above.
                unsafe { libc::alarm(PATIENCE) };
            }
            if child == 0 && refuse { Err(Error::Forked) } else { Ok(()) }
        });
        if child == 0 {
            let code = i32::from(!matches!(captured, Err(Error::Forked)));
            // SAFETY: as in the test above.
            unsafe { libc::_exit(code) };
        }
        assert_eq!(ended(child), Ok(0));
        captured?;
    }
    stop.store(true, Ordering::Relaxed);
    busy.join().map_err(|_| "the busy thread panicked")??;
    Ok(())
}

//! Partitions of green-ctx in cudarc, and cudarc's objects in green-ctx, on one driver library.

use std::error::Error;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use green_ctx::sim::Sim;
use green_ctx::{
    Device, Driver, Error as Failure, Stream, StreamOptions,
    context::{CloseReason, Context},
    event::EventOptions,
    stream::DefaultStream,
};
use green_ctx_cudarc::{CudarcStream, context_of, device_of, graph_of, reclaim, stream_of};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Creates cudarc's context and this crate's device. No object of an earlier test may be left.
fn machine() -> Result<(Arc<CudaContext>, Device)> {
    let cuda = CudaContext::new(0)?;
    let device = device_of(&Driver::load()?, &cuda)?;
    assert_eq!(device.resources().sm()?.free_sm_count(), scaled(132));
    Ok((cuda, device))
}

/// Checks that neither the ledger, cudarc nor the driver holds anything.
fn finish(cuda: Arc<CudaContext>, device: &Device) -> Result {
    cuda.check_err()?;
    drop(cuda);
    assert_eq!(reclaim(device.driver()), 0);
    assert_eq!(device.resources().sm()?.free_sm_count(), scaled(132));
    device.release_idle();
    // A reserve holds a reference to the primary context.
    assert_eq!(primary_is_active()?, reserved().is_some());
    Ok(())
}

/// Returns the number of SMs that are reserved for partitions, if `xtask` started the tests under a reserve.
fn reserved() -> Option<u32> {
    std::env::var("RESERVED_SMS").ok()?.parse().ok()
}

/// Returns a number of SMs of an H200 or, under a reserve, the same part of the reserve in whole units.
fn scaled(sm_count: u32) -> u32 {
    reserved().map_or(sm_count, |all| (sm_count * all).div_ceil(132).next_multiple_of(8))
}

fn partition(device: &Device, sm_count: u32) -> Result<Context> {
    let group = device.resources().sm()?.split([sm_count])?.groups.remove(0);
    Ok(device.create_context(group)?)
}

fn shared(context: &Context, cuda: &Arc<CudaContext>) -> green_ctx::Result<CudarcStream> {
    CudarcStream::new(&context.create_stream(StreamOptions::default())?, cuda)
}

fn primary_is_active() -> Result<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both integers outlive the call.
    unsafe { sys::cuDevicePrimaryCtxGetState(0, &mut flags, &mut active).result()? };
    Ok(active != 0)
}

fn current() -> Result<usize> {
    let mut raw = null_mut();
    // SAFETY: `raw` outlives the call.
    unsafe { sys::cuCtxGetCurrent(&mut raw).result()? };
    Ok(raw.addr())
}

/// Returns the green context that the driver reports for a stream, as a number.
fn green_of(stream: &CudarcStream) -> Result<usize> {
    let mut green = null_mut();
    // SAFETY: the stream is alive, and `green` outlives the call.
    unsafe { sys::cuStreamGetGreenCtx(stream.cu_stream(), &mut green).result()? };
    Ok(green.addr())
}

#[test]
fn what_cudarc_submits_runs_in_the_partition() -> Result {
    let (cuda, device) = machine()?;
    let context = partition(&device, scaled(16))?;
    let stream = shared(&context, &cuda)?;
    assert_eq!(stream.stream().context(), &context);
    assert_eq!(Some(green_of(&stream)?), context.as_raw_green().map(|green| green.addr()));

    let numbers: Vec<u32> = (0..1000).collect();
    let mut memory = stream.clone_htod(&numbers)?;
    assert_eq!(stream.clone_dtoh(&memory)?, numbers);
    stream.memset_zeros(&mut memory)?;
    assert_eq!(stream.clone_dtoh(&memory)?, [0; 1000]);

    // An SM holds two cooperative blocks of 1024 threads. The largest grid that fits shows on how many SMs the
    // launch runs.
    let text = ".version 7.0 .target sm_52 .address_size 64
        .visible .entry nothing(.param .u64 to) { ret; }";
    let nothing = cuda.load_module(Ptx::from_src(text))?.load_function("nothing")?;
    let fits = |stream: &CudaStream, blocks| {
        let shape =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (1024, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel has one parameter, which it does not use.
        unsafe { stream.launch_builder(&nothing).arg(&memory).launch_cooperative(shape) }.map(drop)
    };
    let too_large = Err(DriverError(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
    let (all, rest) = (2 * scaled(16), 2 * (132 - reserved().unwrap_or(0)));
    assert_eq!((fits(&stream, all), fits(&stream, all + 1)), (Ok(()), too_large));
    // cudarc's own streams run on all SMs that are not reserved, including one forked from the partition's stream.
    for whole in [cuda.new_stream()?, stream.fork()?] {
        assert_eq!((fits(&whole, rest), fits(&whole, rest + 1)), (Ok(()), too_large));
        whole.synchronize()?;
    }
    stream.synchronize()?;
    drop((nothing, memory, stream, context));
    finish(cuda, &device)
}

#[test]
fn partitions_share_memory_in_order() -> Result {
    let (cuda, device) = machine()?;
    let first = shared(&partition(&device, scaled(16))?, &cuda)?;
    let second = shared(&partition(&device, scaled(32))?, &cuda)?;
    assert!(cuda.is_managing_stream_synchronization());
    // cudarc waits if the streams differ. The library's report would show a missing wait.
    let mut memory = first.clone_htod(&[1u8; 64])?;
    for _ in 0..2 {
        second.memset_zeros(&mut memory)?;
        assert_eq!(first.clone_dtoh(&memory)?, [0; 64]);
        first.memcpy_htod(&[2; 64], &mut memory)?;
        let copy = second.clone_dtod(&memory)?;
        assert_eq!(second.clone_dtoh(&copy)?, [2; 64]);
    }
    drop((first, memory, second));
    assert_eq!(reclaim(device.driver()), 0);
    assert!(!cuda.is_managing_stream_synchronization());
    finish(cuda, &device)
}

#[test]
fn a_graph_of_a_partition_is_captured() -> Result {
    let (cuda, device) = machine()?;
    // SAFETY: the memory is used in one stream only.
    unsafe { cuda.disable_event_tracking() };
    let stream = shared(&partition(&device, scaled(16))?, &cuda)?;
    let mut memory = stream.clone_htod(&[1u8; 64])?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    stream.memset_zeros(&mut memory)?;
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("no graph")?;
    assert_eq!(stream.clone_dtoh(&memory)?, [1; 64]);
    graph.launch()?;
    assert_eq!(stream.clone_dtoh(&memory)?, [0; 64]);
    // The graph and the memory keep the stream alive.
    drop(stream);
    assert_eq!(reclaim(device.driver()), 1);
    graph.launch()?;
    drop(graph);
    assert_eq!(reclaim(device.driver()), 1);
    drop(memory);
    finish(cuda, &device)
}

#[test]
fn a_captured_graph_moves_to_another_partition() -> Result {
    let (cuda, device) = machine()?;
    // SAFETY: the streams are ordered below.
    unsafe { cuda.disable_event_tracking() };
    let (first, second) = (partition(&device, scaled(16))?, partition(&device, scaled(32))?);
    let stream = shared(&first, &cuda)?;
    let mut memory = stream.clone_htod(&[1u8; 64])?;
    let text = ".version 7.0 .target sm_52 .address_size 64 .visible .entry step() { ret; }";
    let step = cuda.load_module(Ptx::from_src(text))?.load_function("step")?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    stream.memset_zeros(&mut memory)?;
    // SAFETY: the kernel has no parameters.
    unsafe { stream.launch_builder(&step).launch(LaunchConfig::for_num_elems(1)) }?;
    let captured = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("no graph")?;
    // SAFETY: the kernel and the memory outlive the graph.
    let graph = unsafe { graph_of(device.driver(), &cuda, captured) }?;
    let kernel_on = |sms| format!("kernel step  {sms} SMs of ");
    let audit = graph.audit()?;
    assert_eq!(audit.nodes.len(), 2);
    assert!(audit.to_string().contains(&kernel_on(scaled(16))), "{audit}");
    let moved = graph.retarget(&second)?;
    let audit = moved.audit()?.to_string();
    assert!(audit.contains(&kernel_on(scaled(32))), "{audit}");
    let other = second.create_stream(StreamOptions::default())?;
    let exec = moved.instantiate()?;
    stream.synchronize()?;
    // SAFETY: the earlier work with the memory has ended.
    unsafe { other.launch_graph(&exec) }?;
    other.synchronize()?;
    drop(exec);
    assert_eq!(stream.clone_dtoh(&memory)?, [0; 64]);
    drop((moved, other, second, step));
    // cudarc's graph holds its stream until the last handle of ours is dropped.
    drop((memory, stream, first));
    assert_eq!(reclaim(device.driver()), 1);
    drop(graph);
    assert_eq!(reclaim(device.driver()), 0);
    finish(cuda, &device)
}

#[test]
fn the_partition_ends_with_the_last_of_either() -> Result {
    let (cuda, device) = machine()?;
    let sms = device.resources().sm()?;
    for cudarc_first in [true, false] {
        let context = partition(&device, scaled(120))?;
        let stream = shared(&context, &cuda)?;
        let raw = stream.stream().as_raw();
        let memory = stream.clone_htod(&[1u8, 2, 3])?;
        drop(context);
        if cudarc_first {
            drop((memory, stream));
        } else {
            let theirs = stream.cudarc();
            drop(stream);
            // Both cudarc's memory and its stream keep the partition alive.
            assert!(device.driver().find_stream(raw).is_some());
            assert!(matches!(sms.split([scaled(16)]), Err(Failure::NotEnoughSms(_))));
            assert_eq!(theirs.clone_dtoh(&memory)?, [1, 2, 3]);
            drop(theirs);
            assert!(matches!(sms.split([scaled(16)]), Err(Failure::NotEnoughSms(_))));
            // Nothing reports their drop; the next request for SMs notices it.
            drop(memory);
            assert_eq!(sms.free_sm_count(), scaled(132) - scaled(120));
            drop(sms.split([scaled(120)])?);
        }
        assert_eq!(device.driver().find_stream(raw), None);
        assert_eq!(sms.free_sm_count(), scaled(132));
    }
    finish(cuda, &device)
}

#[test]
fn closing_says_what_cudarc_has() -> Result {
    let (cuda, device) = machine()?;
    let context = partition(&device, scaled(16))?;
    let stream = shared(&context, &cuda)?;
    let memory = stream.alloc_zeros::<u8>(64)?;
    drop(stream);
    let refused = context.close().expect_err("cudarc's memory holds the stream");
    assert!(matches!(refused.reason, CloseReason::Shared { .. }));
    drop(memory);
    let group = refused.given.close()?.ok_or("a partition has a group")?;
    assert_eq!(group.sm_count(), scaled(16));
    drop(group);
    finish(cuda, &device)
}

#[test]
fn cudarcs_context_may_go_first() -> Result {
    let (cuda, device) = machine()?;
    let stream = shared(&partition(&device, scaled(16))?, &cuda)?;
    drop(cuda);
    let memory = stream.clone_htod(&[5u64; 10])?;
    assert_eq!(stream.clone_dtoh(&memory)?, [5; 10]);
    drop(memory);
    let ours = stream.stream().clone();
    // The remaining handle is this crate's, and keeps the primary context alive.
    drop(stream);
    assert!(primary_is_active()?);
    ours.synchronize()?;
    drop(ours);
    finish(CudaContext::new(0)?, &device)
}

#[test]
fn the_current_context_stays() -> Result {
    let (cuda, device) = machine()?;
    let context = partition(&device, scaled(16))?;
    let ours = context.create_stream(StreamOptions::default())?;
    // SAFETY: a null context is valid: it means that no context is current.
    unsafe { sys::cuCtxSetCurrent(null_mut()).result()? };
    for in_partition in [false, true] {
        let guard = if in_partition { Some(context.make_current()?) } else { None };
        let before = current()?;
        let stream = CudarcStream::new(&ours, &cuda)?;
        assert_eq!(current()?, before);
        drop(stream);
        assert_eq!(current()?, before);
        drop(guard);
    }
    drop((ours, context));
    finish(cuda, &device)
}

#[test]
fn cudarcs_streams_are_streams_of_ours() -> Result {
    let (cuda, device) = machine()?;
    let driver = device.driver();
    assert_eq!(device, driver.device(0)?);
    let primary = context_of(driver, &cuda)?;
    assert_eq!(primary, device.primary_context()?);

    let theirs = cuda.new_stream()?;
    let ours = stream_of(driver, &theirs)?;
    assert_eq!(ours, stream_of(driver, &theirs)?);
    assert_eq!(ours.context(), &primary);
    // The partition waits for cudarc's stream, and the reverse.
    let lane = partition(&device, scaled(16))?.create_stream(StreamOptions::default())?;
    lane.wait_for(&ours)?;
    ours.wait_for(&lane)?;
    let event = device.create_event(EventOptions::default())?;
    ours.record(&event)?;
    // This crate's stream keeps cudarc's object alive.
    drop((theirs, cuda));
    ours.synchronize()?;
    assert!(event.is_complete()?);
    drop((ours, lane, event, primary));

    let cuda = CudaContext::new(0)?;
    let token = stream_of(driver, &cuda.default_stream()).err();
    assert!(matches!(token, Some(Failure::DefaultStream { token: DefaultStream::Null })));
    let token = stream_of(driver, &cuda.per_thread_stream()).err();
    assert!(matches!(token, Some(Failure::DefaultStream { token: DefaultStream::PerThread })));
    let stream = shared(&partition(&device, scaled(16))?, &cuda)?;
    assert_eq!(&stream_of(driver, &stream)?, stream.stream());
    drop(stream);
    finish(cuda, &device)
}

#[test]
fn what_does_not_belong_together_is_refused() -> Result {
    let (cuda, device) = machine()?;
    let driver = device.driver();
    let other = CudaContext::new_non_primary(0, 0);
    if reserved().is_some() {
        assert_eq!(other.err(), Some(DriverError(CUresult::CUDA_ERROR_NOT_SUPPORTED)));
        return finish(cuda, &device);
    }
    let other = other?;
    let ours = partition(&device, scaled(16))?.create_stream(StreamOptions::default())?;
    let invalid = |result: green_ctx::Result<_>| {
        let Some(Failure::InvalidRequest(reason)) = result.map(|_: CudarcStream| ()).err() else {
            panic!("not refused, or with another error");
        };
        reason
    };
    assert!(invalid(CudarcStream::new(&ours, &other)).contains("not the device's primary context"));

    let second = CudaContext::new(1)?;
    assert_eq!(device_of(driver, &second)?, driver.device(1)?);
    assert!(matches!(
        CudarcStream::new(&ours, &second).err(),
        Some(Failure::DeviceMismatch { .. })
    ));
    drop(second);

    // A context other than the primary one still belongs to the device.
    assert_eq!(device_of(driver, &other)?, device);
    let borrowed = context_of(driver, &other)?;
    assert_ne!(borrowed, device.primary_context()?);
    drop(other);
    let foreign = borrowed.create_stream(StreamOptions::default())?;
    assert!(invalid(CudarcStream::new(&foreign, &cuda)).contains("neither to a partition"));
    drop((foreign, borrowed));

    // A second driver library, which knows nothing about cudarc's handles. Under a memory checker there is no room for
    // a separate address range, so its first simulator uses the same handle values as the other library.
    let _first = Sim::new("h200")?;
    let simulated = Driver::simulated(&Sim::new("h200")?)?;
    let theirs = partition(&simulated.device(0)?, 16)?.create_stream(StreamOptions::default())?;
    assert!(invalid(CudarcStream::new(&theirs, &cuda)).contains("different driver libraries"));
    let refused = device_of(&simulated, &cuda).err();
    assert!(matches!(refused, Some(Failure::InvalidRequest(_))));
    drop((ours, theirs));
    finish(cuda, &device)
}

#[test]
fn threads_share_and_drop_streams() -> Result {
    let (cuda, device) = machine()?;
    let context = partition(&device, scaled(64))?;
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            let (cuda, context) = (&cuda, &context);
            scope.spawn(move || {
                for _ in 0..10 {
                    let stream = shared(context, cuda).expect("a stream");
                    let memory = stream.clone_htod(&[number; 10]).expect("memory");
                    drop(stream);
                    let back = memory.stream().clone_dtoh(&memory).expect("numbers");
                    assert_eq!(back, [number; 10]);
                }
            });
        }
    });
    assert_eq!(reclaim(device.driver()), 0);
    drop(context);
    finish(cuda, &device)
}

/// The owner of a borrowed stream. Its drop runs in the middle of a release.
struct Slow {
    stream: Arc<CudaStream>,
    begun: Sender<()>,
    /// Receives the end of the other thread's split, and how long the drop waits for it.
    split: Mutex<Receiver<()>>,
    patience: Duration,
    /// The device that the drop itself splits.
    device: Option<Device>,
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.begun.send(()).expect("the test receives");
        let _ended = self.split.lock().expect("no panic").recv_timeout(self.patience);
        self.stream.synchronize().expect("the stream is alive");
        if let Some(device) = &self.device {
            drop(partition(device, scaled(120)).expect("the SMs of the other stream"));
        }
    }
}

/// Two streams in the list become unused. While one thread is in the middle of releasing the first stream, another
/// thread requests the SMs of the second stream.
fn split_during_a_release(patience: Duration, splits_too: bool) -> Result {
    let (cuda, device) = machine()?;
    let ((begun, has_begun), (split, has_split)) = (channel(), channel());
    let theirs = cuda.new_stream()?;
    let owner = Slow {
        stream: Arc::clone(&theirs),
        begun,
        split: Mutex::new(has_split),
        patience,
        device: splits_too.then(|| device.clone()),
    };
    let raw = theirs.cu_stream().cast();
    // SAFETY: the owner keeps the stream alive.
    let borrowed = unsafe { Stream::from_raw_borrowed(device.driver(), raw, owner) }?;
    let slow = CudarcStream::new(&borrowed, &cuda)?;
    let other = shared(&partition(&device, scaled(120))?, &cuda)?;
    let memory = (slow.clone_htod(&[1u8])?, other.clone_htod(&[1u8])?);
    drop((theirs, borrowed, slow, other));
    assert_eq!(reclaim(device.driver()), 2);
    drop(memory);
    thread::scope(|scope| -> Result {
        let releasing = scope.spawn(|| reclaim(device.driver()));
        has_begun.recv()?;
        let context = partition(&device, scaled(120));
        // The release has already ended, unless it waits for this.
        let _ended = split.send(());
        assert_eq!(releasing.join().expect("no panic"), 0);
        context.map(drop)
    })?;
    finish(cuda, &device)
}

#[test]
fn a_split_during_a_release_gets_the_sms() -> Result {
    let short = Duration::from_millis(300);
    split_during_a_release(short, false)?;
    split_during_a_release(short, true)?;
    // The release waits for the split, which stops waiting for the release.
    split_during_a_release(Duration::from_secs(60), false)
}

/// This client is built without the feature.
#[test]
fn a_reserve_is_not_ignored() {
    // SAFETY: one test runs at a time.
    unsafe { std::env::set_var("GREEN_CTX_RESERVE", "32") };
    let refused = Driver::reserve_from_environment();
    // SAFETY: as above.
    unsafe { std::env::remove_var("GREEN_CTX_RESERVE") };
    let error = refused.expect_err("it would confine nothing");
    assert!(error.to_string().contains("without the feature `reserve`"), "{error}");
    assert!(Driver::reserve_from_environment().is_ok());
}

#[test]
fn a_forked_child_leaves_cudarc_alone() -> Result {
    let (cuda, device) = machine()?;
    let stream = shared(&partition(&device, scaled(16))?, &cuda)?;
    // SAFETY: no other test runs at the same time, so the child needs no other thread. It ends without the
    // parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let reported =
            matches!(CudarcStream::new(stream.stream(), &cuda).err(), Some(Failure::Forked));
        drop(stream);
        // cudarc's stream, whose green context ends with this crate's stream, was not destroyed.
        let quiet = cuda.is_managing_stream_synchronization() && reclaim(device.driver()) == 0;
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(if reported && quiet { 0 } else { 1 }) };
    }
    assert!(child > 0, "the fork failed");
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(stream);
    assert!(!cuda.is_managing_stream_synchronization());
    finish(cuda, &device)
}

//! Partitions of green-ctx in cuda-core, and cuda-core's streams in green-ctx, on the simulated `libcuda.so.1`.

use std::error::Error;
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cuda_core::sys::{
    self, cudaError_enum_CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE as TOO_LARGE,
    cudaError_enum_CUDA_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};
use cuda_core::{
    DeviceBuffer, DriverError, Function, IntoResult, RawDeviceBuffer,
    launch_kernel_cooperative_on_stream, launch_kernel_on_stream, malloc_async,
};
use green_ctx::{
    Device, Driver, Error as Failure, Stream, StreamOptions,
    context::{CloseReason, Context},
    sim::Sim,
    stream::DefaultStream,
};
use green_ctx_cuda_core::{cuda_core_stream, device_of, stream_of};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const PTX: &str = ".version 7.0 .target sm_52 .address_size 64 .visible .entry nothing() { ret; }";

/// Creates cuda-core's context and this crate's device. No object of an earlier test may be left.
fn machine() -> Result<(Arc<cuda_core::Context>, Device)> {
    let cuda = cuda_core::Context::new(0)?;
    let device = device_of(&Driver::load()?, &cuda)?;
    assert_eq!(device.resources().sm()?.free_sm_count(), scaled(132));
    Ok((cuda, device))
}

/// Checks that neither the ledger, cuda-core nor the driver holds anything. cuda-core frees memory on its own thread.
fn finish(cuda: Arc<cuda_core::Context>, device: &Device) -> Result {
    cuda.check_err()?;
    drop(cuda);
    assert_eq!(device.resources().sm()?.free_sm_count(), scaled(132));
    device.release_idle();
    // A reserve holds a reference to the primary context.
    within_seconds(|| Ok(primary_is_active()? == reserved().is_some()))
}

/// Returns the number of SMs that are reserved for partitions, if `xtask` started the tests under a reserve.
fn reserved() -> Option<u32> {
    std::env::var("RESERVED_SMS").ok()?.parse().ok()
}

/// Returns a number of SMs of an H200 or, under a reserve, the same part of the reserve in whole units.
fn scaled(sm_count: u32) -> u32 {
    reserved().map_or(sm_count, |all| (sm_count * all).div_ceil(132).next_multiple_of(8))
}

/// Waits until cuda-core's thread has done something.
fn within_seconds(is_done: impl Fn() -> Result<bool>) -> Result {
    let begin = Instant::now();
    while !is_done()? {
        assert!(begin.elapsed() < Duration::from_secs(20), "cuda-core's thread did not do it");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn primary_is_active() -> Result<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both integers outlive the call.
    unsafe { sys::cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) }.result()?;
    Ok(active != 0)
}

fn partition(device: &Device, sm_count: u32) -> Result<Context> {
    let group = device.resources().sm()?.split([sm_count])?.groups.remove(0);
    Ok(device.create_context(group)?)
}

fn lent(
    context: &Context,
    cuda: &Arc<cuda_core::Context>,
) -> green_ctx::Result<Arc<cuda_core::Stream>> {
    cuda_core_stream(&context.create_stream(StreamOptions::default())?, cuda)
}

/// Returns the green context that the driver reports for a stream, as a number.
fn green_of(stream: &cuda_core::Stream) -> Result<usize> {
    let mut green = null_mut();
    // SAFETY: the stream is alive, and `green` outlives the call.
    unsafe { sys::cuStreamGetGreenCtx(stream.cu_stream(), &mut green) }.result()?;
    Ok(green.addr())
}

/// Launches a cooperative grid. An SM holds two blocks, so the largest grid that fits shows on how many SMs the launch
/// runs.
fn launch(
    kernel: &Function,
    stream: &cuda_core::Stream,
    blocks: u32,
) -> std::result::Result<(), DriverError> {
    let (grid, block) = ((blocks, 1, 1), (1024, 1, 1));
    // SAFETY: the kernel has no parameters, and uses no memory.
    unsafe { launch_kernel_cooperative_on_stream(kernel, grid, block, 0, stream, &mut []) }
}

#[test]
fn what_cuda_core_submits_runs_in_the_partition() -> Result {
    let (cuda, device) = machine()?;
    let context = partition(&device, scaled(16))?;
    let ours = context.create_stream(StreamOptions::default())?;
    let stream = cuda_core_stream(&ours, &cuda)?;
    assert_eq!(stream.cu_stream().addr(), ours.as_raw().addr());
    assert_eq!(Some(green_of(&stream)?), context.as_raw_green().map(|green| green.addr()));

    let numbers: Vec<u32> = (0..1000).collect();
    let mut memory = DeviceBuffer::from_host(&stream, &numbers)?;
    assert_eq!(memory.to_host_vec(&stream)?, numbers);
    memory.zero_async(&stream)?;
    assert_eq!(memory.to_host_vec(&stream)?, [0; 1000]);

    let nothing = cuda.load_module_from_ptx_src(PTX)?.load_function("nothing")?;
    let too_large = Err(DriverError(TOO_LARGE));
    // cuda-core's own streams run on all SMs that are not reserved, including one forked from the partition's stream.
    let rest = 132 - reserved().unwrap_or(0);
    let (own, forked) = (cuda.new_stream()?, stream.fork()?);
    for (stream, sm_count) in [(&stream, scaled(16)), (&own, rest), (&forked, rest)] {
        let fits = [2 * sm_count, 2 * sm_count + 1].map(|blocks| launch(&nothing, stream, blocks));
        assert_eq!(fits, [Ok(()), too_large]);
        stream.synchronize()?;
    }
    drop((nothing, memory, own, forked, stream, ours, context));
    finish(cuda, &device)
}

#[test]
fn a_stream_lives_while_cuda_core_has_it() -> Result {
    let (cuda, device) = machine()?;
    let sms = device.resources().sm()?;
    let context = partition(&device, scaled(120))?;
    let stream = lent(&context, &cuda)?;
    let raw = stream.cu_stream().cast();
    let refused = context.close().expect_err("cuda-core has the stream");
    assert!(matches!(refused.reason, CloseReason::Shared { .. }));
    drop(refused);

    // Both an `Arc` and memory that is freed in the stream's order keep the partition alive.
    // SAFETY: the memory is freed by the buffer below, which no other work uses.
    let memory = unsafe { malloc_async(4096, &stream) }?;
    // SAFETY: as above.
    let memory = unsafe { RawDeviceBuffer::from_raw_parts_async(memory, 4096, stream.clone()) };
    drop(stream);
    assert!(device.driver().find_stream(raw).is_some());
    assert!(matches!(sms.split([scaled(16)]), Err(Failure::NotEnoughSms(_))));
    drop(memory);
    within_seconds(|| Ok(sms.free_sm_count() == scaled(132)))?;
    assert_eq!(device.driver().find_stream(raw), None);

    // Without work, the last drop itself gives the SMs back.
    let stream = lent(&partition(&device, scaled(120))?, &cuda)?;
    let memory = DeviceBuffer::from_host(&stream, &[1u8, 2, 3])?;
    assert_eq!(memory.to_host_vec(&stream)?, [1, 2, 3]);
    drop(stream);
    assert_eq!(sms.split([scaled(120)])?.groups[0].sm_count(), scaled(120));
    drop(memory);
    finish(cuda, &device)
}

#[test]
fn a_stream_with_work_is_released_after_its_work() -> Result {
    let (cuda, device) = machine()?;
    let sms = device.resources().sm()?;
    let stream = lent(&partition(&device, scaled(120))?, &cuda)?;
    let nothing = cuda.load_module_from_ptx_src(PTX)?.load_function("nothing")?;
    let (grid, block) = ((u32::MAX / 2, 1, 1), (1024, 1, 1));
    // SAFETY: the kernel has no parameters, and uses no memory.
    unsafe { launch_kernel_on_stream(&nothing, grid, block, 0, &stream, &mut []) }?;
    let end = stream.record_event(None)?;
    drop(stream);
    assert!(!end.query()?);
    assert!(matches!(sms.split([scaled(16)]), Err(Failure::NotEnoughSms(_))));
    end.synchronize()?;
    within_seconds(|| Ok(sms.free_sm_count() == scaled(132)))?;
    drop((end, nothing));
    finish(cuda, &device)
}

#[test]
fn cuda_cores_context_may_go_first() -> Result {
    let (cuda, device) = machine()?;
    let stream = lent(&partition(&device, scaled(16))?, &cuda)?;
    drop(cuda);
    let memory = DeviceBuffer::from_host(&stream, &[5u64; 10])?;
    assert_eq!(memory.to_host_vec(&stream)?, [5; 10]);
    drop((memory, stream));
    finish(cuda_core::Context::new(0)?, &device)
}

#[test]
fn cuda_cores_streams_are_streams_of_ours() -> Result {
    let (cuda, device) = machine()?;
    let driver = device.driver();
    let theirs = cuda.new_stream()?;
    let ours = stream_of(driver, &theirs)?;
    assert_eq!(ours, stream_of(driver, &theirs)?);
    assert_eq!(ours.context(), &device.primary_context()?);
    // The partition waits for cuda-core's stream, and the reverse.
    let lane = partition(&device, scaled(16))?.create_stream(StreamOptions::default())?;
    lane.wait_for(&ours)?;
    ours.wait_for(&lane)?;
    // This crate's stream keeps cuda-core's object alive.
    let weak = Arc::downgrade(&theirs);
    drop(theirs);
    ours.synchronize()?;
    assert_eq!(weak.strong_count(), 1);
    drop(ours);
    assert_eq!(weak.strong_count(), 0);

    // The conversion back gives the same stream.
    assert_eq!(stream_of(driver, &cuda_core_stream(&lane, &cuda)?)?, lane);
    let token = stream_of(driver, &cuda.default_stream()).err();
    assert!(matches!(token, Some(Failure::DefaultStream { token: DefaultStream::Null })));
    drop(lane);
    finish(cuda, &device)
}

fn refused(stream: &Stream, cuda: &Arc<cuda_core::Context>) -> Failure {
    cuda_core_stream(stream, cuda).expect_err("not refused")
}

/// Returns the reason of an `InvalidRequest`.
fn invalid(stream: &Stream, cuda: &Arc<cuda_core::Context>) -> String {
    match refused(stream, cuda) {
        Failure::InvalidRequest(reason) => reason,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn what_does_not_belong_together_is_refused() -> Result {
    let (cuda, device) = machine()?;
    let driver = device.driver();
    let context = partition(&device, scaled(16))?;
    let ours = context.create_stream(StreamOptions::default())?;
    let second = cuda_core::Context::new(1)?;
    assert_eq!(device_of(driver, &second)?, driver.device(1)?);
    assert!(matches!(refused(&ours, &second), Failure::DeviceMismatch { .. }));

    // SAFETY: the partition's context outlives the result.
    let green = unsafe { cuda_core::Context::borrow_raw(context.as_raw().cast(), 0, 0) };
    assert!(invalid(&ours, &green).contains("not the device's primary context"));
    drop(green);

    let mut raw = null_mut();
    // SAFETY: `raw` outlives the call, and null parameters are valid.
    let created = unsafe { sys::cuCtxCreate_v4(&mut raw, null_mut(), 0, 0) }.result();
    if reserved().is_some() {
        assert_eq!(created, Err(DriverError(NOT_SUPPORTED)));
    } else {
        created?;
        // SAFETY: the context is destroyed after the last handle of the result is dropped.
        let foreign = unsafe { Context::from_raw_borrowed(driver, raw.cast(), ()) }?;
        let stream = foreign.create_stream(StreamOptions::default())?;
        assert!(invalid(&stream, &cuda).contains("neither to a partition"));
        drop((stream, foreign));
        // SAFETY: no code uses the context.
        unsafe { sys::cuCtxDestroy_v2(raw) }.result()?;
    }

    // A second driver library with one device. Under a memory checker there is no room for a separate address range,
    // so its first simulator uses the same handle values as the other library.
    let _first = Sim::new("h200")?;
    let simulated = Driver::simulated(&Sim::new("h200")?)?;
    let theirs = partition(&simulated.device(0)?, 16)?.create_stream(StreamOptions::default())?;
    assert!(invalid(&theirs, &cuda).contains("load the same driver library"));
    let absent = device_of(&simulated, &second).expect_err("no second device");
    assert!(matches!(absent, Failure::NoSuchDevice { ordinal: 1, count: 1 }));
    drop((theirs, second, ours, context));
    finish(cuda, &device)
}

#[test]
fn the_current_context_stays() -> Result {
    let (cuda, device) = machine()?;
    let ours = partition(&device, scaled(16))?.create_stream(StreamOptions::default())?;
    // SAFETY: a null context is valid: it means that no context is current.
    unsafe { sys::cuCtxSetCurrent(null_mut()) }.result()?;
    let stream = cuda_core_stream(&ours, &cuda)?;
    let mut current = null_mut();
    // SAFETY: `current` outlives the call.
    unsafe { sys::cuCtxGetCurrent(&mut current) }.result()?;
    assert!(current.is_null());
    drop((stream, ours));
    finish(cuda, &device)
}

#[test]
fn threads_share_and_drop_streams() -> Result {
    let (cuda, device) = machine()?;
    let context = partition(&device, scaled(64))?;
    thread::scope(|scope| {
        for number in 0..4u64 {
            let (cuda, context) = (&cuda, &context);
            scope.spawn(move || {
                for _ in 0..10 {
                    let stream = lent(context, cuda).expect("a stream");
                    let mut memory =
                        DeviceBuffer::from_host(&stream, &[number; 10]).expect("memory");
                    assert_eq!(memory.to_host_vec(&stream).expect("numbers"), [number; 10]);
                    memory.zero_async(&stream).expect("a memset");
                }
            });
        }
    });
    let sms = device.resources().sm()?;
    drop(context);
    within_seconds(|| Ok(sms.free_sm_count() == scaled(132)))?;
    finish(cuda, &device)
}

#[test]
fn a_forked_child_gets_no_stream() -> Result {
    let (cuda, device) = machine()?;
    let ours = partition(&device, scaled(16))?.create_stream(StreamOptions::default())?;
    // SAFETY: the child needs no other thread, and ends without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_reported = matches!(cuda_core_stream(&ours, &cuda).err(), Some(Failure::Forked));
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(if is_reported { 0 } else { 1 }) };
    }
    assert!(child > 0, "the fork failed");
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(ours);
    finish(cuda, &device)
}

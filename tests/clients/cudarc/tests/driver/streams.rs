//! Contexts, streams, memory and events through cudarc's safe API, and a partition's stream in it.

use std::error::Error;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use cudarc::driver::{CudaContext, DriverError};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

#[test]
fn a_device_says_what_it_is() -> Result {
    assert_eq!(CudaContext::device_count()?, 2);
    let context = CudaContext::new(0)?;
    assert_eq!(context.name()?, "NVIDIA H200");
    assert_eq!(context.compute_capability()?, (9, 0));
    let (free, total) = context.mem_get_info()?;
    assert!(0 < free && free < total && total == context.total_mem()?);
    assert_eq!(CudaContext::new(7).err(), Some(DriverError(CUresult::CUDA_ERROR_INVALID_DEVICE)));
    Ok(())
}

#[test]
fn memory_is_copied_both_ways() -> Result {
    let context = CudaContext::new(0)?;
    for stream in [context.default_stream(), context.new_stream()?] {
        let numbers: Vec<u32> = (0..1000).collect();
        let mut memory = stream.clone_htod(&numbers)?;
        assert_eq!(stream.clone_dtoh(&memory)?, numbers);
        // A part of it.
        stream.memcpy_htod(&[7; 10], &mut memory.slice_mut(990..))?;
        let back = stream.clone_dtoh(&memory)?;
        assert_eq!((&back[..990], &back[990..]), (&numbers[..990], &[7; 10][..]));
        stream.memset_zeros(&mut memory)?;
        assert!(stream.clone_dtoh(&memory)?.iter().all(|&number| number == 0));
        stream.synchronize()?;
    }
    context.synchronize()?;
    Ok(context.check_err()?)
}

#[test]
fn events_order_streams() -> Result {
    let context = CudaContext::new(0)?;
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let start = first.record_event(timed)?;
    let mut memory = first.alloc_zeros::<u8>(1 << 20)?;
    let end = first.record_event(timed)?;
    second.wait(&end)?;
    // The second stream takes over what the first has filled.
    second.memcpy_htod(&[5; 16], &mut memory.slice_mut(..16))?;
    second.join(&first)?;
    second.synchronize()?;
    assert!(start.is_complete() && end.is_complete());
    assert!(start.elapsed_ms(&end)? > 0.0);
    assert_eq!(second.clone_dtoh(&memory.slice(..17))?, [&[5; 16][..], &[0]].concat());
    let third = second.fork()?;
    third.synchronize()?;
    Ok(context.check_err()?)
}

#[test]
fn threads_share_a_context() -> Result {
    let context = CudaContext::new(0)?;
    let copied = |number: u64| -> std::result::Result<Vec<u64>, DriverError> {
        let stream = context.new_stream()?;
        let memory = stream.clone_htod(&vec![number; 100])?;
        stream.clone_dtoh(&memory)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || copied(number))).collect();
        for (number, thread) in (0..).zip(threads) {
            let back = thread.join().expect("no thread panics");
            assert_eq!(back, Ok(vec![number; 100]));
        }
    });
    Ok(())
}

#[test]
fn a_context_of_its_own() -> Result {
    let primary = CudaContext::new(0)?;
    let flags = sys::CUctx_flags::CU_CTX_SCHED_YIELD as u32;
    let context = CudaContext::new_non_primary(0, flags)?;
    assert!(!context.is_primary() && context != primary);
    let stream = context.new_stream()?;
    let memory = stream.clone_htod(&[4u16, 5, 6])?;
    assert_eq!(stream.clone_dtoh(&memory)?, [4, 5, 6]);
    drop((memory, stream));
    context.check_err()?;
    drop(context);
    Ok(primary.check_err()?)
}

#[test]
fn a_partitions_stream_is_a_stream() -> Result {
    let context = CudaContext::new(0)?;
    // SAFETY: all bytes of a resource may be zero.
    let (mut device, mut group) = unsafe { std::mem::zeroed::<(sys::CUdevResource, _)>() };
    let (mut count, mut desc, mut green, mut raw) = (1, null_mut(), null_mut(), null_mut());
    let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    // SAFETY: each pointer is to a variable of the type that the function fills.
    unsafe {
        sys::cuDeviceGetDevResource(0, &mut device, kind).result()?;
        sys::cuDevSmResourceSplitByCount(&mut group, &mut count, &device, null_mut(), 0, 16)
            .result()?;
        sys::cuDevResourceGenerateDesc(&mut desc, &mut group, 1).result()?;
        sys::cuGreenCtxCreate(&mut green, desc, 0, 1).result()?;
        sys::cuGreenCtxStreamCreate(&mut raw, green, 1, 0).result()?;
    }
    // SAFETY: the stream lives until it is destroyed below, when nothing of cudarc has it.
    let stream = unsafe { context.wrap_borrowed_stream(raw) };
    let memory = stream.clone_htod(&[1u8, 2, 3])?;
    assert_eq!(stream.clone_dtoh(&memory)?, [1, 2, 3]);
    drop((memory, stream));
    // SAFETY: both handles were made above and are used for the last time.
    unsafe {
        sys::cuStreamDestroy_v2(raw).result()?;
        sys::cuGreenCtxDestroy(green).result()?;
    }
    Ok(context.check_err()?)
}

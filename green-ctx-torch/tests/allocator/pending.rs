//! Memory that was freed behind running work. Another stream gets it after a wait.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

use green_ctx::sys::{CUstream, CUstream_st};
use green_ctx::{
    Kernel, LaunchConfig, Library, Stream, StreamOptions, call, context::Context,
    graph::CaptureMode,
};
use green_ctx_torch::{allocator::c, runtime};

use crate::machine::{Machine, Outcome, alloc, free, last_error};
use crate::raw::{self, Green};

const PTX: &str = "
    .version 5.0
    .target sm_52
    .address_size 64
    .visible .entry fill(.param .u64 to) { ret; }
";
/// Longer than the calls of a test.
const LONG_NS: u64 = 50_000_000;
const PER_THREAD: usize = 2;

/// A device, a long kernel, and a size of more than half of the memory in bytes.
struct Scarce {
    machine: Machine,
    kernel: Kernel,
    most: usize,
}

impl Scarce {
    fn new() -> Result<Scarce, Box<dyn std::error::Error>> {
        // The simulated part with the least memory.
        let machine = Machine::of("rtx5080@13.0")?;
        machine.sim.register_kernel("fill", |kernel| {
            kernel.set_duration_ns(LONG_NS);
            let _ = kernel.write(kernel.param_u64(0).unwrap_or(0), &[7; 64]);
        });
        let kernel = Library::from_ptx(&machine.device, PTX)?.kernel("fill")?;
        let most = usize::try_from(runtime::memory_info(&machine.device)?.free / 8 * 5)?;
        Ok(Scarce { machine, kernel, most })
    }

    fn launch(&self, stream: &Stream, block: *mut c_void) -> green_ctx::Result<()> {
        // SAFETY: the kernel writes 64 bytes, which the block has.
        unsafe { stream.launch(&self.kernel, LaunchConfig::new(16, 128), (block.addr() as u64,)) }
    }

    /// Uses most of the memory on a stream for a while, and frees it on the stream.
    fn keep_busy(&self, stream: CUstream) -> Outcome {
        let block = alloc(self.most, stream);
        assert!(!block.is_null(), "{}", last_error());
        let api = self.machine.device.driver().api();
        let mut address = block.addr() as u64;
        let mut params = [(&raw mut address).cast()];
        let function = self.kernel.as_raw().cast();
        // SAFETY: the kernel takes one address and writes 64 bytes there, which the block has.
        unsafe {
            call!(
                api,
                cuLaunchKernel(
                    function,
                    16,
                    1,
                    1,
                    128,
                    1,
                    1,
                    0,
                    stream,
                    params.as_mut_ptr(),
                    null_mut()
                )
            )
        }?;
        free(block, stream);
        Ok(())
    }

    fn end(self) -> Outcome {
        assert_eq!(self.machine.sim.races(), []);
        drop(self.kernel);
        self.machine.end()
    }
}

#[test]
fn an_allocation_waits_for_what_another_partition_frees() -> Outcome {
    let scarce = Scarce::new()?;
    let (decode, prefill) =
        (scarce.machine.stream("decode", 16)?, scarce.machine.stream("prefill", 32)?);
    scarce.keep_busy(decode.as_raw())?;
    assert!(!decode.is_idle()?);
    let block = alloc(scarce.most, prefill.as_raw());
    assert!(!block.is_null(), "{}", last_error());
    assert!(decode.is_idle()?, "its memory cannot be had before");
    let usage = scarce.machine.allocator.usage();
    assert_eq!((usage.failures, usage.refusals, usage.current_blocks), (0, 0, 1));
    scarce.launch(&prefill, block)?;
    free(block, prefill.as_raw());
    // On the same stream, the memory is available in stream order, and the host does not wait.
    free(alloc(scarce.most, prefill.as_raw()), prefill.as_raw());
    assert!(!prefill.is_idle()?);
    drop((decode, prefill));
    scarce.end()
}

/// Frees memory on some stream, and does what must be done before another stream allocates.
type Case = fn(&Scarce, &Context) -> Outcome;

#[test]
fn whatever_the_stream_is_it_is_waited_for() -> Outcome {
    let cases: [(&str, Case); 5] = [
        ("the primary context's default stream", |scarce, _| {
            let primary = scarce.machine.device.primary_context()?;
            let _current = primary.make_current()?;
            scarce.keep_busy(null_mut())
        }),
        ("a partition's default stream", |scarce, decode| {
            let _current = decode.make_current()?;
            scarce.keep_busy(null_mut())
        }),
        ("a foreign stream that is destroyed", |scarce, decode| {
            let foreign = raw::stream(decode)?;
            scarce.keep_busy(foreign)?;
            Ok(raw::destroy_stream(&scarce.machine.device, foreign)?)
        }),
        ("a foreign stream that frees twice", |scarce, _| {
            let foreign = raw::stream(&scarce.machine.device.primary_context()?)?;
            free(alloc(64, foreign), foreign);
            scarce.keep_busy(foreign)?;
            Ok(raw::destroy_stream(&scarce.machine.device, foreign)?)
        }),
        ("another thread's default stream", |scarce, _| {
            let token = || without_provenance_mut::<CUstream_st>(PER_THREAD);
            let primary = scarce.machine.device.primary_context()?;
            std::thread::scope(|scope| {
                let busy = scope.spawn(|| {
                    let _current = primary.make_current().map_err(|error| error.to_string())?;
                    scarce.keep_busy(token()).map_err(|error| error.to_string())
                });
                busy.join().map_err(|_| "a panic")?
            })?;
            Ok(())
        }),
    ];
    for (name, case) in cases {
        let scarce = Scarce::new()?;
        let prefill = scarce.machine.stream("prefill", 32)?;
        let decode = scarce.machine.partition("decode", 16)?;
        case(&scarce, &decode).map_err(|error| format!("{name}: {error}"))?;
        let block = alloc(scarce.most, prefill.as_raw());
        assert!(!block.is_null(), "{name}: {}", last_error());
        free(block, prefill.as_raw());
        assert_eq!(scarce.machine.sim.races(), [], "{name}");
    }
    Ok(())
}

#[test]
fn a_foreign_context_s_default_stream_is_waited_for() -> Outcome {
    let scarce = Scarce::new()?;
    let prefill = scarce.machine.stream("prefill", 32)?;
    let elsewhere = Green::create(&scarce.machine.device)?;
    raw::push(&scarce.machine.device, elsewhere.context)?;
    scarce.keep_busy(null_mut())?;
    raw::pop(&scarce.machine.device)?;
    let block = alloc(scarce.most, prefill.as_raw());
    assert!(!block.is_null(), "{}", last_error());
    free(block, prefill.as_raw());
    drop((elsewhere, prefill));
    scarce.end()
}

#[test]
fn captures_go_on() -> Outcome {
    let scarce = Scarce::new()?;
    let (decode, prefill) =
        (scarce.machine.stream("decode", 16)?, scarce.machine.stream("prefill", 32)?);
    // The allocating stream is captured.
    scarce.keep_busy(decode.as_raw())?;
    let mut block = null_mut();
    let graph = prefill.capture(CaptureMode::Global, || {
        block = alloc(scarce.most, prefill.as_raw());
        assert!(!block.is_null(), "{}", last_error());
        scarce.launch(&prefill, block)
    })?;
    assert_eq!(graph.node_count()?, 1, "the kernel alone");
    drop(graph);
    free(block, prefill.as_raw());
    prefill.synchronize()?;
    // The freeing stream is captured: it is not waited for, and the capture stays valid.
    scarce.keep_busy(decode.as_raw())?;
    let kept = alloc(64, decode.as_raw());
    let graph = decode.capture(CaptureMode::Global, || {
        assert!(alloc(scarce.most, prefill.as_raw()).is_null());
        scarce.launch(&decode, kept)
    })?;
    assert_eq!(graph.node_count()?, 1);
    assert!(last_error().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", last_error());
    drop(graph);
    free(kept, decode.as_raw());
    free(alloc(scarce.most, prefill.as_raw()), prefill.as_raw());
    assert_eq!(scarce.machine.allocator.usage().failures, 1);
    drop((decode, prefill));
    scarce.end()
}

#[test]
fn a_limit_waits_for_nothing() -> Outcome {
    let scarce = Scarce::new()?;
    let (decode, prefill) =
        (scarce.machine.stream("decode", 16)?, scarce.machine.stream("prefill", 32)?);
    scarce.keep_busy(decode.as_raw())?;
    assert_eq!(c::green_ctx_torch_set_limit(0, scarce.most as u64 - 1), 0);
    assert!(alloc(scarce.most, prefill.as_raw()).is_null());
    assert!(!decode.is_idle()?);
    assert_eq!(scarce.machine.allocator.usage().refusals, 1);
    drop((decode, prefill));
    scarce.end()
}

#[test]
fn shareable_memory_waits_too() -> Outcome {
    let scarce = Scarce::new()?;
    let (decode, prefill) =
        (scarce.machine.stream("decode", 16)?, scarce.machine.stream("prefill", 32)?);
    scarce.keep_busy(decode.as_raw())?;
    scarce.machine.allocator.set_shareable(true);
    let block = alloc(scarce.most, prefill.as_raw());
    assert!(!block.is_null(), "{}", last_error());
    free(block, prefill.as_raw());
    drop((decode, prefill));
    scarce.end()
}

/// The list of streams is bounded and keeps no partition alive.
#[test]
fn few_streams_are_remembered() -> Outcome {
    let machine = Machine::new()?;
    let primary = machine.device.primary_context()?;
    for _ in 0..200 {
        let ours = primary.create_stream(StreamOptions::default())?;
        let foreign = raw::stream(&primary)?;
        for stream in [ours.as_raw(), foreign] {
            free(alloc(64, stream), stream);
        }
        raw::destroy_stream(&machine.device, foreign)?;
    }
    assert!(machine.sim.live().events <= 64, "{:?}", machine.sim.live());
    let stream = machine.stream("decode", 16)?;
    free(alloc(64, stream.as_raw()), stream.as_raw());
    drop(stream);
    assert_eq!(machine.device.resources().sm()?.free_sm_count(), 132);
    // Nothing is pending, and a request for more than the device has still fails.
    let total = machine.device.total_memory()?;
    assert!(alloc(total, null_mut()).is_null());
    drop(primary);
    machine.end()
}

//! Occupancy: how many blocks and clusters fit, and which shapes the driver suggests.

use std::ffi::c_int;
use std::ptr::null_mut;

use green_ctx_sys::{CUfunction, CUfunction_attribute, CUlaunchConfig, CUresult, CUstream};
use serde_json::{Value, json};

use super::library::{kernel, library};
use super::{Case, Needs};
use crate::answer::{Fact, Failure};
use crate::calls::Reply;
use crate::gpu::Gpu;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = of_blocks();
    cases.extend(of_suggestions());
    cases.extend(of_clusters());
    cases
}

/// Returns a function of the library cases.
fn function(gpu: &Gpu, name: &std::ffi::CStr) -> Result<CUfunction, Failure> {
    gpu.cuKernelGetFunction(kernel(gpu, library(gpu)?, name)?)?.must()
}

fn allow(gpu: &Gpu, function: CUfunction, number: u32, value: i32) -> Result<(), Failure> {
    gpu.cuFuncSetAttribute(function, CUfunction_attribute(number), value)?.must()
}

/// The attributes that cases set: dynamic shared memory, carve-out, non-portable clusters.
const SHARED: u32 = 8;
const CARVEOUT: u32 = 9;
const NON_PORTABLE: u32 = 14;

fn fact<T>(reply: &Reply<T>, value: impl Into<Value>) -> Value {
    json!([reply.status.value(), value.into()])
}

fn of_blocks() -> Vec<Case> {
    vec![
        Case::new("occupancy/blocks-by-threads", |gpu, answer| {
            let second = function(gpu, c"second")?;
            let threads =
                [-1, 0, 1, 31, 32, 33, 64, 65, 96, 128, 160, 224, 256, 320, 384, 512, 544, 640];
            for threads in threads.into_iter().chain([768, 1000, 1024, 1025, 2048, i32::MAX]) {
                let reply = gpu
                    .cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(second, threads, 0, 0)?;
                answer.add(threads.to_string(), fact(&reply, reply.out));
            }
            Ok(())
        }),
        Case::new("occupancy/blocks-by-shared-memory", |gpu, answer| {
            let second = function(gpu, c"second")?;
            for allowed in [None, Some(100_000), Some(232_448), Some(1024)] {
                let name =
                    allowed.map_or("at_first".to_owned(), |bytes| format!("{bytes} allowed"));
                if let Some(bytes) = allowed {
                    allow(gpu, second, SHARED, bytes)?;
                }
                for bytes in BYTES {
                    let reply = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                        second, 32, bytes, 0,
                    )?;
                    answer.add(format!("{name}, {bytes}"), fact(&reply, reply.out));
                }
            }
            Ok(())
        }),
        Case::new("occupancy/blocks-with-static-shared-memory", |gpu, answer| {
            let first = function(gpu, c"first")?;
            for bytes in BYTES {
                let reply =
                    gpu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(first, 32, bytes, 0)?;
                answer.add(bytes.to_string(), fact(&reply, reply.out));
            }
            Ok(())
        }),
        Case::new("occupancy/blocks-by-carveout", |gpu, answer| {
            let second = function(gpu, c"second")?;
            for carveout in [-1, 0, 1, 10, 25, 50, 75, 100] {
                allow(gpu, second, CARVEOUT, carveout)?;
                for bytes in [0, 1024, 8192, 32_768, 49_152] {
                    let reply = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                        second, 32, bytes, 0,
                    )?;
                    answer.add(format!("{carveout} %, {bytes}"), fact(&reply, reply.out));
                }
            }
            Ok(())
        }),
        Case::new("occupancy/blocks-beyond-the-kernels-threads", |gpu, answer| {
            for name in [c"first", c"exact"] {
                let function = function(gpu, name)?;
                for threads in [32, 64, 128, 129, 256, 1024] {
                    let reply = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                        function, threads, 0, 0,
                    )?;
                    let name = format!("{} {threads}", name.to_string_lossy());
                    answer.add(name, fact(&reply, reply.out));
                }
            }
            Ok(())
        }),
        Case::new("occupancy/flags", |gpu, answer| {
            let second = function(gpu, c"second")?;
            for flags in [0, 1, 2, 3, u32::MAX] {
                let reply = gpu
                    .cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(second, 128, 0, flags)?;
                answer.add(format!("blocks {flags}"), fact(&reply, reply.out));
            }
            Ok(())
        }),
        Case::new("occupancy/null-function", |gpu, answer| {
            let null = null_mut();
            let blocks = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(null, 32)?;
            answer.add("blocks", blocks);
            answer.add("size", gpu.cuOccupancyMaxPotentialBlockSize(null, None, 0, 0)?);
            let config = shape(null_mut(), 128, 0);
            answer.add("cluster", gpu.cuOccupancyMaxPotentialClusterSize(null, &config)?);
            answer.add("clusters", gpu.cuOccupancyMaxActiveClusters(null, &config)?);
            Ok(())
        })
        .alone(),
        Case::new("occupancy/without-context", |gpu, answer| {
            let kernel = kernel(gpu, library(gpu)?, c"second")?;
            gpu.push(gpu.primary()?)?;
            let function = gpu.cuKernelGetFunction(kernel)?.must()?;
            let stream = gpu.stream()?;
            gpu.pop()?;
            for (name, function) in [("kernel", kernel.cast()), ("function", function)] {
                let blocks = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 32)?;
                answer.add(format!("{name}_blocks"), blocks);
                let size = gpu.cuOccupancyMaxPotentialBlockSize(function, None, 0, 0)?;
                answer.add(format!("{name}_size"), size);
                for (on, stream) in [("null", null_mut()), ("stream", stream)] {
                    let config = shape(stream, 128, 0);
                    let size = gpu.cuOccupancyMaxPotentialClusterSize(function, &config)?;
                    answer.add(format!("{name}_cluster_on_{on}"), size);
                }
            }
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
    ]
}

/// Amounts of dynamic shared memory around the limits of a block and of an SM.
const BYTES: [usize; 14] =
    [0, 1, 127, 128, 1024, 7168, 16_384, 32_768, 48_896, 49_152, 49_153, 100_000, 232_448, 232_449];

fn of_suggestions() -> Vec<Case> {
    vec![
        Case::new("occupancy/suggested-size", |gpu, answer| {
            for name in [c"first", c"second", c"exact"] {
                let function = function(gpu, name)?;
                for limit in [-1, 0, 1, 33, 100, 512, 768, 1024, 4096] {
                    let reply = gpu.cuOccupancyMaxPotentialBlockSize(function, None, 0, limit)?;
                    let name = format!("{} {limit}", name.to_string_lossy());
                    answer.add(name, json!([reply.value(), reply.out.0, reply.out.1]));
                }
            }
            Ok(())
        }),
        Case::new("occupancy/suggested-size-with-shared-memory", |gpu, answer| {
            let second = function(gpu, c"second")?;
            for bytes in [1024, 16_384, 49_152, 49_153, 300_000] {
                let reply = gpu.cuOccupancyMaxPotentialBlockSize(second, None, bytes, 0)?;
                answer.add(bytes.to_string(), json!([reply.value(), reply.out.0, reply.out.1]));
            }
            let mut by = |name: &str, shared_of| -> Result<(), Failure> {
                let reply =
                    gpu.cuOccupancyMaxPotentialBlockSize(second, Some(shared_of), 1 << 20, 0)?;
                answer.add(name, json!([reply.value(), reply.out.0, reply.out.1]));
                Ok(())
            };
            by("nothing", nothing)?;
            by("48 bytes a thread", some)?;
            by("1024 bytes a thread", much)?;
            Ok(())
        }),
        Case::new("occupancy/suggested-size-on-green", |gpu, answer| {
            let second = function(gpu, c"second")?;
            let kernel = kernel(gpu, library(gpu)?, c"second")?;
            for sms in [8, 64] {
                gpu.push(gpu.context_of(gpu.green_with(sms)?)?)?;
                for (name, function) in [("function", second), ("kernel", kernel.cast())] {
                    let reply = gpu.cuOccupancyMaxPotentialBlockSize(function, None, 0, 0)?;
                    let out = json!([reply.value(), reply.out.0, reply.out.1]);
                    answer.add(format!("{name} on {sms}"), out);
                }
                gpu.pop()?;
            }
            Ok(())
        }),
    ]
}

unsafe extern "C" fn nothing(_threads: c_int) -> usize {
    0
}

unsafe extern "C" fn some(threads: c_int) -> usize {
    48 * threads.unsigned_abs() as usize
}

unsafe extern "C" fn much(threads: c_int) -> usize {
    1024 * threads.unsigned_abs() as usize
}

fn of_clusters() -> Vec<Case> {
    vec![
        Case::new("occupancy/cluster-size", |gpu, answer| {
            let second = function(gpu, c"second")?;
            for name in ["portable", "any"] {
                for (threads, shared) in [(32, 0), (1024, 0), (1024, 49_152), (0, 0), (1025, 0)] {
                    let reply = cluster_size(gpu, second, null_mut(), threads, shared)?;
                    answer.add(format!("{name}, {threads} threads, {shared}"), reply);
                }
                allow(gpu, second, NON_PORTABLE, 1)?;
            }
            Ok(())
        }),
        Case::new("occupancy/cluster-size-on-green", |gpu, answer| {
            let second = function(gpu, c"second")?;
            for name in ["portable", "any"] {
                for sms in [8, 16, 24, 64] {
                    let stream = gpu.stream_of(gpu.green_with(sms)?)?;
                    let reply = cluster_size(gpu, second, stream, 1024, 0)?;
                    answer.add(format!("{name} on {sms}"), reply);
                }
                let split = gpu.split_device(0, 8)?;
                let tail = gpu.stream_of(gpu.green(&[split.remainder])?)?;
                answer
                    .add(format!("{name} on the tail"), cluster_size(gpu, second, tail, 1024, 0)?);
                allow(gpu, second, NON_PORTABLE, 1)?;
            }
            Ok(())
        }),
        Case::new("occupancy/cluster-size-that-is-required", |gpu, answer| {
            for name in [c"clustered", c"open"] {
                let function = function(gpu, name)?;
                let size = cluster_size(gpu, function, null_mut(), 32, 0)?;
                answer.add(name.to_string_lossy(), size);
                let config = shape(null_mut(), 1024, 0);
                let clusters = gpu.cuOccupancyMaxActiveClusters(function, &config)?;
                answer.add(
                    format!("{}_clusters", name.to_string_lossy()),
                    fact(&clusters, clusters.out),
                );
                for size in [1, 2, 4] {
                    let (status, clusters) = gpu.clusters(function, null_mut(), size)?;
                    let name = format!("{}_clusters of {size}", name.to_string_lossy());
                    answer.add(name, json!([status.value(), clusters]));
                }
            }
            Ok(())
        }),
        Case::new("occupancy/clusters-of-no-size", |gpu, answer| {
            let second = function(gpu, c"second")?;
            let clusters = gpu.cuOccupancyMaxActiveClusters(second, &shape(null_mut(), 1024, 0))?;
            answer.add("clusters", fact(&clusters, clusters.out));
            Ok(())
        }),
        Case::new("occupancy/clusters-that-are-not-portable", |gpu, answer| {
            let second = function(gpu, c"second")?;
            let green = gpu.stream_of(gpu.green_with(64)?)?;
            for name in ["portable", "any"] {
                for size in [8, 9, 12, 16, 17, 32] {
                    for (on, stream) in [("primary", null_mut()), ("green", green)] {
                        let (status, clusters): (CUresult, i32) =
                            gpu.clusters(second, stream, size)?;
                        let name = format!("{name}, {size} on {on}");
                        answer.add(name, json!([status.value(), clusters]));
                    }
                }
                allow(gpu, second, NON_PORTABLE, 1)?;
            }
            Ok(())
        }),
    ]
}

fn shape(stream: CUstream, threads: u32, shared: u32) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: 64,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: stream,
        attrs: null_mut(),
        numAttrs: 0,
    }
}

fn cluster_size(
    gpu: &Gpu,
    function: CUfunction,
    stream: CUstream,
    threads: u32,
    shared: u32,
) -> Result<Value, Failure> {
    let reply =
        gpu.cuOccupancyMaxPotentialClusterSize(function, &shape(stream, threads, shared))?;
    Ok(fact(&reply, reply.out))
}

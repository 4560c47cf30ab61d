//! Kernels: launches, and their limits on a partition.

use std::ptr::null_mut;

use green_ctx_sys::{CUfunction, CUstream};
use serde_json::json;

use super::{Case, Needs};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::calls::Params;
use crate::gpu::{Gpu, SHORT, THREADS, probe_params, ptx};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 128, 129, 130, 264].map(|n| cooperative(Where::Green, n)).into();
    cases.extend([136, 137].map(|n| cooperative(Where::Remainder, n)));
    cases.extend([264, 265].map(|n| cooperative(Where::Primary, n)));
    for size in [1, 2, 4, 8, 16] {
        cases.extend([Where::Primary, Where::Green, Where::Remainder].map(|on| clusters(on, size)));
    }
    cases.push(cooperative_on_shared_sms());
    cases.extend([
        Case::new("launch/clusters-of-a-function", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let function = gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()?;
            for size in [1, 8, 16] {
                let (status, clusters) = gpu.clusters(function, stream, size)?;
                answer.add(format!("size {size}"), status);
                answer.add(format!("size {size} clusters"), clusters);
            }
            Ok(())
        }),
        Case::new("launch/clusters-by-what-is-current", |gpu, answer| {
            let function = gpu.probe()?;
            let context = gpu.context_of(gpu.green_with(64)?)?;
            let primary_stream = gpu.stream()?;
            answer.add("primary", gpu.clusters(function, null_mut(), 2)?.1);
            gpu.push(context)?;
            answer.add("green", gpu.clusters(function, null_mut(), 2)?.1);
            answer.add("primary_stream", gpu.clusters(function, primary_stream, 2)?.1);
            Ok(())
        }),
        Case::new("launch/occupancy", |gpu, answer| {
            let function = gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()?;
            let context = gpu.context_of(gpu.green_with(64)?)?;
            for (name, context) in [("primary", gpu.primary()?), ("green", context)] {
                gpu.push(context)?;
                let blocks = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 1024)?;
                answer.add(name, blocks);
                answer.add(format!("{name}_blocks"), blocks.out);
                gpu.pop()?;
            }
            let kernel = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(gpu.probe()?, 1024)?;
            answer.add("kernel", kernel);
            answer.add("kernel_blocks", kernel.out);
            for threads in [0, 32, 2048] {
                let reply = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads)?;
                answer.add(
                    format!("{threads} threads"),
                    json!({ "status": reply.value(), "blocks": reply.out }),
                );
            }
            Ok(())
        }),
        Case::new("launch/kernel-on-green-stream", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            answer.add("sms", gpu.sms_of(stream)?);
            Ok(())
        }),
        Case::new("launch/function-of-primary-on-green-stream", |gpu, answer| {
            let function = gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()?;
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            run(gpu, answer, "", function, stream)
        }),
        Case::new("launch/module-of-primary-on-green-stream", |gpu, answer| {
            let function = module_function(gpu, answer)?;
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            run(gpu, answer, "", function, stream)
        }),
        Case::new("launch/module-of-green-on-primary-stream", |gpu, answer| {
            let stream = gpu.stream()?;
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            let function = module_function(gpu, answer)?;
            run(gpu, answer, "", function, stream)?;
            run(gpu, answer, "null_stream_", function, null_mut())
        }),
        Case::new("launch/default-stream-with-green-current", |gpu, answer| {
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            answer.add("null", gpu.sms_of(null_mut())?.len());
            answer.add("legacy", gpu.sms_of(crate::gpu::token(1))?.len());
            Ok(())
        }),
        Case::new("launch/per-thread-stream-with-green-current", |gpu, answer| {
            gpu.push(gpu.context_of(gpu.green_with(64)?)?)?;
            let memory = gpu.probe_memory(1)?;
            let stream = crate::gpu::token(2);
            answer.add("status", gpu.launch_probe(stream, 1, memory, SHORT)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        }),
        Case::new("launch/parameters", |gpu, answer| {
            let kernel = gpu.probe_kernel()?;
            for index in [0, 1, 2, 99] {
                let reply = gpu.cuKernelGetParamInfo(kernel, index)?;
                let (offset, size) = reply.out;
                answer.add(
                    index.to_string(),
                    json!({ "status": reply.value(), "offset": offset, "size": size }),
                );
            }
            Ok(())
        }),
        Case::new("launch/shapes", |gpu, answer| {
            let stream = gpu.stream_of(gpu.green_with(64)?)?;
            let memory = gpu.probe_memory(1)?;
            for (grid, block) in
                [(0, 1024), (1, 0), (1, 1025), (1, 2048), (0x8000_0000, 32), (1, 1), (1, 33)]
            {
                let mut params = probe_params(memory, SHORT);
                let status = gpu.cuLaunchKernel(gpu.probe()?, grid, block, stream, &mut params)?;
                answer.add(format!("{grid} blocks of {block}"), status);
            }
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            Ok(())
        }),
        Case::new("launch/null-function", |gpu, answer| {
            let mut params = Params::new(&[0, 0]);
            let status = gpu.cuLaunchKernel(null_mut(), 1, 32, null_mut(), &mut params)?;
            answer.add("status", status);
            Ok(())
        }),
        Case::new("launch/null-stream-none-current", |gpu, answer| {
            let mut params = Params::new(&[0, 0]);
            let status = gpu.cuLaunchKernel(gpu.probe()?, 1, THREADS, null_mut(), &mut params)?;
            answer.add("status", status);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
    ]);
    cases
}

/// The context that a kernel runs in.
#[derive(Clone, Copy)]
enum Where {
    Primary,
    /// A group of 64 SMs.
    Green,
    /// The remaining 68 SMs.
    Remainder,
}

impl Where {
    fn name(self) -> &'static str {
        match self {
            Where::Primary => "primary",
            Where::Green => "green",
            Where::Remainder => "remainder",
        }
    }

    fn stream(self, gpu: &Gpu) -> Result<CUstream, Failure> {
        let split = gpu.split(&gpu.device_resource()?, 0, 1, 64)?.must()?;
        match self {
            Where::Primary => gpu.stream(),
            Where::Green => gpu.stream_of(gpu.green(&split.groups)?),
            Where::Remainder => gpu.stream_of(gpu.green(&[split.remainder])?),
        }
    }
}

/// Makes a cooperative launch. Its blocks must all fit at the same time; an SM holds two blocks of 1024 threads.
fn cooperative(on: Where, blocks: u32) -> Case {
    Case::new(format!("launch/cooperative-{}-blocks={blocks}", on.name()), move |gpu, answer| {
        let stream = on.stream(gpu)?;
        let memory = gpu.probe_memory(blocks)?;
        let mut params = probe_params(memory, SHORT);
        let function = gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()?;
        let status =
            gpu.cuLaunchCooperativeKernel(function, blocks, THREADS, stream, &mut params)?;
        answer.add("launch", status);
        answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
        answer.add("complete", gpu.probe_is_complete(memory, blocks)?);
        gpu.cuMemFree(memory)?.must()
    })
}

/// Launches two cooperative grids, each of the maximum size for its 32 SMs, in contexts that share 16 SMs. Both
/// do not fit at the same time.
fn cooperative_on_shared_sms() -> Case {
    const BLOCKS: u32 = 64;
    Case::new("launch/cooperative-two-on-shared-sms", |gpu, answer| {
        let groups = gpu.split_device(0, 16)?.groups;
        let function = gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()?;
        let mut launched = Vec::new();
        for units in [&groups[..2], &groups[1..3]] {
            let stream = gpu.stream_of(gpu.green(units)?)?;
            let memory = gpu.probe_memory(BLOCKS)?;
            let mut params = probe_params(memory, SHORT);
            let launch =
                gpu.cuLaunchCooperativeKernel(function, BLOCKS, THREADS, stream, &mut params)?;
            answer.add(format!("launch_{}", launched.len()), launch);
            launched.push((stream, memory));
        }
        for (index, (stream, memory)) in launched.into_iter().enumerate() {
            answer.add(format!("synchronize_{index}"), gpu.cuStreamSynchronize(stream)?);
            answer.add(format!("complete_{index}"), gpu.probe_is_complete(memory, BLOCKS)?);
            gpu.cuMemFree(memory)?.must()?;
        }
        Ok(())
    })
}

/// Asks how many clusters of the probe's blocks can be active at the same time.
fn clusters(on: Where, size: u32) -> Case {
    Case::new(format!("launch/clusters-{}-size={size}", on.name()), move |gpu, answer| {
        let (status, clusters) = gpu.clusters(gpu.probe()?, on.stream(gpu)?, size)?;
        answer.add("status", status);
        answer.add("clusters", clusters);
        Ok(())
    })
}

/// Returns the probe of a module that is loaded into the current context.
fn module_function(gpu: &Gpu, answer: &mut Answer<'_>) -> Result<CUfunction, Failure> {
    let module = gpu.cuModuleLoadData(ptx())?;
    answer.add("module_load", module);
    let function = gpu.cuModuleGetFunction(module.must()?, c"green_ctx_probe")?;
    answer.add("get_function", function);
    function.must()
}

/// Launches a function on a stream and waits for it.
fn run(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
    prefix: &str,
    function: CUfunction,
    stream: CUstream,
) -> Outcome {
    let memory = gpu.probe_memory(1)?;
    let mut params = probe_params(memory, SHORT);
    let launch = gpu.cuLaunchKernel(function, 1, THREADS, stream, &mut params)?;
    answer.add(format!("{prefix}launch"), launch);
    answer.add(format!("{prefix}synchronize"), gpu.cuStreamSynchronize(stream)?);
    answer.add(format!("{prefix}complete"), gpu.probe_is_complete(memory, 1)?);
    gpu.cuMemFree(memory)?.must()
}

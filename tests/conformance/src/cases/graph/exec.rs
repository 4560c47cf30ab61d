//! Executables: instantiating them, changing their nodes, and the effect on a launch.

use core::ptr::null_mut;

use green_ctx_sys::*;

use super::{Case, ProbeNode, fill, host, upload};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{Gpu, LONG, SHORT};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 2, 4, 5, 8, 16].map(flags).into();
    cases.extend([0, 1, 2, 4, 5, 8, 16].map(with_params));
    cases.extend([
        Case::new("graph/instantiate-for-the-device-with-a-host-node", |gpu, answer| {
            let graph = gpu.graph()?;
            gpu.cuGraphAddHostNode(graph, &[], &host(null_mut()))?.must()?;
            let mut params = instantiation(4);
            answer.add("instantiate", gpu.cuGraphInstantiateWithParams(graph, &mut params)?);
            answer.add("result", params.result_out.0);
            answer.add("names_a_node", !params.hErrNode_out.is_null());
            Ok(())
        })
        .alone(),
        Case::new("graph/instantiate-for-the-device-with-two-contexts", |gpu, answer| {
            let graph = gpu.graph()?;
            let mut probe = ProbeNode::new(gpu, 1, SHORT)?;
            let green = gpu.context_of(gpu.green_with(32)?)?;
            for context in [gpu.primary()?, green] {
                gpu.cuGraphAddKernelNode(graph, &[], &probe.on(gpu, context)?)?.must()?;
            }
            let mut params = instantiation(4);
            answer.add("instantiate", gpu.cuGraphInstantiateWithParams(graph, &mut params)?);
            answer.add("result", params.result_out.0);
            Ok(())
        })
        .alone(),
        Case::new("graph/launch-in-order", in_order),
        Case::new("graph/relaunch-while-running", relaunch),
        Case::new("graph/destroy-while-running", |gpu, answer| {
            let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, LONG)?);
            let params = probe.on(gpu, gpu.primary()?)?;
            gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
            let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
            gpu.cuGraphUpload(exec, stream)?.must()?;
            gpu.cuStreamSynchronize(stream)?.must()?;
            answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
            answer.add("query", gpu.cuStreamQuery(stream)?);
            answer.add("destroy_graph", gpu.cuGraphDestroy(graph)?);
            answer.add("destroy_exec", gpu.cuGraphExecDestroy(exec)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("complete", gpu.probe_is_complete(probe.memory, 1)?);
            Ok(())
        }),
        Case::new("graph/copies-and-fills", copies),
    ]);
    cases
}

/// Returns the input of `cuGraphInstantiateWithParams`, with empty outputs.
pub(super) fn instantiation(flags: u64) -> CUDA_GRAPH_INSTANTIATE_PARAMS {
    CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags,
        hUploadStream: null_mut(),
        hErrNode_out: null_mut(),
        result_out: CUgraphInstantiateResult(99),
    }
}

/// Creates a graph with one kernel.
fn with_kernel(gpu: &Gpu) -> Result<CUgraph, Failure> {
    let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, SHORT)?);
    gpu.cuGraphAddKernelNode(graph, &[], &probe.on(gpu, gpu.primary()?)?)?.must()?;
    Ok(graph)
}

fn flags(flags: u64) -> Case {
    Case::new(format!("graph/instantiate-flags={flags}"), move |gpu, answer| {
        let exec = gpu.cuGraphInstantiateWithFlags(with_kernel(gpu)?, flags)?;
        answer.add("instantiate", exec);
        Ok(())
    })
    .alone()
}

fn with_params(flags: u64) -> Case {
    Case::new(format!("graph/instantiate-params-flags={flags}"), move |gpu, answer| {
        let mut params = instantiation(flags);
        params.hUploadStream = gpu.stream()?;
        let exec = gpu.cuGraphInstantiateWithParams(with_kernel(gpu)?, &mut params)?;
        answer.add("instantiate", exec);
        answer.add("result", params.result_out.0);
        answer.add("names_a_node", !params.hErrNode_out.is_null());
        Ok(())
    })
    .alone()
}

/// Launches a graph between other work of a stream: the graph runs after earlier work, its nodes in order, and
/// later work after the graph.
fn in_order(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (graph, stream) = (gpu.graph()?, gpu.stream()?);
    let context = gpu.primary()?;
    let (mut first, mut second) = (ProbeNode::new(gpu, 1, SHORT)?, ProbeNode::new(gpu, 1, SHORT)?);
    let (before, after) = (gpu.probe_memory(1)?, gpu.probe_memory(1)?);
    let node = gpu.cuGraphAddKernelNode(graph, &[], &first.on(gpu, context)?)?.must()?;
    gpu.cuGraphAddKernelNode(graph, &[node], &second.on(gpu, context)?)?.must()?;
    let exec = gpu.executable(graph)?;
    answer.add("before", gpu.launch_probe(stream, 1, before, SHORT)?);
    answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
    answer.add("after", gpu.launch_probe(stream, 1, after, SHORT)?);
    answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
    let mut spans = Vec::new();
    for memory in [before, first.memory, second.memory, after] {
        spans.push(gpu.probed_span(memory)?);
    }
    let ordered = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    answer.add("each_after_the_one_before", ordered);
    answer.add("all_ran", spans.iter().all(|span| span.1 != 0));
    Ok(())
}

/// Launches an executable twice: the second launch waits for the first, in any stream.
fn relaunch(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, LONG)?);
    let params = probe.on(gpu, gpu.primary()?)?;
    gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    let exec = gpu.executable(graph)?;
    let streams = [gpu.stream()?, gpu.stream()?];
    let between = gpu.event()?;
    for (index, stream) in streams.into_iter().enumerate() {
        answer.add(format!("launch_{index}"), gpu.cuGraphLaunch(exec, stream)?);
        if index == 0 {
            gpu.cuEventRecord(between, stream)?.must()?;
        }
    }
    answer.add("second_query", gpu.cuStreamQuery(streams[1])?);
    answer.add("first_synchronize", gpu.cuEventSynchronize(between)?);
    answer.add("second_query_after_the_first", gpu.cuStreamQuery(streams[1])?);
    answer.add("second_synchronize", gpu.cuStreamSynchronize(streams[1])?);
    Ok(())
}

/// Launches a graph with a memset, a copy into its middle, and a copy back to the host.
fn copies(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(256)?.must()?);
    let context = gpu.primary()?;
    let from = vec![9_u8; 128];
    let mut back = vec![0_u8; 256];
    let filling = gpu.cuGraphAddMemsetNode(graph, &[], &fill(memory, 7, 256), context)?.must()?;
    let rows = CUDA_MEMCPY3D_v2 {
        WidthInBytes: 8,
        Height: 4,
        srcPitch: 16,
        dstPitch: 32,
        dstXInBytes: 4,
        ..upload(memory, &from)
    };
    let copying = gpu.cuGraphAddMemcpyNode(graph, &[filling], &rows, context)?;
    answer.add("rows", copying);
    let download = CUDA_MEMCPY3D_v2 {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: core::ptr::null(),
        srcDevice: memory,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: back.as_mut_ptr().cast(),
        dstDevice: 0,
        WidthInBytes: 256,
        ..upload(memory, &from)
    };
    let last = gpu.cuGraphAddMemcpyNode(graph, &[copying.must()?], &download, context)?;
    answer.add("download", last);
    let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
    answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
    answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
    let expected: Vec<u8> = (0..256_usize)
        .map(|at| if at < 128 && (4..12).contains(&(at % 32)) { 9 } else { 7 })
        .collect();
    answer.add("as_expected", back == expected);
    Ok(())
}

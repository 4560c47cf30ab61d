//! Captures that create graphs: their reported state, the calls that become nodes, and captures into existing graphs.

use core::ptr::null_mut;

use green_ctx_sys::*;
use serde_json::{Value, json};

use super::{Case, GLOBAL, ProbeNode, fill, no_copy, nothing};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::cases::Needs;
use crate::gpu::{Gpu, SHORT, probe_params, token};

/// The capture mode that forbids the least.
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("graph/capture-info", |gpu, answer| {
            let stream = gpu.stream()?;
            let memory = gpu.probe_memory(1)?;
            answer.add("idle", info(gpu, stream)?);
            gpu.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
            answer.add("begun", info(gpu, stream)?);
            let reported = gpu.cuStreamGetCaptureInfo(stream)?.out;
            answer.add("id_is_not_zero", reported.1 != 0);
            answer.add("has_a_graph", !reported.2.is_null());
            answer.add("launch", gpu.launch_probe(stream, 1, memory, SHORT)?);
            answer.add("after_a_launch", info(gpu, stream)?);
            answer.add("nodes_meanwhile", gpu.nodes(reported.2)?.len());
            let ended = gpu.cuStreamEndCapture(stream)?;
            answer.add("end", ended);
            answer.add("same_graph", ended.out == reported.2);
            answer.add("after_the_end", info(gpu, stream)?);
            gpu.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
            let again = gpu.cuStreamGetCaptureInfo(stream)?.out;
            answer.add("another_id", again.1 != reported.1);
            answer.add("end_again", gpu.cuStreamEndCapture(stream)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/capture-info-spoiled", |gpu, answer| {
            let stream = gpu.stream()?;
            gpu.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
            answer.add("spoil", gpu.cuStreamSynchronize(stream)?);
            answer.add("info", info(gpu, stream)?);
            answer.add("end", gpu.cuStreamEndCapture(stream)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/capture-info-of-the-null-stream", |gpu, answer| {
            let (blocking, free) = (gpu.cuStreamCreate(0)?.must()?, gpu.stream()?);
            answer.add("idle", info(gpu, null_mut())?);
            for (which, stream) in [("blocking", blocking), ("non_blocking", free)] {
                gpu.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
                answer.add(which, gpu.cuStreamGetCaptureInfo(null_mut())?);
                answer.add(format!("{which}_legacy"), gpu.cuStreamGetCaptureInfo(token(1))?);
                answer.add(format!("{which}_is"), gpu.cuStreamIsCapturing(null_mut())?);
                answer.add(format!("{which}_end"), gpu.cuStreamEndCapture(stream)?);
            }
            Ok(())
        })
        .alone(),
        Case::new("graph/capture-fork-and-join", fork_and_join).alone(),
        Case::new("graph/capture-fork-without-work", |gpu, answer| {
            let (origin, other) = (gpu.stream()?, gpu.stream()?);
            let memory = gpu.probe_memory(1)?;
            let fork = gpu.event()?;
            gpu.cuStreamBeginCapture(origin, GLOBAL)?.must()?;
            gpu.launch_probe(origin, 1, memory, SHORT)?;
            gpu.cuEventRecord(fork, origin)?.must()?;
            answer.add("wait", gpu.cuStreamWaitEvent(other, fork, 0)?);
            answer.add("other", info(gpu, other)?);
            answer.add("end", gpu.cuStreamEndCapture(origin)?);
            answer.add("other_after", info(gpu, other)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/capture-with-none-current", |gpu, answer| {
            let green = gpu.green_with(32)?;
            let (stream, context) = (gpu.stream_of(green)?, gpu.context_of(green)?);
            answer.add("begin", gpu.cuStreamBeginCapture(stream, GLOBAL)?);
            let host = gpu.cuLaunchHostFunc(stream, Some(nothing), null_mut())?;
            answer.add("host", host);
            let ended = gpu.cuStreamEndCapture(stream)?;
            answer.add("end", ended);
            answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(ended.must()?, 0)?);
            gpu.push(context)?;
            let exec = gpu.executable(ended.out)?;
            gpu.pop()?;
            answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
        Case::new("graph/captured-kinds", |gpu, answer| {
            let stream = gpu.stream()?;
            let memory = gpu.cuMemAlloc(256)?.must()?;
            let from = vec![7; 64];
            gpu.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
            answer.add("fill", gpu.cuMemsetD8Async(memory, 7, 64, stream)?);
            answer.add("fill_words", gpu.cuMemsetD32Async(memory, 7, 16, stream)?);
            answer.add(
                "upload",
                gpu.cuMemcpyHtoDAsync(memory, from.as_ptr().cast(), from.len(), stream)?,
            );
            let mut back = vec![0; 64];
            answer.add(
                "download",
                gpu.cuMemcpyDtoHAsync(back.as_mut_ptr().cast(), memory, back.len(), stream)?,
            );
            answer.add("host", gpu.cuLaunchHostFunc(stream, Some(nothing), null_mut())?);
            let ended = gpu.cuStreamEndCapture(stream)?;
            answer.add("end", ended);
            for (index, node) in gpu.nodes(ended.must()?)?.into_iter().enumerate() {
                let kind = gpu.cuGraphNodeGetType(node)?.out;
                answer.add(format!("type_{index}"), kind.to_string());
                let mut memset = fill(0, 0, 0);
                if gpu.cuGraphMemsetNodeGetParams(node, &mut memset)?.is_ok() {
                    let CUDA_MEMSET_NODE_PARAMS_v1 { value, elementSize, width, height, .. } =
                        memset;
                    answer.add(
                        format!("fill_{index}"),
                        json!([memset.dst == memory, value, elementSize, width, height]),
                    );
                }
                let mut copy = no_copy();
                if gpu.cuGraphMemcpyNodeGetParams(node, &mut copy)?.is_ok() {
                    answer.add(
                        format!("copy_{index}"),
                        json!([
                            copy.srcMemoryType.0,
                            copy.dstMemoryType.0,
                            copy.WidthInBytes,
                            copy.Height,
                            copy.Depth
                        ]),
                    );
                }
            }
            Ok(())
        })
        .alone(),
        Case::new("graph/capture-upload-of-a-graph", |gpu, answer| {
            let stream = gpu.stream()?;
            let exec = gpu.executable(gpu.graph()?)?;
            gpu.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
            answer.add("upload", gpu.cuGraphUpload(exec, stream)?);
            answer.add("end", gpu.cuStreamEndCapture(stream)?);
            Ok(())
        })
        .alone(),
    ];
    for (mode, suffix) in [(GLOBAL, ""), (RELAXED, "-relaxed")] {
        cases.push(captured_launch(mode, suffix));
        cases.push(instantiation(mode, suffix));
    }
    cases
}

/// Launches a graph in a stream that is being captured.
fn captured_launch(mode: CUstreamCaptureMode, suffix: &str) -> Case {
    Case::new(format!("graph/captured-launch-of-a-graph{suffix}"), move |gpu, answer| {
        let stream = gpu.stream()?;
        let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, SHORT)?);
        let params = probe.on(gpu, gpu.primary()?)?;
        gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
        let exec = gpu.executable(graph)?;
        gpu.cuStreamBeginCapture(stream, mode)?.must()?;
        answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
        let ended = gpu.cuStreamEndCapture(stream)?;
        answer.add("end", ended);
        if ended.is_ok() {
            for node in gpu.nodes(ended.out)? {
                answer.add("type", gpu.cuGraphNodeGetType(node)?.out.to_string());
            }
            let exec = gpu.executable(ended.out)?;
            answer.add("ran", probe.sms_of(gpu, exec, stream)?.len());
        }
        Ok(())
    })
    .alone()
}

/// Instantiates the graph that is being captured, and another one.
fn instantiation(mode: CUstreamCaptureMode, suffix: &str) -> Case {
    Case::new(format!("graph/instantiate-while-capturing{suffix}"), move |gpu, answer| {
        let stream = gpu.stream()?;
        gpu.cuStreamBeginCapture(stream, mode)?.must()?;
        let graph = gpu.cuStreamGetCaptureInfo(stream)?.out.2;
        answer.add("that_graph", gpu.cuGraphInstantiateWithFlags(graph, 0)?);
        answer.add("another", gpu.cuGraphInstantiateWithFlags(gpu.graph()?, 0)?);
        answer.add("end", gpu.cuStreamEndCapture(stream)?);
        Ok(())
    })
    .alone()
}

/// Returns what the driver reports about a stream's capture, without handles.
fn info(gpu: &Gpu, stream: CUstream) -> Result<Value, Failure> {
    let reply = gpu.cuStreamGetCaptureInfo(stream)?;
    let (status, _, graph, _, _, count) = reply.out;
    let active = status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    // All outputs except the status are valid only for an active capture (cuda.h).
    let valid = active.then(|| json!({ "graph": !graph.is_null(), "dependencies": count }));
    Ok(json!({ "status": reply.value(), "capture": status.to_string(), "more": valid }))
}

/// Forks to a second stream and back, and adds the dependencies of each stream's next node.
fn fork_and_join(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (origin, other) = (gpu.stream()?, gpu.stream()?);
    let memory = gpu.probe_memory(1)?;
    let (fork, join) = (gpu.event()?, gpu.event()?);
    let launch = |stream| {
        let mut params = probe_params(memory, SHORT);
        gpu.cuLaunchKernel(gpu.probe()?, 1, 32, stream, &mut params)?.must()
    };
    let after = |stream| Ok::<_, Failure>(gpu.cuStreamGetCaptureInfo(stream)?.out.5);
    gpu.cuStreamBeginCapture(origin, GLOBAL)?.must()?;
    launch(origin)?;
    gpu.cuEventRecord(fork, origin)?.must()?;
    gpu.cuStreamWaitEvent(other, fork, 0)?.must()?;
    answer.add("other_after_the_fork", after(other)?);
    launch(other)?;
    gpu.cuEventRecord(join, other)?.must()?;
    gpu.cuStreamWaitEvent(origin, join, 0)?.must()?;
    answer.add("origin_after_the_join", after(origin)?);
    gpu.cuStreamWaitEvent(origin, join, 0)?.must()?;
    answer.add("origin_after_joining_twice", after(origin)?);
    launch(origin)?;
    answer.add("origin_after_a_launch", after(origin)?);
    let graph = gpu.cuStreamEndCapture(origin)?;
    answer.add("end", graph);
    let nodes = gpu.nodes(graph.must()?)?;
    let names: Vec<(&str, CUgraphNode)> =
        ["first", "second", "third"].into_iter().zip(nodes).collect();
    answer.add("edges", gpu.edges(graph.out, &names)?);
    Ok(())
}

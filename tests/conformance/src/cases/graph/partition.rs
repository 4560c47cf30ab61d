//! The SMs that the nodes of a graph run on.

use core::ptr::null_mut;

use green_ctx_sys::*;

use super::{BLOCKS, Case, ProbeNode, fill};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{Gpu, LONG, SHORT, THREADS, probe_params, ptx};

/// Two partitions of 32 SMs each.
pub(super) struct Pair {
    pub(super) greens: [CUgreenCtx; 2],
    pub(super) contexts: [CUcontext; 2],
    pub(super) streams: [CUstream; 2],
}

impl Pair {
    pub(super) fn new(gpu: &Gpu) -> Result<Pair, Failure> {
        let split = gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?;
        let greens = [gpu.green(&split.groups[..1])?, gpu.green(&split.groups[1..2])?];
        Ok(Pair {
            greens,
            contexts: [gpu.context_of(greens[0])?, gpu.context_of(greens[1])?],
            streams: [gpu.stream_of(greens[0])?, gpu.stream_of(greens[1])?],
        })
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("graph/captured-on-green-launched-elsewhere", |gpu, answer| {
            let pair = Pair::new(gpu)?;
            let probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
            let graph = gpu.captured(pair.streams[0], || launch(gpu, pair.streams[0], &probe))?;
            let exec = gpu.executable(graph)?;
            answer.add("own", probe.sms_of(gpu, exec, pair.streams[0])?);
            answer.add("other", probe.sms_of(gpu, exec, pair.streams[1])?);
            answer.add("primary", probe.sms_of(gpu, exec, gpu.stream()?)?);
            answer.add("null", probe.sms_of(gpu, exec, null_mut())?);
            gpu.push(pair.contexts[1])?;
            answer.add("null_with_other_current", probe.sms_of(gpu, exec, null_mut())?);
            Ok(())
        }),
        Case::new("graph/captured-on-primary-launched-on-green", |gpu, answer| {
            let pair = Pair::new(gpu)?;
            let (probe, stream) = (ProbeNode::new(gpu, BLOCKS, SHORT)?, gpu.stream()?);
            let graph = gpu.captured(stream, || launch(gpu, stream, &probe))?;
            let exec = gpu.executable(graph)?;
            answer.add("sms", probe.sms_of(gpu, exec, pair.streams[0])?.len());
            Ok(())
        }),
        Case::new("graph/captured-across-two-partitions", across),
        retarget("a-kernel", |gpu| gpu.probe()),
        retarget("a-function", |gpu| gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()),
        Case::new("graph/retarget-a-clone", |gpu, answer| {
            let pair = Pair::new(gpu)?;
            let (mut probe, stream) = (ProbeNode::new(gpu, BLOCKS, SHORT)?, gpu.stream()?);
            let graph = gpu.captured(stream, || launch(gpu, stream, &probe))?;
            let clone = gpu.cuGraphClone(graph)?.must()?;
            let node = gpu.nodes(clone)?[0];
            let params = probe.on(gpu, pair.contexts[0])?;
            answer.add("set", gpu.cuGraphKernelNodeSetParams(node, &params)?);
            answer.add("clone", probe.sms_of(gpu, gpu.executable(clone)?, stream)?.len());
            answer.add("original", probe.sms_of(gpu, gpu.executable(graph)?, stream)?.len());
            Ok(())
        }),
        Case::new("graph/context-waits-for-nodes", context_waits).alone(),
        primary_waits("a-graph-of-the-partition", Captured::InThePartition),
        primary_waits("a-graph-of-the-primary-context", Captured::InThePrimaryContext),
        primary_waits("a-kernel", Captured::Nowhere),
        own_waits("a-graph", Captured::InThePartition),
        own_waits("a-kernel", Captured::Nowhere),
        destroyed_behind("a-graph", Captured::InThePartition),
        destroyed_behind("a-kernel", Captured::Nowhere),
        Case::new("graph/library-unloaded-behind-a-graph-in-a-partition", unloaded_behind).alone(),
        Case::new("graph/nodes-on-both-partitions-in-order", |gpu, answer| {
            let pair = Pair::new(gpu)?;
            let graph = gpu.graph()?;
            let mut probes = Vec::new();
            let mut after: Vec<CUgraphNode> = Vec::new();
            for context in [pair.contexts[0], pair.contexts[1], pair.contexts[0]] {
                let mut probe = ProbeNode::new(gpu, 1, SHORT)?;
                let params = probe.on(gpu, context)?;
                after = vec![gpu.cuGraphAddKernelNode(graph, &after, &params)?.must()?];
                probes.push(probe);
            }
            let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
            answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            let mut spans = Vec::new();
            for probe in &probes {
                spans.push(gpu.probed_span(probe.memory)?);
            }
            let ordered = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
            answer.add("each_after_the_one_before", ordered);
            Ok(())
        }),
        Case::new("graph/child-on-a-partition", |gpu, answer| {
            let pair = Pair::new(gpu)?;
            let (graph, inner) = (gpu.graph()?, gpu.graph()?);
            let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
            let params = probe.on(gpu, pair.contexts[0])?;
            gpu.cuGraphAddKernelNode(inner, &[], &params)?.must()?;
            gpu.cuGraphAddChildGraphNode(graph, &[], inner)?.must()?;
            let exec = gpu.executable(graph)?;
            answer.add("sms", probe.sms_of(gpu, exec, pair.streams[1])?);
            Ok(())
        }),
    ]
}

/// Launches a node's probe in a stream, which may be capturing.
pub(super) fn launch(gpu: &Gpu, stream: CUstream, probe: &ProbeNode) -> Result<(), Failure> {
    let mut params = probe_params(probe.memory, SHORT);
    gpu.cuLaunchKernel(gpu.probe()?, probe.blocks, THREADS, stream, &mut params)?.must()
}

/// Captures a fork from one partition to the other and back.
fn across(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let pair = Pair::new(gpu)?;
    let [first, second, third] = [
        ProbeNode::new(gpu, BLOCKS, SHORT)?,
        ProbeNode::new(gpu, BLOCKS, SHORT)?,
        ProbeNode::new(gpu, BLOCKS, SHORT)?,
    ];
    let (fork, join) = (gpu.event()?, gpu.event()?);
    let [origin, other] = pair.streams;
    let graph = gpu.captured(origin, || {
        launch(gpu, origin, &first)?;
        gpu.cuEventRecord(fork, origin)?.must()?;
        gpu.cuStreamWaitEvent(other, fork, 0)?.must()?;
        launch(gpu, other, &second)?;
        gpu.cuEventRecord(join, other)?.must()?;
        gpu.cuStreamWaitEvent(origin, join, 0)?.must()?;
        launch(gpu, origin, &third)
    })?;
    let nodes = gpu.nodes(graph)?;
    let names: Vec<(&str, CUgraphNode)> =
        ["first", "second", "third"].into_iter().zip(nodes.iter().copied()).collect();
    answer.add("edges", gpu.edges(graph, &names)?);
    for (which, node) in &names {
        let context = gpu.kernel_params(*node)?.ctx;
        let known = [("origin", pair.contexts[0]), ("other", pair.contexts[1])];
        answer.add(format!("{which}_context"), super::name(context, &known));
    }
    let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
    answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
    answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
    for (which, probe) in [("first", &first), ("second", &second), ("third", &third)] {
        answer.add(format!("{which}_sms"), gpu.probed_sms(probe.memory, BLOCKS)?);
    }
    Ok(())
}

/// A case that moves the kernel of a captured graph, which also has a memset, from one context to the next.
fn retarget(what: &str, function: impl Fn(&Gpu) -> Result<CUfunction, Failure> + 'static) -> Case {
    Case::new(format!("graph/retarget-{what}"), move |gpu, answer| {
        let pair = Pair::new(gpu)?;
        let (mut probe, stream) = (ProbeNode::new(gpu, BLOCKS, SHORT)?, gpu.stream()?);
        let scratch = gpu.cuMemAlloc(64)?.must()?;
        let graph = gpu.captured(stream, || {
            gpu.cuMemsetD8Async(scratch, 7, 64, stream)?.must()?;
            let mut params = probe_params(probe.memory, SHORT);
            gpu.cuLaunchKernel(function(gpu)?, BLOCKS, THREADS, stream, &mut params)?.must()
        })?;
        let mut nodes = Vec::new();
        for node in gpu.nodes(graph)? {
            if gpu.cuGraphNodeGetType(node)?.out == CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
                nodes.push(node);
            }
        }
        let [node] = nodes[..] else {
            return Err(Failure::Other(format!("{} kernels were captured", nodes.len())));
        };
        let mut step = |which: &str, params: &CUDA_KERNEL_NODE_PARAMS_v2| {
            answer.add(which, gpu.cuGraphKernelNodeSetParams(node, params)?);
            let context = gpu.kernel_params(node)?.ctx;
            let known =
                [("primary", gpu.primary()?), ("a", pair.contexts[0]), ("b", pair.contexts[1])];
            answer.add(format!("{which}_context"), super::name(context, &known));
            let exec = gpu.executable(graph)?;
            answer.add(format!("{which}_sms"), probe.sms_of(gpu, exec, stream)?.len());
            Ok::<(), Failure>(())
        };
        let read = gpu.kernel_params(node)?;
        step("as_read", &CUDA_KERNEL_NODE_PARAMS_v2 { ctx: pair.contexts[0], ..read })?;
        let kern = gpu.probe_kernel()?;
        let moved = |context| {
            let read = gpu.kernel_params(node)?;
            let (func, ctx) = (null_mut(), context);
            Ok::<_, Failure>(CUDA_KERNEL_NODE_PARAMS_v2 { func, kern, ctx, ..read })
        };
        step("to_a", &moved(pair.contexts[0])?)?;
        step("to_b", &moved(pair.contexts[1])?)?;
        step("back", &moved(gpu.primary()?)?)?;
        let fresh = fill(scratch, 9, 32);
        let fills = gpu.cuGraphAddMemsetNode(graph, &[node], &fresh, pair.contexts[0])?;
        answer.add("a_fill_on_a_partition", fills);
        let _ = &mut probe;
        Ok(())
    })
}

/// How work for a partition's stream was captured.
#[derive(Clone, Copy)]
enum Captured {
    InThePartition,
    InThePrimaryContext,
    /// Not captured: the kernel is launched directly.
    Nowhere,
}

/// Work of `LONG` for a partition's stream.
struct Busy<'a> {
    gpu: &'a Gpu,
    pair: Pair,
    memory: CUdeviceptr,
    exec: Option<CUgraphExec>,
}

impl<'a> Busy<'a> {
    fn new(gpu: &'a Gpu, captured: Captured) -> Result<Busy<'a>, Failure> {
        let (pair, memory) = (Pair::new(gpu)?, gpu.probe_memory(1)?);
        let stream = pair.streams[0];
        // The first launch loads the kernel, which waits for the device.
        gpu.launch_probe(stream, 1, memory, SHORT)?;
        gpu.cuStreamSynchronize(stream)?.must()?;
        let captured_on = match captured {
            Captured::InThePartition => Some(stream),
            Captured::InThePrimaryContext => Some(gpu.stream()?),
            Captured::Nowhere => None,
        };
        let run = |on| gpu.launch_probe(on, 1, memory, LONG).map(drop);
        let capture = |on| gpu.executable(gpu.captured(on, || run(on))?);
        let exec = captured_on.map(capture).transpose()?;
        Ok(Busy { gpu, pair, memory, exec })
    }

    fn stream(&self) -> CUstream {
        self.pair.streams[0]
    }

    fn start(&self) -> Result<CUresult, Failure> {
        match self.exec {
            Some(exec) => Ok(self.gpu.cuGraphLaunch(exec, self.stream())?.status),
            None => self.gpu.launch_probe(self.stream(), 1, self.memory, LONG),
        }
    }

    /// Returns whether the work is done, and waits for it.
    fn query(&self) -> Result<CUresult, Failure> {
        let status = self.gpu.cuStreamQuery(self.stream())?.status;
        self.gpu.cuStreamSynchronize(self.stream())?.must()?;
        Ok(status)
    }
}

/// A case: do waits of the primary context cover work that was submitted to a partition's stream, and do they
/// after a memset in that stream?
fn primary_waits(work: &str, captured: Captured) -> Case {
    let name = format!("graph/primary-context-waits-for-{work}-in-a-partition");
    Case::new(name, move |gpu, answer| {
        let busy = Busy::new(gpu, captured)?;
        let (other, event) = (gpu.probe_memory(1)?, gpu.event()?);
        answer.add("launch", busy.start()?);
        answer.add("record", gpu.cuCtxRecordEvent(gpu.primary()?, event)?);
        answer.add("event_query", gpu.cuEventQuery(event)?);
        answer.add("synchronize", gpu.cuCtxSynchronize()?);
        answer.add("query_after_synchronize", busy.query()?);
        answer.add("launch_again", busy.start()?);
        answer.add("free", gpu.cuMemFree(other)?);
        answer.add("query_after_free", busy.query()?);
        answer.add("launch_before_memset", busy.start()?);
        answer.add("memset", gpu.cuMemsetD8Async(busy.memory, 0, 1, busy.stream())?);
        answer.add("synchronize_behind_memset", gpu.cuCtxSynchronize()?);
        answer.add("query_behind_memset", gpu.cuStreamQuery(busy.stream())?);
        Ok(())
    })
    .alone()
}

/// A case: do waits of a partition's own context, and of another partition's, cover work in its stream?
fn own_waits(work: &str, captured: Captured) -> Case {
    Case::new(format!("graph/own-context-waits-for-{work}"), move |gpu, answer| {
        let (busy, event) = (Busy::new(gpu, captured)?, gpu.event()?);
        for (whose, context) in ["own", "other"].into_iter().zip(busy.pair.contexts) {
            busy.start()?;
            answer.add(format!("{whose}_record"), gpu.cuCtxRecordEvent(context, event)?);
            answer.add(format!("{whose}_event"), gpu.cuEventQuery(event)?);
            gpu.push(context)?;
            answer.add(format!("{whose}_synchronize"), gpu.cuCtxSynchronize()?);
            gpu.pop()?;
            answer.add(format!("query_after_{whose}"), busy.query()?);
        }
        Ok(())
    })
    .alone()
}

/// A case: do calls that destroy something wait for work in a partition's stream?
fn destroyed_behind(work: &str, captured: Captured) -> Case {
    Case::new(format!("graph/destroyed-behind-{work}-in-a-partition"), move |gpu, answer| {
        let busy = Busy::new(gpu, captured)?;
        let pinned = gpu.cuMemAllocHost(64)?.must()?;
        busy.start()?;
        answer.add("free_host", gpu.cuMemFreeHost(pinned)?);
        answer.add("query_after_free_host", busy.query()?);
        let module = gpu.cuModuleLoadData(ptx())?.must()?;
        busy.start()?;
        answer.add("unload", gpu.cuModuleUnload(module)?);
        answer.add("query_after_unload", busy.query()?);
        Ok(())
    })
    .alone()
}

/// Does unloading a library wait for a graph with its kernel, if nothing else keeps the graph alive?
fn unloaded_behind(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let pair = Pair::new(gpu)?;
    let (stream, memory) = (pair.streams[0], gpu.probe_memory(1)?);
    gpu.launch_probe(stream, 1, memory, SHORT)?;
    gpu.cuStreamSynchronize(stream)?.must()?;
    let graph = gpu.captured(stream, || {
        let mut params = probe_params(memory, LONG);
        gpu.cuLaunchKernel(gpu.probe()?, 1, THREADS, stream, &mut params)?.must()
    })?;
    let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?.must()?;
    answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
    answer.add("destroy_exec", gpu.cuGraphExecDestroy(exec)?);
    answer.add("destroy", gpu.cuGraphDestroy(graph)?);
    answer.add("query_before", gpu.cuStreamQuery(stream)?);
    answer.add("unload", gpu.cuLibraryUnload(gpu.library()?)?);
    answer.add("query_after", gpu.cuStreamQuery(stream)?);
    answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
    Ok(())
}

/// Do waits of a whole context cover nodes that run in it but were launched in another context's stream?
fn context_waits(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let pair = Pair::new(gpu)?;
    let (graph, mut probe) = (gpu.graph()?, ProbeNode::new(gpu, 1, LONG)?);
    let params = probe.on(gpu, pair.contexts[0])?;
    gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
    let events = [gpu.event()?, gpu.event()?, gpu.event()?];
    gpu.cuGraphUpload(exec, stream)?.must()?;
    gpu.cuStreamSynchronize(stream)?.must()?;
    answer.add("launch", gpu.cuGraphLaunch(exec, stream)?);
    answer.add("record_its_context", gpu.cuGreenCtxRecordEvent(pair.greens[0], events[0])?);
    answer.add("record_the_other", gpu.cuGreenCtxRecordEvent(pair.greens[1], events[1])?);
    answer.add("record_primary", gpu.cuCtxRecordEvent(gpu.primary()?, events[2])?);
    answer.add("its_context_query", gpu.cuEventQuery(events[0])?);
    answer.add("the_other_query", gpu.cuEventQuery(events[1])?);
    answer.add("primary_query", gpu.cuEventQuery(events[2])?);
    gpu.push(pair.contexts[0])?;
    answer.add("synchronize", gpu.cuCtxSynchronize()?);
    answer.add("stream_query_after_that", gpu.cuStreamQuery(stream)?);
    gpu.pop()?;
    answer.add("stream_synchronize", gpu.cuStreamSynchronize(stream)?);
    Ok(())
}

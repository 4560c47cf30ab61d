//! Nodes of other kinds: memsets, copies, host functions, events, child graphs.

use core::ptr::null_mut;

use green_ctx_sys::*;
use serde_json::json;

use super::{Case, ProbeNode, fill, host, no_copy, unwritten, upload};
use crate::answer::{Answer, Failure, Outcome};
use crate::cases::Needs;
use crate::gpu::{Gpu, SHORT};

/// One name per kind of node.
const KINDS: [&str; 6] = ["kernel", "memcpy", "memset", "host", "graph", "empty"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = KINDS.map(of_kind).into();
    cases.extend([
        Case::new("graph/memset-params", |gpu, answer| {
            let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(4096)?.must()?);
            let context = gpu.primary()?;
            let mut tried = |what: &str, params: CUDA_MEMSET_NODE_PARAMS_v1| {
                let node = gpu.cuGraphAddMemsetNode(graph, &[], &params, context)?;
                answer.add(what, node);
                if node.is_ok() {
                    let mut read = fill(0, 0, 0);
                    gpu.cuGraphMemsetNodeGetParams(node.out, &mut read)?.must()?;
                    answer.add(
                        format!("{what}_read"),
                        json!([
                            read.dst == params.dst,
                            read.value,
                            read.elementSize,
                            read.width,
                            read.height
                        ]),
                    );
                }
                Ok::<(), Failure>(())
            };
            let plain = fill(memory, 7, 64);
            tried("bytes", plain)?;
            for size in [0, 2, 3, 4, 8] {
                tried(
                    &format!("elements_of_{size}"),
                    CUDA_MEMSET_NODE_PARAMS_v1 { elementSize: size, value: 0x0102_0304, ..plain },
                )?;
            }
            tried("large_value", fill(memory, 0x1234, 64))?;
            tried("no_width", fill(memory, 7, 0))?;
            tried("no_height", CUDA_MEMSET_NODE_PARAMS_v1 { height: 0, ..plain })?;
            let rows = CUDA_MEMSET_NODE_PARAMS_v1 { height: 2, pitch: 128, ..plain };
            tried("rows", rows)?;
            tried("rows_that_overlap", CUDA_MEMSET_NODE_PARAMS_v1 { pitch: 32, ..rows })?;
            tried(
                "misaligned",
                CUDA_MEMSET_NODE_PARAMS_v1 { dst: memory + 1, elementSize: 4, ..plain },
            )?;
            tried("null", fill(0, 7, 64))?;
            tried("beyond_the_end", fill(memory, 7, 4 << 20))?;
            Ok(())
        })
        .alone(),
        Case::new("graph/memset-context", |gpu, answer| {
            let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(64)?.must()?);
            let params = fill(memory, 7, 64);
            let green = gpu.context_of(gpu.green_with(32)?)?;
            answer.add("green", gpu.cuGraphAddMemsetNode(graph, &[], &params, green)?);
            answer.add("null", gpu.cuGraphAddMemsetNode(graph, &[], &params, null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("graph/memset-set", |gpu, answer| {
            let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(64)?.must()?);
            let params = fill(memory, 7, 64);
            let node = gpu.cuGraphAddMemsetNode(graph, &[], &params, gpu.primary()?)?.must()?;
            answer.add("set", gpu.cuGraphMemsetNodeSetParams(node, &fill(memory, 9, 32))?);
            let mut read = fill(0, 0, 0);
            gpu.cuGraphMemsetNodeGetParams(node, &mut read)?.must()?;
            answer.add("read", json!([read.value, read.width]));
            answer.add("no_width", gpu.cuGraphMemsetNodeSetParams(node, &fill(memory, 9, 0))?);
            Ok(())
        }),
        Case::new("graph/memcpy-params", memcpy_params).alone(),
        Case::new("graph/memcpy-set", |gpu, answer| {
            let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(64)?.must()?);
            let from = [7; 64];
            let params = upload(memory, &from);
            let node = gpu.cuGraphAddMemcpyNode(graph, &[], &params, gpu.primary()?)?.must()?;
            answer.add("set", gpu.cuGraphMemcpyNodeSetParams(node, &upload(memory, &from[..32]))?);
            let mut read = no_copy();
            gpu.cuGraphMemcpyNodeGetParams(node, &mut read)?.must()?;
            answer.add("width", read.WidthInBytes);
            answer.add("nothing", gpu.cuGraphMemcpyNodeSetParams(node, &no_copy())?);
            Ok(())
        }),
        Case::new("graph/memcpy-context", |gpu, answer| {
            let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(64)?.must()?);
            let from = [7; 64];
            let params = upload(memory, &from);
            let green = gpu.context_of(gpu.green_with(32)?)?;
            answer.add("green", gpu.cuGraphAddMemcpyNode(graph, &[], &params, green)?);
            answer.add("null", gpu.cuGraphAddMemcpyNode(graph, &[], &params, null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("graph/child", child),
        Case::new("graph/child-of-itself", |gpu, answer| {
            let graph = gpu.graph()?;
            gpu.empty_node(graph, &[])?;
            answer.add("add", gpu.cuGraphAddChildGraphNode(graph, &[], graph)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/child-of-nothing", |gpu, answer| {
            answer.add("add", gpu.cuGraphAddChildGraphNode(gpu.graph()?, &[], null_mut())?);
            Ok(())
        })
        .alone(),
        Case::new("graph/add-with-none-current", |gpu, answer| {
            let graph = gpu.cuGraphCreate(0)?;
            answer.add("create", graph);
            let graph = graph.must()?;
            answer.add("empty", gpu.cuGraphAddEmptyNode(graph, &[])?);
            answer.add("host", gpu.cuGraphAddHostNode(graph, &[], &host(null_mut()))?);
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
            answer.add("instantiate", exec);
            if exec.is_ok() {
                answer.add("destroy_exec", gpu.cuGraphExecDestroy(exec.out)?);
            }
            answer.add("destroy", gpu.cuGraphDestroy(graph)?);
            Ok(())
        })
        .needs(Needs::Init)
        .alone(),
    ]);
    cases
}

/// Adds a node of a kind to a graph.
fn make(gpu: &Gpu, graph: CUgraph, kind: &str) -> Result<CUgraphNode, Failure> {
    let context = gpu.primary()?;
    match kind {
        "kernel" => {
            let mut probe = ProbeNode::new(gpu, 1, SHORT)?;
            gpu.cuGraphAddKernelNode(graph, &[], &probe.on(gpu, context)?)?.must()
        }
        "memcpy" => {
            let memory = gpu.cuMemAlloc(64)?.must()?;
            gpu.cuGraphAddMemcpyNode(graph, &[], &upload(memory, &[7; 64]), context)?.must()
        }
        "memset" => {
            let memory = gpu.cuMemAlloc(64)?.must()?;
            gpu.cuGraphAddMemsetNode(graph, &[], &fill(memory, 7, 64), context)?.must()
        }
        "host" => gpu.cuGraphAddHostNode(graph, &[], &host(null_mut()))?.must(),
        "graph" => gpu.cuGraphAddChildGraphNode(graph, &[], gpu.graph()?)?.must(),
        _ => gpu.empty_node(graph, &[]),
    }
}

/// A case that calls the functions of all kinds on a node of one kind.
fn of_kind(kind: &'static str) -> Case {
    Case::new(format!("graph/asking-a-{kind}-node"), move |gpu, answer| {
        let graph = gpu.graph()?;
        let node = make(gpu, graph, kind)?;
        answer.add("type", gpu.cuGraphNodeGetType(node)?.out.to_string());
        answer.add("kernel", gpu.cuGraphKernelNodeGetParams(node, &mut unwritten())?);
        answer.add("memcpy", gpu.cuGraphMemcpyNodeGetParams(node, &mut no_copy())?);
        answer.add("memset", gpu.cuGraphMemsetNodeGetParams(node, &mut fill(0, 0, 0))?);
        answer.add("graph", gpu.cuGraphChildGraphNodeGetGraph(node)?);
        let priority = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
        answer.add("attribute", gpu.cuGraphKernelNodeGetAttribute(node, priority)?);
        answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(graph, 0)?);
        Ok(())
    })
    .alone()
}

fn memcpy_params(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (graph, memory) = (gpu.graph()?, gpu.cuMemAlloc(4096)?.must()?);
    let context = gpu.primary()?;
    let from = vec![7; 4096];
    let mut tried = |what: &str, params: CUDA_MEMCPY3D_v2| {
        let node = gpu.cuGraphAddMemcpyNode(graph, &[], &params, context)?;
        answer.add(what, node);
        if node.is_ok() {
            let mut read = no_copy();
            gpu.cuGraphMemcpyNodeGetParams(node.out, &mut read)?.must()?;
            answer.add(
                format!("{what}_read"),
                json!([
                    read.srcMemoryType.0,
                    read.dstMemoryType.0,
                    read.srcHost == params.srcHost,
                    read.dstDevice == params.dstDevice,
                    read.WidthInBytes,
                    read.Height,
                    read.Depth
                ]),
            );
        }
        Ok::<(), Failure>(())
    };
    let plain = upload(memory, &from[..64]);
    tried("upload", plain)?;
    let device = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    let within = CUDA_MEMCPY3D_v2 {
        srcMemoryType: device,
        srcHost: core::ptr::null(),
        srcDevice: memory + 1024,
        ..plain
    };
    tried("within_the_device", within)?;
    let unified = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
    tried("unified", CUDA_MEMCPY3D_v2 { srcMemoryType: unified, ..within })?;
    tried("no_width", CUDA_MEMCPY3D_v2 { WidthInBytes: 0, ..plain })?;
    tried("no_height", CUDA_MEMCPY3D_v2 { Height: 0, ..plain })?;
    tried("no_depth", CUDA_MEMCPY3D_v2 { Depth: 0, ..plain })?;
    let rows = CUDA_MEMCPY3D_v2 { Height: 4, srcPitch: 128, dstPitch: 256, ..plain };
    tried("rows", rows)?;
    tried("rows_that_overlap", CUDA_MEMCPY3D_v2 { dstPitch: 32, ..rows })?;
    tried("unknown_type", CUDA_MEMCPY3D_v2 { srcMemoryType: CUmemorytype(9), ..plain })?;
    tried("null_host", CUDA_MEMCPY3D_v2 { srcHost: core::ptr::null(), ..plain })?;
    tried("null_device", CUDA_MEMCPY3D_v2 { dstDevice: 0, ..plain })?;
    Ok(())
}

fn child(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (graph, inner) = (gpu.graph()?, gpu.graph()?);
    gpu.empty_node(inner, &[])?;
    let node = gpu.cuGraphAddChildGraphNode(graph, &[], inner)?;
    answer.add("add", node);
    let child = gpu.cuGraphChildGraphNodeGetGraph(node.must()?)?;
    answer.add("get", child);
    let child = child.must()?;
    answer.add("is_a_copy", child != inner);
    answer.add("nodes", gpu.nodes(child)?.len());
    gpu.empty_node(inner, &[])?;
    answer.add("nodes_after_adding_to_the_original", gpu.nodes(child)?.len());
    answer.add("add_to_the_child", gpu.cuGraphAddEmptyNode(child, &[])?);
    answer.add("nodes_after_that", gpu.nodes(child)?.len());
    let again = gpu.cuGraphChildGraphNodeGetGraph(node.out)?.must()?;
    answer.add("same_graph_again", again == child);
    answer.add("destroy_the_original", gpu.cuGraphDestroy(inner)?);
    answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(graph, 0)?);
    let clone = gpu.cuGraphClone(graph)?.must()?;
    let cloned = gpu.cuGraphChildGraphNodeGetGraph(gpu.nodes(clone)?[0])?.must()?;
    answer.add("a_clone_has_its_own", cloned != child);
    answer.add("nodes_of_the_clone_s", gpu.nodes(cloned)?.len());
    Ok(())
}

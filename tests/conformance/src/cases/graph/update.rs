//! Updating an executable from a graph: what is allowed, and what is said of the rest.

use core::ptr::null_mut;

use green_ctx_sys::*;
use serde_json::{Value, json};

use super::{BLOCKS, Case, ProbeNode, fill, host, name, upload};
use crate::answer::{Answer, Fact, Failure, Outcome};
use crate::gpu::{Gpu, SHORT, THREADS};

/// Makes a graph, as it was instantiated (`false`) or as it is updated from (`true`), and names its
/// nodes.
type Make = fn(&Gpu, CUgraph, bool) -> Result<Vec<(&'static str, CUgraphNode)>, Failure>;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        ("same", (|gpu, graph, _| kernels(gpu, graph, 1, THREADS)) as Make),
        ("grid", |gpu, graph, changed| kernels(gpu, graph, if changed { 2 } else { 1 }, THREADS)),
        ("block", |gpu, graph, changed| kernels(gpu, graph, 1, if changed { 32 } else { THREADS })),
        ("more-nodes", |gpu, graph, changed| {
            let mut nodes = kernels(gpu, graph, 1, THREADS)?;
            if changed {
                nodes.push(("extra", gpu.empty_node(graph, &[])?));
            }
            Ok(nodes)
        }),
        ("more-exits", |gpu, graph, changed| {
            let first = gpu.empty_node(graph, &[])?;
            let after = [first];
            let second = gpu.empty_node(graph, if changed { &[] } else { &after })?;
            Ok(vec![("first", first), ("second", second)])
        }),
        ("fewer-exits", |gpu, graph, changed| {
            let first = gpu.empty_node(graph, &[])?;
            let after = [first];
            let second = gpu.empty_node(graph, if changed { &after } else { &[] })?;
            Ok(vec![("first", first), ("second", second)])
        }),
        ("dependencies", |gpu, graph, changed| {
            let first = gpu.empty_node(graph, &[])?;
            let second = gpu.empty_node(graph, &[first])?;
            let both = [first, second];
            let third = gpu.empty_node(graph, if changed { &both } else { &both[1..] })?;
            Ok(vec![("first", first), ("second", second), ("third", third)])
        }),
        ("order-of-nodes", |gpu, graph, changed| {
            let memory = gpu.cuMemAlloc(64)?.must()?;
            let context = gpu.primary()?;
            let empty = |after: &[CUgraphNode]| gpu.empty_node(graph, after);
            let filling =
                || gpu.cuGraphAddMemsetNode(graph, &[], &fill(memory, 7, 64), context)?.must();
            let (first, second) = if changed {
                let second = empty(&[])?;
                let first = filling()?;
                gpu.cuGraphAddDependencies(graph, &[first], &[second], core::ptr::null())?
                    .must()?;
                (first, second)
            } else {
                let first = filling()?;
                (first, empty(&[first])?)
            };
            Ok(vec![("first", first), ("second", second)])
        }),
        ("type", |gpu, graph, changed| {
            let node = if changed {
                gpu.cuGraphAddHostNode(graph, &[], &host(null_mut()))?.must()?
            } else {
                gpu.empty_node(graph, &[])?
            };
            Ok(vec![("node", node)])
        }),
        ("kernel", |gpu, graph, changed| {
            let mut probe = ProbeNode::new(gpu, 1, SHORT)?;
            let mut params = probe.on(gpu, gpu.primary()?)?;
            if changed {
                // The other kernel of the library has one parameter, and reads the first of two.
                params.kern = gpu.cuLibraryGetKernel(gpu.library()?, c"green_ctx_fault")?.must()?;
            }
            Ok(vec![("kernel", gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?)])
        }),
        ("cooperative", |gpu, graph, changed| {
            attribute(gpu, graph, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, changed)
        }),
        ("priority", |gpu, graph, changed| {
            attribute(gpu, graph, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, changed)
        }),
        ("memset-value", |gpu, graph, changed| {
            memset(gpu, graph, |params| params.value = if changed { 9 } else { 7 })
        }),
        ("memset-width", |gpu, graph, changed| {
            memset(gpu, graph, |params| params.width = if changed { 32 } else { 64 })
        }),
        ("memset-height", |gpu, graph, changed| {
            memset(gpu, graph, |params| {
                (params.height, params.pitch) = if changed { (2, 128) } else { (1, 0) };
            })
        }),
        ("memset-2d-value", |gpu, graph, changed| {
            memset(gpu, graph, |params| {
                (params.height, params.pitch) = (2, 128);
                params.value = if changed { 9 } else { 7 };
            })
        }),
        ("memset-2d-width", |gpu, graph, changed| {
            memset(gpu, graph, |params| {
                (params.height, params.pitch) = (2, 128);
                params.width = if changed { 32 } else { 64 };
            })
        }),
        ("memset-element", |gpu, graph, changed| {
            memset(gpu, graph, |params| {
                (params.elementSize, params.width) = if changed { (4, 16) } else { (1, 64) };
            })
        }),
        ("memcpy-kind", |gpu, graph, changed| {
            let memory = gpu.cuMemAlloc(256)?.must()?;
            let mut params = upload(memory, &[7; 64]);
            if changed {
                params.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
                (params.srcHost, params.srcDevice) = (core::ptr::null(), memory + 128);
            }
            let node = gpu.cuGraphAddMemcpyNode(graph, &[], &params, gpu.primary()?)?.must()?;
            Ok(vec![("copy", node)])
        }),
        ("memcpy-length", |gpu, graph, changed| {
            let memory = gpu.cuMemAlloc(256)?.must()?;
            let length = if changed { 32 } else { 64 };
            let params = upload(memory, &[7; 64][..length]);
            let node = gpu.cuGraphAddMemcpyNode(graph, &[], &params, gpu.primary()?)?.must()?;
            Ok(vec![("copy", node)])
        }),
        ("events", |gpu, graph, _| {
            let record = gpu.cuGraphAddEventRecordNode(graph, &[], gpu.event()?)?.must()?;
            let wait = gpu.cuGraphAddEventWaitNode(graph, &[], gpu.event()?)?.must()?;
            Ok(vec![("record", record), ("wait", wait)])
        }),
        ("child", |gpu, graph, changed| {
            let inner = gpu.graph()?;
            kernels(gpu, inner, if changed { 2 } else { 1 }, THREADS)?;
            let node = gpu.cuGraphAddChildGraphNode(graph, &[], inner)?.must()?;
            Ok(vec![("child", node)])
        }),
        ("child-of-another-shape", |gpu, graph, changed| {
            let inner = gpu.graph()?;
            gpu.empty_node(inner, &[])?;
            if changed {
                gpu.empty_node(inner, &[])?;
            }
            let node = gpu.cuGraphAddChildGraphNode(graph, &[], inner)?.must()?;
            Ok(vec![("child", node)])
        }),
    ]
    .map(|(what, make)| update(what, make))
    .into();
    for fills in [false, true] {
        for (from, to) in [("primary", "green"), ("green", "primary"), ("green", "other")] {
            cases.push(to_another_context(from, to, fills));
        }
    }
    cases.push(Case::new("graph/update-500-kernels-to-another-context", |gpu, answer| {
        let mut probe = ProbeNode::new(gpu, BLOCKS, core::time::Duration::from_micros(1))?;
        chain(gpu, answer, &mut probe, "primary", "green", 500, false)
    }));
    cases
}

/// Two kernels, one after the other.
fn kernels(
    gpu: &Gpu,
    graph: CUgraph,
    blocks: u32,
    threads: u32,
) -> Result<Vec<(&'static str, CUgraphNode)>, Failure> {
    let mut probe = ProbeNode::new(gpu, 2, SHORT)?;
    let mut params = probe.on(gpu, gpu.primary()?)?;
    (params.gridDimX, params.blockDimX) = (blocks, threads);
    let first = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
    let second = gpu.cuGraphAddKernelNode(graph, &[first], &params)?.must()?;
    Ok(vec![("first", first), ("second", second)])
}

/// A kernel with an attribute of 1, or with the attribute left alone.
fn attribute(
    gpu: &Gpu,
    graph: CUgraph,
    id: CUlaunchAttributeID,
    changed: bool,
) -> Result<Vec<(&'static str, CUgraphNode)>, Failure> {
    let mut probe = ProbeNode::new(gpu, 1, SHORT)?;
    let node = gpu.cuGraphAddKernelNode(graph, &[], &probe.on(gpu, gpu.primary()?)?)?.must()?;
    if changed {
        let mut value = CUlaunchAttributeValue { pad: [0; 64] };
        if id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY {
            value.priority = -1;
        } else {
            value.cooperative = 1;
        }
        gpu.cuGraphKernelNodeSetAttribute(node, id, &value)?.must()?;
    }
    Ok(vec![("kernel", node)])
}

/// A fill of 64 bytes with something changed.
fn memset(
    gpu: &Gpu,
    graph: CUgraph,
    change: impl FnOnce(&mut CUDA_MEMSET_NODE_PARAMS_v1),
) -> Result<Vec<(&'static str, CUgraphNode)>, Failure> {
    let mut params = fill(gpu.cuMemAlloc(1024)?.must()?, 7, 64);
    change(&mut params);
    let node = gpu.cuGraphAddMemsetNode(graph, &[], &params, gpu.primary()?)?.must()?;
    Ok(vec![("fill", node)])
}

/// Updates, and returns what came of it.
fn outcome(
    gpu: &Gpu,
    exec: CUgraphExec,
    graph: CUgraph,
    names: &[(&str, CUgraphNode)],
) -> Result<Value, Failure> {
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: null_mut(),
        errorFromNode: null_mut(),
    };
    let status = gpu.cuGraphExecUpdate(exec, graph, &mut info)?;
    Ok(json!({
        "status": status.value(),
        "result": info.result.to_string(),
        "node": name(info.errorNode, names),
        "from": name(info.errorFromNode, names),
    }))
}

/// An executable of a graph, updated from the graph with one thing changed.
fn update(what: &str, make: Make) -> Case {
    Case::new(format!("graph/update-{what}"), move |gpu, answer| {
        let (before, after) = (gpu.graph()?, gpu.graph()?);
        make(gpu, before, false)?;
        let exec = gpu.executable(before)?;
        let names = make(gpu, after, true)?;
        answer.add("update", outcome(gpu, exec, after, &names)?);
        Ok(())
    })
    .alone()
}

/// A kernel that moved to another context, alone or with a fill before it.
fn to_another_context(from: &'static str, to: &'static str, fills: bool) -> Case {
    let with = if fills { "-with-a-fill" } else { "" };
    Case::new(format!("graph/update-{from}-to-{to}{with}"), move |gpu, answer| {
        let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
        chain(gpu, answer, &mut probe, from, to, 1, fills)
    })
}

/// A chain of kernels that is instantiated in one context and updated from the same in another.
fn chain(
    gpu: &Gpu,
    answer: &mut Answer<'_>,
    probe: &mut ProbeNode,
    from: &str,
    to: &str,
    kernels: usize,
    fills: bool,
) -> Outcome {
    let split = gpu.split(&gpu.device_resource()?, 0, 2, 32)?.must()?;
    let (green, other) = (gpu.green(&split.groups[..1])?, gpu.green(&split.groups[1..2])?);
    let (green, other) = (gpu.context_of(green)?, gpu.context_of(other)?);
    let context = |which: &str| match which {
        "green" => Ok(green),
        "other" => Ok(other),
        _ => gpu.primary(),
    };
    let graph = gpu.graph()?;
    let mut nodes = Vec::new();
    let mut after = Vec::new();
    if fills {
        let params = fill(gpu.cuMemAlloc(64)?.must()?, 7, 64);
        after = vec![gpu.cuGraphAddMemsetNode(graph, &[], &params, gpu.primary()?)?.must()?];
    }
    for _ in 0..kernels {
        let params = probe.on(gpu, context(from)?)?;
        let node = gpu.cuGraphAddKernelNode(graph, &after, &params)?.must()?;
        nodes.push(node);
        after = vec![node];
    }
    let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
    answer.add("sms_before", probe.sms_of(gpu, exec, stream)?.len());
    for node in &nodes {
        let params = probe.on(gpu, context(to)?)?;
        gpu.cuGraphKernelNodeSetParams(*node, &params)?.must()?;
    }
    answer.add("update", outcome(gpu, exec, graph, &[("first", nodes[0])])?);
    answer.add("sms_after", probe.sms_of(gpu, exec, stream)?.len());
    let params = probe.on(gpu, context(to)?)?;
    answer.add("set", gpu.cuGraphExecKernelNodeSetParams(exec, nodes[0], &params)?);
    answer.add("new_executable_sms", probe.sms_of(gpu, gpu.executable(graph)?, stream)?.len());
    Ok(())
}

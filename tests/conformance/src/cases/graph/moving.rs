//! Moving kernel nodes with the parameters that the driver returned: the current context decides.

use green_ctx_sys::*;
use serde_json::{Value, json};

use super::kernel::{numbers, value};
use super::partition::{Pair, launch};
use super::{BLOCKS, Case, ProbeNode, name};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{Gpu, SHORT, THREADS, probe_params, ptx};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        as_read("a-kernel", |gpu, _| gpu.probe()),
        as_read("a-function", |gpu, _| gpu.cuKernelGetFunction(gpu.probe_kernel()?)?.must()),
        as_read("a-module-s-function", |gpu, _| module_s_function(gpu)),
        as_read("a-function-of-a-module-loaded-on-green", |gpu, pair| {
            gpu.push(pair.contexts[1])?;
            let function = module_s_function(gpu);
            gpu.pop()?;
            function
        }),
        Case::new("graph/move-with-neither-func-nor-kern", |gpu, answer| {
            let (pair, graph) = (Pair::new(gpu)?, gpu.graph()?);
            let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
            let params = probe.on(gpu, gpu.primary()?)?;
            let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
            let read = gpu.kernel_params(node)?;
            let neither = CUDA_KERNEL_NODE_PARAMS_v2 {
                func: core::ptr::null_mut(),
                kern: core::ptr::null_mut(),
                ..read
            };
            gpu.push(pair.contexts[0])?;
            answer.add("set", gpu.cuGraphKernelNodeSetParams(node, &neither)?);
            gpu.pop()?;
            answer.add("node", place(gpu, &pair, node)?);
            Ok(())
        }),
        Case::new("graph/move-with-none-current", |gpu, answer| {
            let (pair, graph) = (Pair::new(gpu)?, gpu.graph()?);
            let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
            let params = probe.on(gpu, pair.contexts[0])?;
            let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
            let read = gpu.kernel_params(node)?;
            let without = CUDA_KERNEL_NODE_PARAMS_v2 { func: core::ptr::null_mut(), ..read };
            let primary = gpu.pop()?;
            answer.add("as_read", gpu.cuGraphKernelNodeSetParams(node, &read)?);
            answer.add("without_func", gpu.cuGraphKernelNodeSetParams(node, &without)?);
            gpu.push(primary)?;
            answer.add("node", place(gpu, &pair, node)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/move-nodes-of-children", children),
    ];
    cases.extend(["the-original-s", "its-own"].map(of_a_clone));
    cases.extend([
        keeps("cluster", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &[2, 1, 1]),
        keeps("cooperative", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &[1]),
        keeps("priority", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, &[-2]),
    ]);
    cases
}

/// Returns the probe of a module that is loaded into the current context.
fn module_s_function(gpu: &Gpu) -> Result<CUfunction, Failure> {
    let module = gpu.cuModuleLoadData(ptx())?.must()?;
    gpu.cuModuleGetFunction(module, c"green_ctx_probe")?.must()
}

/// Returns the context that a node runs in, and whether it has a library kernel.
fn place(gpu: &Gpu, pair: &Pair, node: CUgraphNode) -> Result<Value, Failure> {
    let params = gpu.kernel_params(node)?;
    let known = [("primary", gpu.primary()?), ("a", pair.contexts[0]), ("b", pair.contexts[1])];
    Ok(json!({ "ctx": name(params.ctx, &known), "kern": !params.kern.is_null() }))
}

/// A case that sets the parameters that were read, with different contexts current.
fn as_read(
    what: &str,
    function: impl Fn(&Gpu, &Pair) -> Result<CUfunction, Failure> + 'static,
) -> Case {
    Case::new(format!("graph/move-as-read-{what}"), move |gpu, answer| {
        let pair = Pair::new(gpu)?;
        let (probe, stream) = (ProbeNode::new(gpu, BLOCKS, SHORT)?, gpu.stream()?);
        let function = function(gpu, &pair)?;
        let graph = gpu.captured(stream, || {
            let mut params = probe_params(probe.memory, SHORT);
            gpu.cuLaunchKernel(function, BLOCKS, THREADS, stream, &mut params)?.must()
        })?;
        let node = gpu.nodes(graph)?[0];
        answer.add("before", place(gpu, &pair, node)?);
        let contexts = [("a", pair.contexts[0]), ("b", pair.contexts[1]), ("back", gpu.primary()?)];
        for (which, context) in contexts {
            let read = gpu.kernel_params(node)?;
            gpu.push(context)?;
            answer.add(format!("to_{which}"), gpu.cuGraphKernelNodeSetParams(node, &read)?);
            gpu.pop()?;
            answer.add(format!("to_{which}_node"), place(gpu, &pair, node)?);
            let exec = gpu.executable(graph)?;
            answer.add(format!("to_{which}_sms"), probe.sms_of(gpu, exec, stream)?.len());
        }
        Ok(())
    })
}

/// A case that moves the node of a clone, with parameters read from the original or from the clone.
fn of_a_clone(whose: &'static str) -> Case {
    Case::new(format!("graph/move-a-clone-with-{whose}-params"), move |gpu, answer| {
        let pair = Pair::new(gpu)?;
        let (probe, stream) = (ProbeNode::new(gpu, BLOCKS, SHORT)?, gpu.stream()?);
        let graph = gpu.captured(stream, || launch(gpu, stream, &probe))?;
        let clone = gpu.cuGraphClone(graph)?.must()?;
        let node = gpu.nodes(graph)?[0];
        let cloned = gpu.nodes(clone)?[0];
        let read = gpu.kernel_params(if whose == "its-own" { cloned } else { node })?;
        gpu.push(pair.contexts[0])?;
        answer.add("set", gpu.cuGraphKernelNodeSetParams(cloned, &read)?);
        gpu.pop()?;
        for (which, graph, node) in [("clone", clone, cloned), ("original", graph, node)] {
            answer.add(format!("{which}_node"), place(gpu, &pair, node)?);
            let exec = gpu.executable(graph)?;
            answer.add(format!("{which}_sms"), probe.sms_of(gpu, exec, stream)?.len());
        }
        Ok(())
    })
}

/// A case that moves a node with an attribute.
fn keeps(what: &str, id: CUlaunchAttributeID, set: &'static [i32]) -> Case {
    Case::new(format!("graph/move-keeps-{what}"), move |gpu, answer| {
        let (pair, graph) = (Pair::new(gpu)?, gpu.graph()?);
        // The maximum number of blocks that a partition holds at the same time.
        let mut probe = ProbeNode::new(gpu, 64, SHORT)?;
        let params = probe.on(gpu, gpu.primary()?)?;
        let node = gpu.cuGraphAddKernelNode(graph, &[], &params)?.must()?;
        gpu.cuGraphKernelNodeSetAttribute(node, id, &value(set))?.must()?;
        let read = gpu.kernel_params(node)?;
        gpu.push(pair.contexts[0])?;
        answer.add("set", gpu.cuGraphKernelNodeSetParams(node, &read)?);
        gpu.pop()?;
        answer.add("node", place(gpu, &pair, node)?);
        let value = gpu.cuGraphKernelNodeGetAttribute(node, id)?;
        answer.add("get", value);
        answer.add("value", json!(numbers(&value.out)));
        let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
        answer.add("sms", probe.sms_of(gpu, exec, stream)?.len());
        Ok(())
    })
}

/// Moves the nodes of a clone's child graphs, one and two levels deep.
fn children(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let pair = Pair::new(gpu)?;
    let (outer, middle, inner) = (gpu.graph()?, gpu.graph()?, gpu.graph()?);
    let [mut shallow, mut deep] =
        [ProbeNode::new(gpu, BLOCKS, SHORT)?, ProbeNode::new(gpu, BLOCKS, SHORT)?];
    let params = deep.on(gpu, gpu.primary()?)?;
    gpu.cuGraphAddKernelNode(inner, &[], &params)?.must()?;
    let params = shallow.on(gpu, gpu.primary()?)?;
    let first = gpu.cuGraphAddKernelNode(middle, &[], &params)?.must()?;
    gpu.cuGraphAddChildGraphNode(middle, &[first], inner)?.must()?;
    gpu.cuGraphAddChildGraphNode(outer, &[], middle)?.must()?;
    let clone = gpu.cuGraphClone(outer)?.must()?;
    let child = gpu.cuGraphChildGraphNodeGetGraph(gpu.nodes(clone)?[0])?;
    answer.add("child", child);
    let [kernel, grandchild] = gpu.nodes(child.must()?)?[..] else {
        return Err(Failure::Other("the child has not two nodes".to_owned()));
    };
    let grandchild = gpu.cuGraphChildGraphNodeGetGraph(grandchild)?;
    answer.add("grandchild", grandchild);
    let deepest = gpu.nodes(grandchild.must()?)?[0];
    for (which, node, context) in
        [("child", kernel, pair.contexts[0]), ("grandchild", deepest, pair.contexts[1])]
    {
        let read = gpu.kernel_params(node)?;
        gpu.push(context)?;
        answer.add(format!("{which}_set"), gpu.cuGraphKernelNodeSetParams(node, &read)?);
        gpu.pop()?;
        answer.add(format!("{which}_node"), place(gpu, &pair, node)?);
    }
    let stream = gpu.stream()?;
    for (which, graph) in [("clone", clone), ("original", outer)] {
        let exec = gpu.executable(graph)?;
        deep.clear(gpu)?;
        answer.add(format!("{which}_child_sms"), shallow.sms_of(gpu, exec, stream)?);
        answer.add(format!("{which}_grandchild_sms"), gpu.probed_sms(deep.memory, BLOCKS)?);
    }
    Ok(())
}

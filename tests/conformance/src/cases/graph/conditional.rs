//! Conditional nodes: their handles, their bodies, and where these run.

use core::ptr::null_mut;

use green_ctx_sys::*;

use super::node::tagged;
use super::{BLOCKS, Case, ProbeNode, fill, host, name};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::{Gpu, SHORT};

const IF: CUgraphConditionalNodeType = CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
const WHILE: CUgraphConditionalNodeType = CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE;
const SWITCH: CUgraphConditionalNodeType = CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`: each launch begins with the handle's value.
const ASSIGN: u32 = 1;

/// A conditional node that is to be added.
#[derive(Clone, Copy)]
struct Condition {
    handle: CUgraphConditionalHandle,
    kind: CUgraphConditionalNodeType,
    size: u32,
    context: CUcontext,
}

impl Condition {
    /// An `if` whose handle is of the same context.
    fn new(
        gpu: &Gpu,
        graph: CUgraph,
        context: CUcontext,
        value: u32,
    ) -> Result<Condition, Failure> {
        let handle = gpu.cuGraphConditionalHandleCreate(graph, context, value, ASSIGN)?.must()?;
        Ok(Condition { handle, kind: IF, size: 1, context })
    }

    /// Adds the node, and returns what the driver answered and the graphs that it made.
    fn add(
        self,
        gpu: &Gpu,
        graph: CUgraph,
    ) -> Result<(CUresult, CUgraphNode, Vec<CUgraph>), Failure> {
        let mut params = tagged(CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL.0);
        params.__bindgen_anon_1.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
            handle: self.handle,
            type_: self.kind,
            size: self.size,
            phGraph_out: null_mut(),
            ctx: self.context,
        };
        let node = gpu.cuGraphAddNode(graph, &[], &mut params)?;
        // SAFETY: the union holds these parameters, as they were given and as the driver wrote them.
        let bodies = unsafe { params.__bindgen_anon_1.conditional }.phGraph_out;
        if !node.is_ok() || bodies.is_null() {
            return Ok((node.status, node.out, Vec::new()));
        }
        // SAFETY: the header says that the driver keeps an array of as many graphs as the size says
        // for as long as the node is there.
        let bodies = unsafe { core::slice::from_raw_parts(bodies, self.size as usize) };
        Ok((node.status, node.out, bodies.to_vec()))
    }

    /// The same, of a node that has to be there for the case to make sense.
    fn must(self, gpu: &Gpu, graph: CUgraph) -> Result<(CUgraphNode, Vec<CUgraph>), Failure> {
        let (status, node, bodies) = self.add(gpu, graph)?;
        if status == CUresult::CUDA_SUCCESS && bodies.iter().all(|body| !body.is_null()) {
            Ok((node, bodies))
        } else {
            Err(Failure::Call { call: "cuGraphAddNode", status })
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("graph/conditional-handles", handles).alone(),
        Case::new("graph/conditional-nodes", nodes).alone(),
        Case::new("graph/conditional-node-of-another-graph-s-handle", |gpu, answer| {
            let (graph, other) = (gpu.graph()?, gpu.graph()?);
            let condition = Condition::new(gpu, other, gpu.primary()?, 1)?;
            answer.add("add", condition.add(gpu, graph)?.0);
            Ok(())
        })
        .alone(),
        Case::new("graph/conditional-handle-of-two-nodes", |gpu, answer| {
            let graph = gpu.graph()?;
            let condition = Condition::new(gpu, graph, gpu.primary()?, 1)?;
            answer.add("first", condition.add(gpu, graph)?.0);
            answer.add("second", condition.add(gpu, graph)?.0);
            Ok(())
        })
        .alone(),
        Case::new("graph/conditional-handle-without-a-node", |gpu, answer| {
            let graph = gpu.graph()?;
            gpu.cuGraphConditionalHandleCreate(graph, gpu.primary()?, 1, ASSIGN)?.must()?;
            gpu.empty_node(graph, &[])?;
            answer.add("clone", gpu.cuGraphClone(graph)?);
            answer.add("instantiate", gpu.cuGraphInstantiateWithFlags(graph, 0)?);
            Ok(())
        })
        .alone(),
        runs("if-1", IF, 1, 1),
        runs("if-0", IF, 1, 0),
        runs("if-7", IF, 1, 7),
        runs("if-else-1", IF, 2, 1),
        runs("if-else-0", IF, 2, 0),
        runs("while-0", WHILE, 1, 0),
        runs("switch-0", SWITCH, 3, 0),
        runs("switch-2", SWITCH, 3, 2),
        runs("switch-3", SWITCH, 3, 3),
        Case::new("graph/conditional-on-a-partition", |gpu, answer| {
            let context = gpu.context_of(gpu.green_with(32)?)?;
            let graph = gpu.graph()?;
            let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
            let (_, bodies) = Condition::new(gpu, graph, context, 1)?.must(gpu, graph)?;
            let params = probe.on(gpu, context)?;
            answer.add("kernel", gpu.cuGraphAddKernelNode(bodies[0], &[], &params)?);
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
            answer.add("instantiate", exec);
            answer.add("sms", probe.sms_of(gpu, exec.must()?, gpu.stream()?)?.len());
            Ok(())
        })
        .alone(),
        Case::new("graph/conditional-beside-nodes-of-a-partition", |gpu, answer| {
            let context = gpu.context_of(gpu.green_with(32)?)?;
            let graph = gpu.graph()?;
            let [mut within, mut beside] =
                [ProbeNode::new(gpu, BLOCKS, SHORT)?, ProbeNode::new(gpu, BLOCKS, SHORT)?];
            let (node, bodies) = Condition::new(gpu, graph, gpu.primary()?, 1)?.must(gpu, graph)?;
            let params = within.on(gpu, gpu.primary()?)?;
            gpu.cuGraphAddKernelNode(bodies[0], &[], &params)?.must()?;
            let params = beside.on(gpu, context)?;
            gpu.cuGraphAddKernelNode(graph, &[node], &params)?.must()?;
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
            answer.add("instantiate", exec);
            answer.add("within", within.sms_of(gpu, exec.must()?, gpu.stream()?)?.len());
            answer.add("beside", gpu.probed_sms(beside.memory, BLOCKS)?.len());
            Ok(())
        })
        .alone(),
        Case::new("graph/conditional-move-the-body", move_the_body).alone(),
        Case::new("graph/conditional-handle-of-another-context", |gpu, answer| {
            let context = gpu.context_of(gpu.green_with(32)?)?;
            for (which, of_handle, of_node) in [
                ("node_on_green", gpu.primary()?, context),
                ("handle_on_green", context, gpu.primary()?),
            ] {
                let graph = gpu.graph()?;
                let condition = Condition::new(gpu, graph, of_handle, 1)?;
                let condition = Condition { context: of_node, ..condition };
                let (status, _, bodies) = condition.add(gpu, graph)?;
                answer.add(which, status);
                let Some(body) = bodies.first() else { continue };
                let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
                let params = probe.on(gpu, of_node)?;
                gpu.cuGraphAddKernelNode(*body, &[], &params)?.must()?;
                let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
                answer.add(format!("{which}_instantiate"), exec);
                if exec.is_ok() {
                    let sms = probe.sms_of(gpu, exec.out, gpu.stream()?)?;
                    answer.add(format!("{which}_sms"), sms.len());
                }
            }
            Ok(())
        })
        .alone(),
        body("a-fill-of-another-context", |gpu, body, green| {
            let memory = gpu.cuMemAlloc(64)?.must()?;
            Ok(gpu.cuGraphAddMemsetNode(body, &[], &fill(memory, 7, 64), green)?.status)
        }),
        body("a-child-with-a-kernel-of-another-context", |gpu, body, green| {
            let inner = gpu.graph()?;
            let mut probe = ProbeNode::new(gpu, 1, SHORT)?;
            let params = probe.on(gpu, green)?;
            gpu.cuGraphAddKernelNode(inner, &[], &params)?.must()?;
            Ok(gpu.cuGraphAddChildGraphNode(body, &[], inner)?.status)
        }),
        body("an-empty-node", |gpu, body, _| Ok(gpu.cuGraphAddEmptyNode(body, &[])?.status)),
        body("a-function-of-the-program", |gpu, body, _| {
            Ok(gpu.cuGraphAddHostNode(body, &[], &host(null_mut()))?.status)
        }),
        body("an-event", |gpu, body, _| {
            Ok(gpu.cuGraphAddEventRecordNode(body, &[], gpu.event()?)?.status)
        }),
        body("nothing", |_, _, _| Ok(CUresult::CUDA_SUCCESS)),
    ]
}

fn handles(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let graph = gpu.graph()?;
    let primary = gpu.primary()?;
    let green = gpu.context_of(gpu.green_with(32)?)?;
    for (which, context, value, flags) in [
        ("default_of_1", primary, 1, ASSIGN),
        ("default_of_0", primary, 0, ASSIGN),
        ("without_default", primary, 0, 0),
        ("value_without_default", primary, 1, 0),
        ("unknown_flag", primary, 1, 2),
        ("on_green", green, 1, ASSIGN),
        ("null_context", null_mut(), 1, ASSIGN),
    ] {
        let handle = gpu.cuGraphConditionalHandleCreate(graph, context, value, flags)?;
        answer.add(which, handle);
        answer.add(format!("{which}_is_zero"), handle.out == 0);
    }
    let none = gpu.cuGraphConditionalHandleCreate(null_mut(), primary, 1, ASSIGN)?;
    answer.add("null_graph", none);
    Ok(())
}

/// What the driver takes as a conditional node.
fn nodes(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let primary = gpu.primary()?;
    let unchanged: fn(&mut Condition) = |_| {};
    for (which, change) in [
        ("if", unchanged),
        ("if_without_a_body", |condition| condition.size = 0),
        ("if_of_two", |condition| condition.size = 2),
        ("if_of_three", |condition| condition.size = 3),
        ("while", |condition| condition.kind = WHILE),
        ("while_of_two", |condition| (condition.kind, condition.size) = (WHILE, 2)),
        ("switch", |condition| condition.kind = SWITCH),
        ("switch_of_four", |condition| (condition.kind, condition.size) = (SWITCH, 4)),
        ("switch_without_a_body", |condition| (condition.kind, condition.size) = (SWITCH, 0)),
        ("unknown_kind", |condition| condition.kind = CUgraphConditionalNodeType(9)),
        ("no_handle", |condition| condition.handle = 0),
        ("null_context", |condition| condition.context = null_mut()),
    ] {
        let graph = gpu.graph()?;
        let mut condition = Condition::new(gpu, graph, primary, 1)?;
        change(&mut condition);
        let (status, node, bodies) = condition.add(gpu, graph)?;
        answer.add(which, status);
        if status == CUresult::CUDA_SUCCESS {
            answer.add(format!("{which}_bodies"), bodies.iter().filter(|b| !b.is_null()).count());
            answer.add(format!("{which}_type"), gpu.cuGraphNodeGetType(node)?.out.to_string());
            answer.add(format!("{which}_as_a_child"), gpu.cuGraphChildGraphNodeGetGraph(node)?);
            answer.add(format!("{which}_clone"), gpu.cuGraphClone(graph)?);
            let outer = gpu.graph()?;
            let child = gpu.cuGraphAddChildGraphNode(outer, &[], graph)?;
            answer.add(format!("{which}_in_a_child"), child);
            answer.add(format!("{which}_instantiate"), gpu.cuGraphInstantiateWithFlags(graph, 0)?);
        }
    }
    Ok(())
}

/// Which of the bodies run with a value.
fn runs(what: &str, kind: CUgraphConditionalNodeType, size: u32, value: u32) -> Case {
    Case::new(format!("graph/conditional-{what}"), move |gpu, answer| {
        let graph = gpu.graph()?;
        let context = gpu.primary()?;
        let condition = Condition::new(gpu, graph, context, value)?;
        let (_, bodies) = Condition { kind, size, ..condition }.must(gpu, graph)?;
        let mut probes = Vec::new();
        for body in bodies {
            let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
            let params = probe.on(gpu, context)?;
            gpu.cuGraphAddKernelNode(body, &[], &params)?.must()?;
            probes.push(probe);
        }
        let (exec, stream) = (gpu.executable(graph)?, gpu.stream()?);
        for which in ["first", "second"] {
            for probe in &probes {
                probe.clear(gpu)?;
            }
            answer.add(format!("{which}_launch"), gpu.cuGraphLaunch(exec, stream)?);
            answer.add(format!("{which}_synchronize"), gpu.cuStreamSynchronize(stream)?);
            let mut sms: Vec<u32> = Vec::new();
            for probe in &probes {
                let ran = gpu.probed_sms(probe.memory, BLOCKS)?;
                sms.push(u32::try_from(ran.len()).unwrap_or(u32::MAX));
            }
            answer.add(format!("{which}_sms"), sms);
        }
        Ok(())
    })
    .alone()
}

/// Moves the kernel of a body to another context than the node's, and back.
fn move_the_body(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let (primary, green) = (gpu.primary()?, gpu.context_of(gpu.green_with(32)?)?);
    let graph = gpu.graph()?;
    let mut probe = ProbeNode::new(gpu, BLOCKS, SHORT)?;
    let (node, bodies) = Condition::new(gpu, graph, primary, 1)?.must(gpu, graph)?;
    let params = probe.on(gpu, primary)?;
    let kernel = gpu.cuGraphAddKernelNode(bodies[0], &[], &params)?.must()?;
    for (which, context) in [("away", green), ("back", primary)] {
        let params = probe.on(gpu, context)?;
        answer.add(which, gpu.cuGraphKernelNodeSetParams(kernel, &params)?);
        let known = [("primary", primary), ("green", green)];
        let found = gpu.kernel_params(kernel)?.ctx;
        answer.add(format!("{which}_context"), name(found, &known));
        let mut with = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 0,
            hUploadStream: null_mut(),
            hErrNode_out: null_mut(),
            result_out: CUgraphInstantiateResult(99),
        };
        let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
        answer.add(format!("{which}_instantiate"), exec);
        answer.add(
            format!("{which}_with_params"),
            gpu.cuGraphInstantiateWithParams(graph, &mut with)?,
        );
        answer.add(format!("{which}_result"), with.result_out.to_string());
        let nodes = [("condition", node), ("kernel", kernel)];
        answer.add(format!("{which}_node"), name(with.hErrNode_out, &nodes));
        if exec.is_ok() {
            let sms = probe.sms_of(gpu, exec.out, gpu.stream()?)?;
            answer.add(format!("{which}_sms"), sms.len());
        }
    }
    Ok(())
}

/// What is added to the body of a node of the primary context.
fn body(
    what: &str,
    add: impl Fn(&Gpu, CUgraph, CUcontext) -> Result<CUresult, Failure> + 'static,
) -> Case {
    Case::new(format!("graph/conditional-body-of-{what}"), move |gpu, answer| {
        let green = gpu.context_of(gpu.green_with(32)?)?;
        let graph = gpu.graph()?;
        let (_, bodies) = Condition::new(gpu, graph, gpu.primary()?, 1)?.must(gpu, graph)?;
        answer.add("add", add(gpu, bodies[0], green)?);
        let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
        answer.add("instantiate", exec);
        if exec.is_ok() {
            let stream = gpu.stream()?;
            answer.add("launch", gpu.cuGraphLaunch(exec.out, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
        }
        Ok(())
    })
    .alone()
}

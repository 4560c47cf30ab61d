//! Nodes that decide which graph runs.

use std::ptr::null_mut;

use green_ctx_sys::*;

use crate::machine::*;

type Kind = CUgraphConditionalNodeType;

const IF: Kind = Kind::CU_GRAPH_COND_TYPE_IF;
const WHILE: Kind = Kind::CU_GRAPH_COND_TYPE_WHILE;
const SWITCH: Kind = Kind::CU_GRAPH_COND_TYPE_SWITCH;

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

impl Machine {
    fn condition(
        &self,
        graph: CUgraph,
        context: CUcontext,
        value: u32,
    ) -> CUgraphConditionalHandle {
        let (status, handle) =
            ask!(self, 0, cuGraphConditionalHandleCreate(; graph, context, value, 1));
        ok(status);
        handle
    }

    /// Adds a node, and returns it with its bodies.
    fn add_conditional(
        &self,
        graph: CUgraph,
        handle: CUgraphConditionalHandle,
        (kind, size): (Kind, u32),
        context: CUcontext,
    ) -> Result<(CUgraphNode, Vec<CUgraph>), CUresult> {
        // SAFETY: the struct is numbers and pointers, of which zero is a value.
        let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
        params.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        params.__bindgen_anon_1.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
            handle,
            type_: kind,
            size,
            phGraph_out: null_mut(),
            ctx: context,
        };
        let (status, node) = ask!(
            self,
            null_mut(),
            cuGraphAddNode(; graph, null_mut(), null_mut(), 0, &mut params)
        );
        if status != OK {
            return Err(status);
        }
        // SAFETY: the union holds these parameters, as the driver wrote them.
        let bodies = unsafe { params.__bindgen_anon_1.conditional }.phGraph_out;
        // SAFETY: there are as many graphs as were asked for.
        Ok((node, unsafe { std::slice::from_raw_parts(bodies, size as usize) }.to_vec()))
    }

    fn conditional(
        &self,
        graph: CUgraph,
        value: u32,
        kind: (Kind, u32),
        context: CUcontext,
    ) -> (CUgraphNode, Vec<CUgraph>) {
        let handle = self.condition(graph, context, value);
        self.add_conditional(graph, handle, kind, context).expect("a node")
    }

    /// The blocks of what was launched.
    fn launched(&self) -> Vec<u32> {
        self.sim.launches().iter().map(|launch| launch.grid[0]).collect()
    }

    /// What instantiating a graph says: the status, the result and the node at fault.
    fn refused(&self, graph: CUgraph) -> (CUresult, CUgraphInstantiateResult, CUgraphNode) {
        let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 0,
            hUploadStream: null_mut(),
            hErrNode_out: null_mut(),
            result_out: CUgraphInstantiateResult(99),
        };
        let (status, _) =
            ask!(self, null_mut(), cuGraphInstantiateWithParams(; graph, &mut params));
        (status, params.result_out, params.hErrNode_out)
    }
}

#[test]
fn the_value_chooses_the_body() {
    let cases: [(Kind, u32, u32, &[u32]); 8] = [
        (IF, 1, 0, &[]),
        (IF, 1, 7, &[1]),
        (IF, 2, 0, &[2]),
        (IF, 2, 1, &[1]),
        (WHILE, 1, 0, &[]),
        (SWITCH, 3, 0, &[1]),
        (SWITCH, 3, 2, &[3]),
        (SWITCH, 3, 3, &[]),
    ];
    for (kind, size, value, expected) in cases {
        let (machine, primary) = Machine::with_primary();
        let graph = machine.graph();
        let (node, bodies) = machine.conditional(graph, value, (kind, size), primary);
        for (blocks, body) in (1..).zip(bodies) {
            machine.nothing(body, &[], primary, blocks);
        }
        machine.nothing(graph, &[node], primary, 100);
        let exec = machine.instantiate(graph);
        for _ in 0..2 {
            machine.sim.clear_trace();
            machine.launch_graph(exec, null_mut());
            let expected: Vec<u32> = expected.iter().copied().chain([100]).collect();
            assert_eq!(machine.launched(), expected, "{kind:?} of {size} with {value}");
            if let [body, after] = expected[..] {
                assert!(machine.ordered(body, after));
            }
        }
    }
}

#[test]
fn bodies_have_bodies_and_run_in_the_context_of_their_node() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    let graph = machine.graph();
    let (_, bodies) = machine.conditional(graph, 1, (IF, 1), green);
    let handle = machine.condition(graph, green, 1);
    let (_, inner) = machine.add_conditional(bodies[0], handle, (IF, 1), green).expect("a node");
    let node = machine.nothing(inner[0], &[], green, 200);
    machine.nothing(graph, &[], primary, 201);
    machine.launch_graph(machine.instantiate(graph), null_mut());
    let sms: Vec<usize> = machine.sim.launches().iter().map(|launch| launch.sms.len()).collect();
    assert_eq!(sms, [8, 132]);
    // Elsewhere it is refused, and it is the kernel that is named, as recorded.
    let other = machine.graph();
    let (_, bodies) = machine.conditional(other, 1, (IF, 1), primary);
    let astray = machine.nothing(bodies[0], &[], green, 1);
    let result = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
    assert_eq!(machine.refused(other), (INVALID_VALUE, result, astray));
    assert_ne!(astray, node);
}

/// A kernel that sets its condition is not simulated, so that such a loop never ends.
#[test]
fn a_loop_that_nobody_ends_fails_the_device() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    machine.conditional(graph, 1, (WHILE, 1), primary);
    let stream = machine.stream(NON_BLOCKING);
    machine.launch_graph(machine.instantiate(graph), stream);
    assert_eq!(call!(machine, cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY);
    assert_eq!(machine.sync(stream), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
}

/// As recorded: it is not cloned, is no child, and has one executable at a time.
#[test]
fn a_graph_that_decides_is_the_only_one() {
    let (machine, primary) = Machine::with_primary();
    let graph = machine.graph();
    let (node, bodies) = machine.conditional(graph, 1, (IF, 1), primary);
    assert_eq!(ask!(machine, null_mut(), cuGraphClone(; graph)).0, NOT_SUPPORTED);
    let outer = machine.graph();
    let child = ask!(machine, null_mut(), cuGraphAddChildGraphNode(; outer, null_mut(), 0, graph));
    assert_eq!(child.0, NOT_SUPPORTED);
    let exec = machine.instantiate(graph);
    let error = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR;
    assert_eq!(machine.refused(graph), (NOT_SUPPORTED, error, null_mut()));
    ok(call!(machine, cuGraphExecDestroy(exec)));
    machine.instantiate(graph);
    assert_eq!(machine.sim.live().graphs, 2, "a body is its node's");
    assert_eq!(call!(machine, cuGraphDestroy(bodies[0])), INVALID_VALUE);
    ok(call!(machine, cuGraphDestroyNode(node)));
    let gone = ask!(machine, null_mut(), cuGraphAddEmptyNode(; bodies[0], null_mut(), 0));
    assert_eq!(gone.0, INVALID_VALUE);
}

#[test]
fn handles_are_used_once_in_their_graph_and_context() {
    let (machine, primary) = Machine::with_primary();
    let green = machine.context(machine.green_of(8));
    let (graph, other) = (machine.graph(), machine.graph());
    let handle = machine.condition(graph, primary, 1);
    let unused = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    assert_eq!(machine.refused(graph), (INVALID_VALUE, unused, null_mut()));
    assert_eq!(ask!(machine, null_mut(), cuGraphClone(; graph)).0, NOT_SUPPORTED);
    let add = |graph, context| machine.add_conditional(graph, handle, (IF, 1), context).err();
    assert_eq!(add(other, primary), Some(INVALID_VALUE));
    assert_eq!(add(graph, green), Some(INVALID_VALUE));
    assert_eq!(add(graph, null_mut()), Some(INVALID_CONTEXT));
    assert_eq!(add(graph, primary), None);
    assert_eq!(add(graph, primary), Some(INVALID_VALUE));
    machine.instantiate(graph);
}

/// `else` and `switch` came with 12.8 (header).
#[test]
fn older_drivers_have_one_body() {
    for (version, several) in [("h200@12.4", Err(INVALID_VALUE)), ("h200@12.8", Ok(()))] {
        let machine = Machine::with_devices(version, 1);
        let primary = machine.retain();
        ok(machine.push(primary));
        let graph = machine.graph();
        for (kind, expected) in [((IF, 1), Ok(())), ((IF, 2), several), ((SWITCH, 1), several)] {
            let handle = machine.condition(graph, primary, 1);
            let added = machine.add_conditional(graph, handle, kind, primary).map(drop);
            assert_eq!(added, expected, "{kind:?} of {version}");
        }
    }
}

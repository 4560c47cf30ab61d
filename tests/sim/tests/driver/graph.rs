//! Graphs, as programs make, change and launch them.

mod allocation;
mod capture;
mod conditional;
mod launch;
mod moving;
mod node;
mod order;
mod update;
mod user_object;

use std::ffi::c_void;
use std::ptr::{from_ref, null, null_mut};

use green_ctx_sys::*;

use crate::machine::*;

/// The parameters of a kernel node, with values of eight bytes each.
struct Kernel {
    values: Vec<u64>,
    params: Vec<*mut c_void>,
    kernel: CUkernel,
}

impl Kernel {
    fn new(machine: &Machine, name: &str, values: &[u64]) -> Kernel {
        let values = values.to_vec();
        let params = values.iter().map(|value| from_ref(value).cast_mut().cast()).collect();
        Kernel { values, params, kernel: machine.kernel(name) }
    }

    /// As many blocks of 1024 threads in a context.
    fn on(&mut self, context: CUcontext, blocks: u32) -> CUDA_KERNEL_NODE_PARAMS_v2 {
        assert_eq!(self.values.len(), self.params.len());
        CUDA_KERNEL_NODE_PARAMS_v2 {
            func: null_mut(),
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1024,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: self.params.as_mut_ptr(),
            extra: null_mut(),
            kern: self.kernel,
            ctx: context,
        }
    }
}

fn fill(to: CUdeviceptr, value: u32, width: usize) -> CUDA_MEMSET_NODE_PARAMS_v1 {
    CUDA_MEMSET_NODE_PARAMS_v1 { dst: to, pitch: 0, value, elementSize: 1, width, height: 1 }
}

/// A copy of bytes in one row, between the host and a device.
fn copy(host: *mut c_void, device: CUdeviceptr, len: usize, to_host: bool) -> CUDA_MEMCPY3D_v2 {
    let kinds = [CUmemorytype::CU_MEMORYTYPE_HOST, CUmemorytype::CU_MEMORYTYPE_DEVICE];
    let (from, to) = if to_host { (kinds[1], kinds[0]) } else { (kinds[0], kinds[1]) };
    CUDA_MEMCPY3D_v2 {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: from,
        srcHost: host,
        srcDevice: device,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: to,
        dstHost: host,
        dstDevice: device,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: len,
        Height: 1,
        Depth: 1,
    }
}

impl Machine {
    fn graph(&self) -> CUgraph {
        let (status, graph) = ask!(self, null_mut(), cuGraphCreate(; 0));
        ok(status);
        graph
    }

    fn empty_node(&self, graph: CUgraph, after: &[CUgraphNode]) -> CUgraphNode {
        let (status, node) =
            ask!(self, null_mut(), cuGraphAddEmptyNode(; graph, after.as_ptr(), after.len()));
        ok(status);
        node
    }

    fn kernel_node(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        params: &CUDA_KERNEL_NODE_PARAMS_v2,
    ) -> CUgraphNode {
        let (status, node) = ask!(
            self,
            null_mut(),
            cuGraphAddKernelNode(; graph, after.as_ptr(), after.len(), params)
        );
        ok(status);
        node
    }

    /// A node of the kernel that does nothing; its number of blocks distinguishes it from others.
    fn nothing(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        context: CUcontext,
        blocks: u32,
    ) -> CUgraphNode {
        self.kernel_node(graph, after, &Kernel::new(self, "nothing", &[]).on(context, blocks))
    }

    fn memset_node(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        params: &CUDA_MEMSET_NODE_PARAMS_v1,
        context: CUcontext,
    ) -> CUgraphNode {
        let (status, node) = ask!(
            self,
            null_mut(),
            cuGraphAddMemsetNode(; graph, after.as_ptr(), after.len(), params, context)
        );
        ok(status);
        node
    }

    fn nodes(&self, graph: CUgraph) -> Vec<CUgraphNode> {
        let mut count = 0;
        ok(call!(self, cuGraphGetNodes(graph, null_mut(), &mut count)));
        let mut nodes = vec![null_mut(); count];
        ok(call!(self, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count)));
        nodes
    }

    /// The numbers, in the order of [`nodes`](Machine::nodes), of what each node comes after.
    fn dependencies(&self, graph: CUgraph) -> Vec<Vec<usize>> {
        let nodes = self.nodes(graph);
        let after = |node: &CUgraphNode| {
            let (mut after, mut count) = (vec![null_mut(); nodes.len()], nodes.len());
            let out = after.as_mut_ptr();
            ok(call!(self, cuGraphNodeGetDependencies(*node, out, null_mut(), &mut count)));
            let place = |node| nodes.iter().position(|other| *other == node).expect("a node");
            after[..count].iter().map(|node| place(*node)).collect()
        };
        nodes.iter().map(after).collect()
    }

    fn instantiate(&self, graph: CUgraph) -> CUgraphExec {
        let (status, exec) = ask!(self, null_mut(), cuGraphInstantiateWithFlags(; graph, 0));
        ok(status);
        exec
    }

    fn launch_graph(&self, exec: CUgraphExec, stream: CUstream) {
        ok(call!(self, cuGraphLaunch(exec, stream)));
    }

    fn alloc(&self, bytes: usize) -> CUdeviceptr {
        let (status, memory) = ask!(self, 0, cuMemAlloc(; bytes));
        ok(status);
        memory
    }

    fn read(&self, memory: CUdeviceptr, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        ok(call!(self, cuMemcpyDtoH(out.as_mut_ptr().cast(), memory, bytes)));
        out
    }

    /// Whether, of the launches traced, the first certainly ended before the second began; they are
    /// distinguished by their blocks.
    fn ordered(&self, first: u32, second: u32) -> bool {
        let launches = self.sim.launches();
        let find = |blocks| {
            let found = launches.iter().rev().find(|launch| launch.grid[0] == blocks);
            found.expect("it was launched")
        };
        let (first, second) = (find(first), find(second));
        let ordered = first.happens_before(second);
        assert!(!ordered || first.end_ns <= second.start_ns, "order without time");
        assert!(!second.happens_before(first), "they are ordered the other way");
        ordered
    }
}

/// No edges have data.
const PLAIN: *const CUgraphEdgeData = null();

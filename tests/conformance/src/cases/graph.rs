//! Graphs: their nodes and edges, executables, where the nodes run, and captures that create graphs.

mod allocation;
mod capture;
mod exec;
mod kernel;
mod moving;
mod node;
mod partition;
mod structure;
mod transfer;

use core::ptr::null_mut;
use std::time::Duration;

use green_ctx_sys::*;
use serde_json::Value;

use super::Case;
use crate::answer::Failure;
use crate::calls::Params;
use crate::gpu::{Gpu, THREADS, probe_params};

/// The strictest capture mode.
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Enough blocks to reach each SM of the device.
const BLOCKS: u32 = 4 * 132;

pub(super) fn cases() -> Vec<Case> {
    [
        structure::cases,
        kernel::cases,
        node::cases,
        exec::cases,
        partition::cases,
        moving::cases,
        transfer::cases,
        allocation::cases,
        capture::cases,
    ]
    .iter()
    .flat_map(|cases| cases())
    .collect()
}

/// The parameters of a kernel node that runs the probe. This struct keeps the values alive.
struct ProbeNode {
    values: Params,
    memory: CUdeviceptr,
    blocks: u32,
}

impl ProbeNode {
    fn new(gpu: &Gpu, blocks: u32, duration: Duration) -> Result<ProbeNode, Failure> {
        let memory = gpu.probe_memory(blocks)?;
        Ok(ProbeNode { values: probe_params(memory, duration), memory, blocks })
    }

    /// Returns the parameters without a kernel and a context.
    fn params(&mut self) -> CUDA_KERNEL_NODE_PARAMS_v2 {
        CUDA_KERNEL_NODE_PARAMS_v2 {
            func: null_mut(),
            gridDimX: self.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: self.values.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        }
    }

    /// Returns the parameters with the probe's kernel and a context.
    fn on(&mut self, gpu: &Gpu, context: CUcontext) -> Result<CUDA_KERNEL_NODE_PARAMS_v2, Failure> {
        let kern = gpu.probe_kernel()?;
        Ok(CUDA_KERNEL_NODE_PARAMS_v2 { kern, ctx: context, ..self.params() })
    }

    /// Clears the values that the blocks wrote.
    fn clear(&self, gpu: &Gpu) -> Result<(), Failure> {
        gpu.cuMemcpyHtoD(self.memory, &vec![0; self.blocks as usize * crate::gpu::BLOCK_BYTES])?
            .must()
    }

    /// Launches an executable, and returns the SMs that the probe ran on.
    fn sms_of(&self, gpu: &Gpu, exec: CUgraphExec, stream: CUstream) -> Result<Vec<u32>, Failure> {
        self.clear(gpu)?;
        gpu.cuGraphLaunch(exec, stream)?.must()?;
        gpu.cuStreamSynchronize(stream)?.must()?;
        gpu.probed_sms(self.memory, self.blocks)
    }
}

/// Returns parameters for the driver to overwrite.
fn unwritten() -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: null_mut(),
        gridDimX: 0,
        gridDimY: 0,
        gridDimZ: 0,
        blockDimX: 0,
        blockDimY: 0,
        blockDimZ: 0,
        sharedMemBytes: 0,
        kernelParams: null_mut(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

/// Returns a memset of `width` one-byte elements.
fn fill(dst: CUdeviceptr, value: u32, width: usize) -> CUDA_MEMSET_NODE_PARAMS_v1 {
    CUDA_MEMSET_NODE_PARAMS_v1 { dst, pitch: 0, value, elementSize: 1, width, height: 1 }
}

/// Returns a copy from the host to the device.
fn upload(to: CUdeviceptr, from: &[u8]) -> CUDA_MEMCPY3D_v2 {
    CUDA_MEMCPY3D_v2 {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from.as_ptr().cast(),
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        WidthInBytes: from.len(),
        Height: 1,
        Depth: 1,
        ..no_copy()
    }
}

/// Returns an empty copy without addresses.
fn no_copy() -> CUDA_MEMCPY3D_v2 {
    CUDA_MEMCPY3D_v2 {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype(0),
        srcHost: core::ptr::null(),
        srcDevice: 0,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype(0),
        dstHost: null_mut(),
        dstDevice: 0,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: 0,
        Height: 0,
        Depth: 0,
    }
}

/// A host function that does nothing.
unsafe extern "C" fn nothing(_: *mut core::ffi::c_void) {}

fn host(data: *mut core::ffi::c_void) -> CUDA_HOST_NODE_PARAMS_v1 {
    CUDA_HOST_NODE_PARAMS_v1 { fn_: Some(nothing), userData: data }
}

impl Gpu {
    fn graph(&self) -> Result<CUgraph, Failure> {
        self.cuGraphCreate(0)?.must()
    }

    fn empty_node(&self, graph: CUgraph, after: &[CUgraphNode]) -> Result<CUgraphNode, Failure> {
        self.cuGraphAddEmptyNode(graph, after)?.must()
    }

    /// Instantiates a graph without flags.
    fn executable(&self, graph: CUgraph) -> Result<CUgraphExec, Failure> {
        self.cuGraphInstantiateWithFlags(graph, 0)?.must()
    }

    fn nodes(&self, graph: CUgraph) -> Result<Vec<CUgraphNode>, Failure> {
        let mut count = 0;
        self.cuGraphGetNodes(graph, null_mut(), &raw mut count)?.must()?;
        let mut nodes = vec![null_mut(); count];
        if count > 0 {
            self.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count)?.must()?;
        }
        Ok(nodes)
    }

    /// Returns the edges of a graph as pairs of names.
    fn edges(&self, graph: CUgraph, names: &[(&str, CUgraphNode)]) -> Result<Vec<Value>, Failure> {
        let mut count = 0;
        self.cuGraphGetEdges(graph, null_mut(), null_mut(), null_mut(), &raw mut count)?.must()?;
        let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
        if count > 0 {
            let (from, to) = (from.as_mut_ptr(), to.as_mut_ptr());
            self.cuGraphGetEdges(graph, from, to, null_mut(), &raw mut count)?.must()?;
        }
        let pair = |(from, to): (&CUgraphNode, &CUgraphNode)| {
            format!("{}->{}", name(*from, names), name(*to, names))
        };
        // The driver may return the edges in any order.
        let mut pairs: Vec<String> = from.iter().zip(&to).map(pair).collect();
        pairs.sort();
        Ok(pairs.into_iter().map(Value::String).collect())
    }

    /// Returns the parameters of a kernel node as the driver reports them.
    fn kernel_params(&self, node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS_v2, Failure> {
        let mut params = unwritten();
        self.cuGraphKernelNodeGetParams(node, &mut params)?.must()?;
        Ok(params)
    }

    /// Captures work in one stream as a graph.
    fn captured(
        &self,
        stream: CUstream,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<CUgraph, Failure> {
        self.cuStreamBeginCapture(stream, GLOBAL)?.must()?;
        let done = work();
        let ended = self.cuStreamEndCapture(stream)?;
        done?;
        ended.must()
    }
}

/// Returns the name of a handle, if it is one of the given handles.
fn name<T>(handle: *mut T, names: &[(&str, *mut T)]) -> String {
    if handle.is_null() {
        return "null".to_owned();
    }
    let known = names.iter().find(|(_, known)| *known == handle);
    known.map_or("another", |(name, _)| name).to_owned()
}

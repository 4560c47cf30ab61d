//! Graph nodes that allocate and free memory.

use core::ptr::null_mut;

use green_ctx_sys::*;

use super::{Case, fill, no_copy};
use crate::answer::{Answer, Failure, Outcome};
use crate::gpu::Gpu;

/// Returns parameters for an allocation on the first device.
fn params(bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                __bindgen_anon_1: CUmemLocation_st__bindgen_ty_1 { id: 0 },
            },
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            usage: 0,
            gpuDirectRDMACapable: 0,
            reserved: [0; 53],
        },
        accessDescs: core::ptr::null(),
        accessDescCount: 0,
        bytesize: bytes,
        dptr: 0,
    }
}

/// Adds a node that allocates, and returns it with the address.
fn allocating(
    gpu: &Gpu,
    graph: CUgraph,
    after: &[CUgraphNode],
    bytes: usize,
) -> Result<(CUgraphNode, CUdeviceptr), Failure> {
    let mut params = params(bytes);
    let node = gpu.cuGraphAddMemAllocNode(graph, after, &mut params)?.must()?;
    Ok((node, params.dptr))
}

/// Creates a graph that allocates, fills, copies to other memory and, if `frees`, frees.
fn filling(gpu: &Gpu, to: CUdeviceptr, frees: bool) -> Result<(CUgraph, CUdeviceptr), Failure> {
    let (graph, context) = (gpu.graph()?, gpu.primary()?);
    let (node, address) = allocating(gpu, graph, &[], 64)?;
    let filled =
        gpu.cuGraphAddMemsetNode(graph, &[node], &fill(address, 7, 64), context)?.must()?;
    let copy = CUDA_MEMCPY3D_v2 {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: address,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        WidthInBytes: 64,
        Height: 1,
        Depth: 1,
        ..no_copy()
    };
    let copied = gpu.cuGraphAddMemcpyNode(graph, &[filled], &copy, context)?.must()?;
    if frees {
        gpu.cuGraphAddMemFreeNode(graph, &[copied], address)?.must()?;
    }
    Ok((graph, address))
}

fn bytes(gpu: &Gpu, memory: CUdeviceptr) -> Result<Vec<u32>, Failure> {
    let mut bytes = [0; 4];
    gpu.cuMemcpyDtoH(&mut bytes, memory)?.must()?;
    Ok(bytes.map(u32::from).to_vec())
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("graph/allocation-nodes", nodes).alone(),
        Case::new("graph/allocation-freed-before-a-launch", |gpu, answer| {
            let (_, address) = allocating(gpu, gpu.graph()?, &[], 64)?;
            answer.add("free", gpu.cuMemFree(address)?);
            answer.add("free_async", gpu.cuMemFreeAsync(address, gpu.stream()?)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-read-before-a-launch", |gpu, answer| {
            let (_, address) = allocating(gpu, gpu.graph()?, &[], 64)?;
            answer.add("read", gpu.cuMemcpyDtoH(&mut [0; 4], address)?);
            answer.add("synchronize", gpu.cuCtxSynchronize()?);
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-params", |gpu, answer| {
            let graph = gpu.graph()?;
            let mut tried = |which: &str, mut params: CUDA_MEM_ALLOC_NODE_PARAMS| {
                answer.add(which, gpu.cuGraphAddMemAllocNode(graph, &[], &mut params)?);
                answer.add(format!("{which}_is_null"), params.dptr == 0);
                Ok::<(), Failure>(())
            };
            tried("of_a_byte", params(1))?;
            tried("of_nothing", params(0))?;
            tried("of_a_pebibyte", params(1 << 50))?;
            let mut on_host = params(64);
            on_host.poolProps.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
            tried("on_the_host", on_host)?;
            let mut elsewhere = params(64);
            elsewhere.poolProps.location.__bindgen_anon_1.id = 99;
            tried("on_no_device", elsewhere)?;
            let mut of_no_kind = params(64);
            of_no_kind.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID;
            tried("of_no_kind", of_no_kind)?;
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-cloned", |gpu, answer| {
            let memory = gpu.cuMemAlloc(64)?.must()?;
            for (which, frees) in [("with_free", true), ("without_free", false)] {
                let (graph, _) = filling(gpu, memory, frees)?;
                answer.add(format!("{which}_clone"), gpu.cuGraphClone(graph)?);
                let child = gpu.cuGraphAddChildGraphNode(gpu.graph()?, &[], graph)?;
                answer.add(format!("{which}_child"), child);
            }
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-launched", |gpu, answer| {
            let (memory, stream) = (gpu.cuMemAlloc(64)?.must()?, gpu.stream()?);
            let (graph, _) = filling(gpu, memory, true)?;
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
            answer.add("instantiate", exec);
            answer.add("instantiate_again", gpu.cuGraphInstantiateWithFlags(graph, 0)?);
            for which in ["first", "second"] {
                gpu.cuMemcpyHtoD(memory, &[0; 64])?.must()?;
                answer.add(format!("{which}_launch"), gpu.cuGraphLaunch(exec.out, stream)?);
                answer.add(format!("{which}_synchronize"), gpu.cuStreamSynchronize(stream)?);
                answer.add(format!("{which}_bytes"), bytes(gpu, memory)?);
            }
            answer.add("destroy_exec", gpu.cuGraphExecDestroy(exec.out)?);
            answer.add("instantiate_after_that", gpu.cuGraphInstantiateWithFlags(graph, 0)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-launched-without-free", |gpu, answer| {
            let (memory, stream) = (gpu.cuMemAlloc(64)?.must()?, gpu.stream()?);
            let (graph, address) = filling(gpu, memory, false)?;
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 0)?;
            answer.add("instantiate", exec);
            answer.add("launch", gpu.cuGraphLaunch(exec.out, stream)?);
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("bytes", bytes(gpu, address)?);
            answer.add("launch_again", gpu.cuGraphLaunch(exec.out, stream)?);
            answer.add("free", gpu.cuMemFreeAsync(address, stream)?);
            answer.add("launch_after_that", gpu.cuGraphLaunch(exec.out, stream)?);
            answer.add("synchronize_after_that", gpu.cuStreamSynchronize(stream)?);
            answer.add("free_at_once", gpu.cuMemFree(address)?);
            answer.add("free_again", gpu.cuMemFree(address)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-freed-by-another-graph", |gpu, answer| {
            let (memory, stream) = (gpu.cuMemAlloc(64)?.must()?, gpu.stream()?);
            let (graph, address) = filling(gpu, memory, false)?;
            let freeing = gpu.graph()?;
            answer.add("add", gpu.cuGraphAddMemFreeNode(freeing, &[], address)?);
            let execs = [gpu.executable(graph)?, gpu.executable(freeing)?];
            for (which, exec) in [("first", execs[0]), ("free", execs[1]), ("second", execs[0])] {
                answer.add(which, gpu.cuGraphLaunch(exec, stream)?);
            }
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            Ok(())
        })
        .alone(),
        Case::new("graph/allocation-freed-on-launch", |gpu, answer| {
            let (memory, stream) = (gpu.cuMemAlloc(64)?.must()?, gpu.stream()?);
            let (graph, _) = filling(gpu, memory, false)?;
            // `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
            let exec = gpu.cuGraphInstantiateWithFlags(graph, 1)?;
            answer.add("instantiate", exec);
            for which in ["first", "second"] {
                answer.add(which, gpu.cuGraphLaunch(exec.out, stream)?);
            }
            answer.add("synchronize", gpu.cuStreamSynchronize(stream)?);
            answer.add("bytes", bytes(gpu, memory)?);
            Ok(())
        })
        .alone(),
    ]
}

fn nodes(gpu: &Gpu, answer: &mut Answer<'_>) -> Outcome {
    let graph = gpu.graph()?;
    let mut asked = params(1000);
    let node = gpu.cuGraphAddMemAllocNode(graph, &[], &mut asked)?;
    answer.add("add", node);
    let node = node.must()?;
    let kind = |node| Ok::<_, Failure>(gpu.cuGraphNodeGetType(node)?.out.to_string());
    answer.add("type", kind(node)?);
    answer.add("has_an_address", asked.dptr != 0);
    let (_, other) = allocating(gpu, graph, &[], 1000)?;
    answer.add("another_address", other != asked.dptr);
    let free = gpu.cuGraphAddMemFreeNode(graph, &[node], asked.dptr)?;
    answer.add("free", free);
    let free = free.must()?;
    answer.add("free_type", kind(free)?);
    answer.add("free_twice", gpu.cuGraphAddMemFreeNode(graph, &[free], asked.dptr)?);
    answer.add("free_null", gpu.cuGraphAddMemFreeNode(graph, &[], 0)?);
    let memory = gpu.cuMemAlloc(64)?.must()?;
    answer.add("free_other_memory", gpu.cuGraphAddMemFreeNode(graph, &[], memory)?);
    answer.add("free_not_after", gpu.cuGraphAddMemFreeNode(graph, &[], other)?);
    answer.add("destroy", gpu.cuGraphDestroy(graph)?);
    Ok(())
}

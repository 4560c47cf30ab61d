//! Copies and fills in graphs.

use super::*;

/// What is captured has the shape that it would have had at once, and knows page-locked memory.
#[test]
fn graphs_copy_and_fill_as_streams_do() {
    let bench = Bench::new();
    let (machine, memory, stream) = (&bench.machine, bench.memory, bench.stream);
    let host = bench.pinned(64);
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(call!(machine, cuStreamBeginCapture(stream, relaxed)));
    ok(call!(machine, cuMemsetD2D8Async(memory, 4, 7, 2, 2, stream)));
    // SAFETY: zero is a copy of nothing.
    let mut copy: CUDA_MEMCPY3D_st = unsafe { std::mem::zeroed() };
    (copy.srcMemoryType, copy.dstMemoryType) =
        (CUmemorytype::CU_MEMORYTYPE_DEVICE, CUmemorytype::CU_MEMORYTYPE_HOST);
    (copy.srcDevice, copy.srcPitch, copy.srcHeight) = (memory, 4, 2);
    (copy.dstHost, copy.dstPitch, copy.dstHeight) = (host.cast(), 3, 3);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (2, 2, 2);
    ok(call!(machine, cuMemcpy3DAsync(&copy, stream)));
    ok(call!(machine, cuMemcpyHtoDAsync(memory + 64, host.cast(), 12, stream)));
    let (status, graph) = ask!(machine, null_mut(), cuStreamEndCapture(stream;));
    ok(status);
    let (status, exec) = ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, 0));
    ok(status);
    ok(call!(machine, cuMemsetD8(memory + 8, 5, 8)));
    ok(call!(machine, cuCtxSynchronize()));
    ok(call!(machine, cuGraphLaunch(exec, stream)));
    assert_eq!(read(host, 0), 0);
    ok(machine.sync(stream));
    assert_eq!(bench.bytes(memory), [7, 7, 0, 0, 7, 7, 0, 0]);
    let copied = [7, 7, 0, 7, 7, 0, 0, 0, 0, 5, 5, 0];
    assert_eq!(bench.bytes(memory + 64), copied);
    assert_eq!(machine.sim.races(), []);
}

/// A node names page-locked memory as memory of the host; what the node before it wrote there is read.
#[test]
fn nodes_stage_through_page_locked_memory() {
    let bench = Bench::new();
    let (machine, memory) = (&bench.machine, bench.memory);
    let host = bench.pinned(64);
    let (_, graph) = ask!(machine, null_mut(), cuGraphCreate(; 0));
    let (_, primary) = ask!(machine, null_mut(), cuCtxGetCurrent(;));
    let (host_kind, device_kind) =
        (CUmemorytype::CU_MEMORYTYPE_HOST, CUmemorytype::CU_MEMORYTYPE_DEVICE);
    // SAFETY: zero is a copy of nothing.
    let nothing: CUDA_MEMCPY3D_st = unsafe { std::mem::zeroed() };
    let line = CUDA_MEMCPY3D_st { WidthInBytes: 4, Height: 1, Depth: 1, ..nothing };
    let down = CUDA_MEMCPY3D_st {
        srcMemoryType: device_kind,
        srcDevice: memory,
        dstMemoryType: host_kind,
        dstHost: host.cast(),
        ..line
    };
    let up = CUDA_MEMCPY3D_st {
        srcMemoryType: host_kind,
        srcHost: host.cast(),
        dstMemoryType: device_kind,
        dstDevice: memory + 8,
        ..line
    };
    let node = |after: &[CUgraphNode], copy: &CUDA_MEMCPY3D_st| {
        let (after, count) = (after.as_ptr(), after.len());
        let added =
            ask!(machine, null_mut(), cuGraphAddMemcpyNode(; graph, after, count, copy, primary));
        ok(added.0);
        added.1
    };
    node(&[node(&[], &down)], &up);
    let (_, exec) = ask!(machine, null_mut(), cuGraphInstantiateWithFlags(; graph, 0));
    ok(call!(machine, cuMemsetD8(memory, 6, 4)));
    ok(call!(machine, cuCtxSynchronize()));
    ok(call!(machine, cuGraphLaunch(exec, bench.stream)));
    ok(machine.sync(bench.stream));
    assert_eq!(bench.bytes(memory + 8), [6, 6, 6, 6, 0]);
}

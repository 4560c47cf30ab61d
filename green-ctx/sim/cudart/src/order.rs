//! Streams, events and graphs: functions that the driver has too.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use green_ctx_sys::*;

use crate::context::in_context;
use crate::driver::*;

functions! { in_context:
    cudaDeviceSynchronize() => cuCtxSynchronize();
    cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) =>
        cuCtxGetStreamPriorityRange(least, greatest);
    cudaProfilerStart() => cuProfilerStart();
    cudaProfilerStop() => cuProfilerStop();

    cudaStreamCreate(stream: *mut CUstream) => cuStreamCreate(stream, 0);
    cudaStreamCreateWithFlags(stream: *mut CUstream, flags: c_uint) => cuStreamCreate(stream, flags);
    cudaStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) =>
        cuStreamCreateWithPriority(stream, flags, priority);
    cudaStreamDestroy(stream: CUstream) => cuStreamDestroy_v2(stream);
    cudaStreamQuery(stream: CUstream) => cuStreamQuery(stream);
    cudaStreamSynchronize(stream: CUstream) => cuStreamSynchronize(stream);
    cudaStreamGetPriority(stream: CUstream, priority: *mut c_int) => cuStreamGetPriority(stream, priority);
    cudaStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) => cuStreamWaitEvent(stream, event, flags);
    cudaLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) =>
        cuLaunchHostFunc(stream, function, data);
    cudaStreamBeginCapture(stream: CUstream, mode: CUstreamCaptureMode) => cuStreamBeginCapture_v2(stream, mode);
    cudaStreamEndCapture(stream: CUstream, graph: *mut CUgraph) => cuStreamEndCapture(stream, graph);
    cudaStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) =>
        cuStreamIsCapturing(stream, status);
    cudaStreamGetCaptureInfo(
        stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize
    ) => cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count);
    cudaThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) => cuThreadExchangeStreamCaptureMode(mode);

    cudaEventCreate(event: *mut CUevent) => cuEventCreate(event, 0);
    cudaEventCreateWithFlags(event: *mut CUevent, flags: c_uint) => cuEventCreate(event, flags);
    cudaEventDestroy(event: CUevent) => cuEventDestroy_v2(event);
    cudaEventQuery(event: CUevent) => cuEventQuery(event);
    cudaEventRecord(event: CUevent, stream: CUstream) => cuEventRecord(event, stream);
    cudaEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) => match flags {
        0 => cuEventRecord(event, stream),
        _ => cuEventRecordWithFlags(event, stream, flags),
    };
    cudaEventSynchronize(event: CUevent) => cuEventSynchronize(event);
    cudaEventElapsedTime(ms: *mut f32, start: CUevent, end: CUevent) => cuEventElapsedTime_v2(ms, start, end);

    cudaGraphInstantiate(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) =>
        cuGraphInstantiateWithFlags(exec, graph, flags);
    cudaGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) =>
        cuGraphInstantiateWithFlags(exec, graph, flags);
    cudaGraphLaunch(exec: CUgraphExec, stream: CUstream) => cuGraphLaunch(exec, stream);
    cudaGraphDestroy(graph: CUgraph) => cuGraphDestroy(graph);
    cudaGraphExecDestroy(exec: CUgraphExec) => cuGraphExecDestroy(exec);
    cudaGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) =>
        cuGraphGetNodes(graph, nodes, count);
    cudaGraphRetainUserObject(graph: CUgraph, object: *mut c_void, count: c_uint, flags: c_uint) =>
        cuGraphRetainUserObject(graph, object, count, flags);
    cudaUserObjectCreate(
        object: *mut *mut c_void, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint
    ) => cuUserObjectCreate(object, data, destroy, count, flags);
    cudaUserObjectRelease(object: *mut c_void, count: c_uint) => cuUserObjectRelease(object, count);
}

//! The driver functions that the cases call, under their own names. Each returns the status and the values that
//! the driver wrote.
//!
//! These are safe functions over a C interface that trusts its caller, which would be wrong in a library. Here
//! it is intended: a case observes what the driver does with a destroyed or invalid handle, each such case runs
//! in its own process, and no code on this side dereferences a handle. Every pointer that the driver writes
//! through points to a live value of the right type, except those that a case passes explicitly.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

use green_ctx_sys::*;

use crate::answer::Failure;

/// The result of a driver call: the status and the values that the driver wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply<T> {
    pub(crate) call: &'static str,
    pub(crate) status: CUresult,
    pub(crate) out: T,
}

impl<T> Reply<T> {
    /// Returns whether the call succeeded.
    pub(crate) fn is_ok(&self) -> bool {
        self.status == CUresult::CUDA_SUCCESS
    }

    /// Returns the written values of a call that must succeed for the case to continue.
    pub(crate) fn must(self) -> Result<T, Failure> {
        if self.is_ok() {
            Ok(self.out)
        } else {
            Err(Failure::Call { call: self.call, status: self.status })
        }
    }
}

/// The functions of one driver.
pub(crate) struct Calls {
    pub(crate) api: Api,
}

/// Generates a method for each function from its arguments, its outputs with their initial values, and the
/// argument list of the C function.
macro_rules! calls {
    ($($function:ident($($argument:ident: $type:ty),*)
        $(-> ($($out:ident: $out_type:ty = $before:expr),+))? => ($($passed:expr),*);)*) => {
        #[allow(non_snake_case, unused_parens, reason = "the names are the driver's own")]
        impl Calls {
            $(pub(crate) fn $function(
                &self $(, $argument: $type)*
            ) -> Result<Reply<($($($out_type),+)?)>, Unsupported> {
                let function = self.api.$function()?;
                $($(let mut $out: $out_type = $before;)+)?
                // SAFETY: outputs are live local variables. A handle may be invalid, since the cases observe
                // exactly that (see the module's documentation).
                let status = unsafe { function($($passed),*) };
                Ok(Reply { call: stringify!($function), status, out: ($($($out),+)?) })
            })*
        }
    };
}

mod graph;
mod memory;

calls! {
    cuDeviceGetName(name: &mut [c_char; 128], device: CUdevice)
        => (name.as_mut_ptr(), 128, device);
    cuDeviceGetAttribute(attribute: CUdevice_attribute, device: CUdevice) -> (value: c_int = -1)
        => (&raw mut value, attribute, device);

    cuDevicePrimaryCtxRetain(device: CUdevice) -> (context: CUcontext = null_mut())
        => (&raw mut context, device);
    cuDevicePrimaryCtxRelease(device: CUdevice) => (device);
    cuDevicePrimaryCtxReset(device: CUdevice) => (device);
    cuDevicePrimaryCtxGetState(device: CUdevice) -> (flags: u32 = u32::MAX, active: c_int = -1)
        => (device, &raw mut flags, &raw mut active);

    cuCtxDestroy(context: CUcontext) => (context);
    cuCtxPushCurrent(context: CUcontext) => (context);
    cuCtxPopCurrent() -> (context: CUcontext = null_mut()) => (&raw mut context);
    cuCtxSetCurrent(context: CUcontext) => (context);
    cuCtxGetCurrent() -> (context: CUcontext = null_mut()) => (&raw mut context);
    cuCtxGetId(context: CUcontext) -> (id: u64 = u64::MAX) => (context, &raw mut id);
    cuCtxGetDevice() -> (device: CUdevice = -1) => (&raw mut device);
    cuCtxGetFlags() -> (flags: u32 = u32::MAX) => (&raw mut flags);
    cuCtxGetStreamPriorityRange() -> (least: c_int = 99, greatest: c_int = 99)
        => (&raw mut least, &raw mut greatest);
    cuCtxSynchronize() => ();
    cuCtxRecordEvent(context: CUcontext, event: CUevent) => (context, event);
    cuCtxWaitEvent(context: CUcontext, event: CUevent) => (context, event);

    cuDeviceGetDevResource(device: CUdevice, kind: CUdevResourceType)
        -> (resource: CUdevResource = blank()) => (device, &raw mut resource, kind);
    cuCtxGetDevResource(context: CUcontext, kind: CUdevResourceType)
        -> (resource: CUdevResource = blank()) => (context, &raw mut resource, kind);
    cuGreenCtxGetDevResource(green: CUgreenCtx, kind: CUdevResourceType)
        -> (resource: CUdevResource = blank()) => (green, &raw mut resource, kind);
    cuDevSmResourceSplitByCount(
        result: *mut CUdevResource, groups: *mut u32, input: *const CUdevResource,
        remaining: *mut CUdevResource, flags: u32, min: u32)
        => (result, groups, input, remaining, flags, min);
    cuDevResourceGenerateDesc(resources: *mut CUdevResource, count: u32)
        -> (desc: CUdevResourceDesc = null_mut()) => (&raw mut desc, resources, count);

    cuGreenCtxCreate(desc: CUdevResourceDesc, device: CUdevice, flags: u32)
        -> (green: CUgreenCtx = null_mut()) => (&raw mut green, desc, device, flags);
    cuGreenCtxDestroy(green: CUgreenCtx) => (green);
    cuGreenCtxGetId(green: CUgreenCtx) -> (id: u64 = u64::MAX) => (green, &raw mut id);
    cuCtxFromGreenCtx(green: CUgreenCtx) -> (context: CUcontext = null_mut())
        => (&raw mut context, green);
    cuGreenCtxStreamCreate(green: CUgreenCtx, flags: u32, priority: c_int)
        -> (stream: CUstream = null_mut()) => (&raw mut stream, green, flags, priority);
    cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) => (green, event);
    cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) => (green, event);

    cuStreamCreate(flags: u32) -> (stream: CUstream = null_mut()) => (&raw mut stream, flags);
    cuStreamCreateWithPriority(flags: u32, priority: c_int) -> (stream: CUstream = null_mut())
        => (&raw mut stream, flags, priority);
    cuStreamDestroy(stream: CUstream) => (stream);
    cuStreamQuery(stream: CUstream) => (stream);
    cuStreamSynchronize(stream: CUstream) => (stream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) => (stream, event, flags);
    cuStreamGetPriority(stream: CUstream) -> (priority: c_int = 99) => (stream, &raw mut priority);
    cuStreamGetFlags(stream: CUstream) -> (flags: u32 = u32::MAX) => (stream, &raw mut flags);
    cuStreamGetId(stream: CUstream) -> (id: u64 = u64::MAX) => (stream, &raw mut id);
    cuStreamGetGreenCtx(stream: CUstream) -> (green: CUgreenCtx = null_mut())
        => (stream, &raw mut green);
    cuStreamGetCtx(stream: CUstream)
        -> (context: CUcontext = null_mut(), green: CUgreenCtx = null_mut())
        => (stream, &raw mut context, &raw mut green);
    cuStreamBeginCapture(stream: CUstream, mode: CUstreamCaptureMode) => (stream, mode);
    cuThreadExchangeStreamCaptureMode(mode: CUstreamCaptureMode)
        -> (former: CUstreamCaptureMode = mode) => (&raw mut former);
    cuStreamEndCapture(stream: CUstream) -> (graph: CUgraph = null_mut())
        => (stream, &raw mut graph);
    cuStreamIsCapturing(stream: CUstream)
        -> (capture: CUstreamCaptureStatus = CUstreamCaptureStatus(u32::MAX))
        => (stream, &raw mut capture);

    cuEventCreate(flags: u32) -> (event: CUevent = null_mut()) => (&raw mut event, flags);
    cuEventDestroy(event: CUevent) => (event);
    cuEventRecord(event: CUevent, stream: CUstream) => (event, stream);
    cuEventQuery(event: CUevent) => (event);
    cuEventSynchronize(event: CUevent) => (event);
    cuEventElapsedTime(start: CUevent, end: CUevent) -> (milliseconds: f32 = -1.0)
        => (&raw mut milliseconds, start, end);

    cuLibraryLoadData(code: &CStr) -> (library: CUlibrary = null_mut())
        => (&raw mut library, code.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(),
            null_mut(), 0);
    cuLibraryUnload(library: CUlibrary) => (library);
    cuLibraryGetKernel(library: CUlibrary, name: &CStr) -> (kernel: CUkernel = null_mut())
        => (&raw mut kernel, library, name.as_ptr());
    cuLibraryGetKernelCount(library: CUlibrary) -> (count: u32 = u32::MAX)
        => (&raw mut count, library);
    cuKernelGetFunction(kernel: CUkernel) -> (function: CUfunction = null_mut())
        => (&raw mut function, kernel);
    cuKernelGetParamInfo(kernel: CUkernel, index: usize)
        -> (offset: usize = 999, size: usize = 999)
        => (kernel, index, &raw mut offset, &raw mut size);
    cuModuleLoadData(code: &CStr) -> (module: CUmodule = null_mut())
        => (&raw mut module, code.as_ptr().cast());
    cuModuleGetFunction(module: CUmodule, name: &CStr) -> (function: CUfunction = null_mut())
        => (&raw mut function, module, name.as_ptr());
    cuModuleUnload(module: CUmodule) => (module);
    cuLibraryLoadFromFile(name: &CStr) -> (library: CUlibrary = null_mut())
        => (&raw mut library, name.as_ptr(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0);
    cuKernelGetName(kernel: CUkernel) -> (name: *const c_char = core::ptr::null())
        => (&raw mut name, kernel);
    cuKernelGetAttribute(attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice)
        -> (value: c_int = -9) => (&raw mut value, attribute, kernel, device);
    cuKernelSetAttribute(
        attribute: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice)
        => (attribute, value, kernel, device);
    cuFuncGetAttribute(attribute: CUfunction_attribute, function: CUfunction)
        -> (value: c_int = -9) => (&raw mut value, attribute, function);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int)
        => (function, attribute, value);
    cuFuncGetName(function: CUfunction) -> (name: *const c_char = core::ptr::null())
        => (&raw mut name, function);

    cuLaunchKernel(
        function: CUfunction, grid: u32, block: u32, stream: CUstream, params: &mut Params)
        => (function, grid, 1, 1, block, 1, 1, 0, stream, params.as_mut_ptr(), null_mut());
    cuLaunchCooperativeKernel(
        function: CUfunction, grid: u32, block: u32, stream: CUstream, params: &mut Params)
        => (function, grid, 1, 1, block, 1, 1, 0, stream, params.as_mut_ptr());
    cuOccupancyMaxActiveBlocksPerMultiprocessor(function: CUfunction, block: c_int)
        -> (blocks: c_int = -1) => (&raw mut blocks, function, block, 0);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        function: CUfunction, block: c_int, shared: usize, flags: u32) -> (blocks: c_int = -1)
        => (&raw mut blocks, function, block, shared, flags);
    cuOccupancyMaxPotentialBlockSize(
        function: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize, limit: c_int)
        -> (grid: c_int = -1, block: c_int = -1)
        => (&raw mut grid, &raw mut block, function, shared_of, shared, limit);
    cuOccupancyMaxPotentialClusterSize(function: CUfunction, config: &CUlaunchConfig)
        -> (size: c_int = -1) => (&raw mut size, function, config);
    cuLaunchKernelEx(config: &CUlaunchConfig, function: CUfunction)
        => (config, function, null_mut(), null_mut());
    cuOccupancyMaxActiveClusters(function: CUfunction, config: &CUlaunchConfig)
        -> (clusters: c_int = -1) => (&raw mut clusters, function, config);
    cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void)
        => (stream, function, data);

    cuStreamGetCaptureInfo(stream: CUstream) -> (
        status: CUstreamCaptureStatus = CUstreamCaptureStatus(u32::MAX), id: u64 = 0,
        graph: CUgraph = null_mut(), after: *const CUgraphNode = core::ptr::null(),
        edges: *const CUgraphEdgeData = core::ptr::null(), count: usize = usize::MAX)
        => (stream, &raw mut status, &raw mut id, &raw mut graph, &raw mut after, &raw mut edges,
            &raw mut count);

    cuGraphCreate(flags: u32) -> (graph: CUgraph = null_mut()) => (&raw mut graph, flags);
    cuGraphDestroy(graph: CUgraph) => (graph);
    cuGraphClone(original: CUgraph) -> (graph: CUgraph = null_mut())
        => (&raw mut graph, original);
    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize)
        => (graph, nodes, count);
    cuGraphGetEdges(
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData,
        count: *mut usize) => (graph, from, to, data, count);
    cuGraphNodeGetType(node: CUgraphNode) -> (kind: CUgraphNodeType = CUgraphNodeType(u32::MAX))
        => (node, &raw mut kind);
    cuGraphAddEmptyNode(graph: CUgraph, after: &[CUgraphNode])
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len());
    cuGraphAddKernelNode(
        graph: CUgraph, after: &[CUgraphNode], params: &CUDA_KERNEL_NODE_PARAMS_v2)
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), params);
    cuGraphKernelNodeGetParams(node: CUgraphNode, params: &mut CUDA_KERNEL_NODE_PARAMS_v2)
        => (node, params);
    cuGraphKernelNodeSetParams(node: CUgraphNode, params: &CUDA_KERNEL_NODE_PARAMS_v2)
        => (node, params);
    cuGraphKernelNodeGetAttribute(node: CUgraphNode, id: CUlaunchAttributeID)
        -> (value: CUlaunchAttributeValue = CUlaunchAttributeValue { pad: [0; 64] })
        => (node, id, &raw mut value);
    cuGraphKernelNodeSetAttribute(
        node: CUgraphNode, id: CUlaunchAttributeID, value: &CUlaunchAttributeValue)
        => (node, id, value);
    cuGraphAddMemcpyNode(
        graph: CUgraph, after: &[CUgraphNode], params: &CUDA_MEMCPY3D_v2, context: CUcontext)
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), params, context);
    cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: &mut CUDA_MEMCPY3D_v2)
        => (node, params);
    cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: &CUDA_MEMCPY3D_v2) => (node, params);
    cuGraphAddMemsetNode(
        graph: CUgraph, after: &[CUgraphNode], params: &CUDA_MEMSET_NODE_PARAMS_v1,
        context: CUcontext) -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), params, context);
    cuGraphMemsetNodeGetParams(node: CUgraphNode, params: &mut CUDA_MEMSET_NODE_PARAMS_v1)
        => (node, params);
    cuGraphMemsetNodeSetParams(node: CUgraphNode, params: &CUDA_MEMSET_NODE_PARAMS_v1)
        => (node, params);
    cuGraphAddHostNode(graph: CUgraph, after: &[CUgraphNode], params: &CUDA_HOST_NODE_PARAMS_v1)
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), params);
    cuGraphAddChildGraphNode(graph: CUgraph, after: &[CUgraphNode], child: CUgraph)
        -> (node: CUgraphNode = null_mut())
        => (&raw mut node, graph, after.as_ptr(), after.len(), child);
    cuGraphChildGraphNodeGetGraph(node: CUgraphNode) -> (graph: CUgraph = null_mut())
        => (node, &raw mut graph);

    cuGraphInstantiateWithFlags(graph: CUgraph, flags: u64)
        -> (exec: CUgraphExec = null_mut()) => (&raw mut exec, graph, flags);
    cuGraphInstantiateWithParams(graph: CUgraph, params: &mut CUDA_GRAPH_INSTANTIATE_PARAMS)
        -> (exec: CUgraphExec = null_mut()) => (&raw mut exec, graph, params);
    cuGraphUpload(exec: CUgraphExec, stream: CUstream) => (exec, stream);
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream) => (exec, stream);
    cuGraphExecDestroy(exec: CUgraphExec) => (exec);

    cuDeviceGetDefaultMemPool(device: CUdevice) -> (pool: CUmemoryPool = null_mut())
        => (&raw mut pool, device);
    cuDeviceGetMemPool(device: CUdevice) -> (pool: CUmemoryPool = null_mut())
        => (&raw mut pool, device);

    cuIpcGetMemHandle(address: CUdeviceptr)
        -> (handle: CUipcMemHandle_st = CUipcMemHandle_st { reserved: [0; 64] })
        => (&raw mut handle, address);

    cuProfilerStart() => ();
    cuProfilerStop() => ();
    cuDeviceGetPCIBusId(text: &mut [c_char], device: CUdevice)
        => (text.as_mut_ptr(), c_int::try_from(text.len()).unwrap_or(0), device);
    cuDeviceGetByPCIBusId(text: &CStr) -> (device: CUdevice = -1)
        => (&raw mut device, text.as_ptr());
}

/// Functions that every driver has, and the entry point.
#[allow(non_snake_case, reason = "the names are the driver's own")]
impl Calls {
    pub(crate) fn cuInit(&self) -> Reply<()> {
        // SAFETY: the function takes an integer.
        let status = unsafe { self.api.cuInit()(0) };
        Reply { call: "cuInit", status, out: () }
    }

    pub(crate) fn cuDeviceGet(&self, ordinal: c_int) -> Reply<CUdevice> {
        let mut device: CUdevice = -1;
        // SAFETY: `device` outlives the call.
        let status = unsafe { self.api.cuDeviceGet()(&raw mut device, ordinal) };
        Reply { call: "cuDeviceGet", status, out: device }
    }

    /// Calls the entry point directly, since the loader never requests versions above the driver's.
    pub(crate) fn cuGetProcAddress(
        &self,
        name: &CStr,
        version: c_int,
    ) -> Reply<(*mut c_void, CUdriverProcAddressQueryResult)> {
        let mut address = null_mut();
        let mut found = CUdriverProcAddressQueryResult(u32::MAX);
        let entry = self.api.entry();
        // SAFETY: the name is NUL-terminated, and both outputs outlive the call.
        let status = unsafe { entry(name.as_ptr(), &raw mut address, version, 0, &raw mut found) };
        Reply { call: "cuGetProcAddress", status, out: (address, found) }
    }
}

/// Functions in other forms than above, and helpers.
impl Calls {
    /// Calls `cuLibraryLoadData` with an image that is not text.
    pub(crate) fn load_library(
        &self,
        image: *const c_void,
    ) -> Result<Reply<CUlibrary>, Unsupported> {
        let mut library = null_mut();
        let (no_jit, none) = ((null_mut(), null_mut(), 0), (null_mut(), null_mut(), 0));
        let function = self.api.cuLibraryLoadData()?;
        // SAFETY: `library` outlives the call, and the image is the subject of the case.
        let status = unsafe {
            function(&raw mut library, image, no_jit.0, no_jit.1, no_jit.2, none.0, none.1, none.2)
        };
        Ok(Reply { call: "cuLibraryLoadData", status, out: library })
    }

    /// Calls `cuModuleLoadData` with an image that is not text.
    pub(crate) fn load_module(&self, image: *const c_void) -> Result<Reply<CUmodule>, Unsupported> {
        let mut module = null_mut();
        let function = self.api.cuModuleLoadData()?;
        // SAFETY: as above.
        let status = unsafe { function(&raw mut module, image) };
        Ok(Reply { call: "cuModuleLoadData", status, out: module })
    }

    /// Returns the text of a name that the driver returned.
    pub(crate) fn text(&self, name: &Reply<*const c_char>) -> String {
        if !name.is_ok() || name.out.is_null() {
            return String::new();
        }
        // SAFETY: after success the driver guarantees a NUL-terminated name that lives as long as its kernel.
        unsafe { CStr::from_ptr(name.out) }.to_string_lossy().into_owned()
    }
}

/// The parameters of a kernel, each 64 bits wide.
pub(crate) struct Params {
    /// Boxed, so that the addresses stay valid when the struct is moved.
    _values: Box<[u64]>,
    addresses: Vec<*mut c_void>,
}

impl Params {
    pub(crate) fn new(values: &[u64]) -> Params {
        let mut values: Box<[u64]> = values.into();
        let addresses = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        Params { _values: values, addresses }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        self.addresses.as_mut_ptr()
    }
}

/// Returns an all-zero resource, as a caller declares it before a query.
pub(crate) fn blank() -> CUdevResource {
    CUdevResource {
        type_: CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID,
        _internal_padding: [0; 92],
        __bindgen_anon_1: CUdevResource_st__bindgen_ty_1 { _oversize: [0; 40] },
        nextResource: null_mut(),
    }
}
